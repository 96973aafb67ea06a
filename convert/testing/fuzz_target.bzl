"""Fuzz targets of parsers: libFuzzer's program, and a test that needs no libFuzzer."""

def fuzz_target(name, srcs, deps, corpus, folders, dictionaries):
    """A library NAME with the entry point, a test NAME_test over a corpus, and a program NAMEer.

    Precondition: NAME ends in "fuzz". The program is run with
      ./bazelw run --config=fuzz //PACKAGE:NAMEer -- FOLDER
    and all of them by tests/interop/fuzz_campaign.sh. Test and program end where an input takes
    more memory than AllowedBytes() in memory_meter.h says.

    Args:
      name: of the library.
      srcs: define FuzzOneInput(), which aborts where it finds a fault.
      deps: of the sources.
      corpus: labels of the files to begin with.
      folders: the folders that have them, relative to the workspace.
      dictionaries: files of testing/dictionaries, without their ending: the tokens of the formats.
    """
    native.cc_library(
        name = name,
        testonly = True,
        srcs = srcs,
        deps = deps,
        alwayslink = True,
    )
    native.filegroup(
        name = name + "_dictionaries",
        srcs = [
            "//convert/testing:dictionaries/%s.dict" % dictionary
            for dictionary in dictionaries
        ],
    )
    native.cc_test(
        name = name + "_test",
        size = "small",
        args = folders,
        data = corpus,
        deps = [
            ":" + name,
            "//convert/testing:fuzz_entry",
            "//convert/testing:run_corpus_main",
        ],
    )
    native.cc_binary(
        name = name + "er",
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [
            ":" + name,
            "//convert/testing:fuzz_entry",
        ],
    )
