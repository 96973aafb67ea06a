"""Fuzz targets of parsers: libFuzzer's program, and a test that needs no libFuzzer."""

load("//third_party/pch:precompiled_header.bzl", "cc_test_library")

def fuzz_target(name, deps, dictionaries, corpus = None, folders = None):
    """A library NAME of NAME.cc, a test NAME_test over a corpus, and a program NAMEer.

    Precondition: NAME ends in "fuzz". The program is run with
      ./bazelw run --config=fuzz //PACKAGE:NAMEer -- FOLDER
    and all of them by tests/interop/fuzz_campaign.sh. Test and program end where an input takes
    more memory than AllowedBytes() in memory_meter.h says.

    Args:
      name: of the library. Its source defines FuzzOneInput(), which aborts where it finds a fault.
      deps: of the source.
      dictionaries: files of testing/dictionaries, without their ending: the tokens of the formats.
      corpus: labels of the files to begin with: those of the package's testdata/ by default.
      folders: the folders that have them, relative to the workspace.
    """
    cc_test_library(
        name = name,
        srcs = [name + ".cc"],
        deps = deps,
        alwayslink = True,
    )
    native.filegroup(
        name = name + "_dictionaries",
        srcs = ["//convert/testing:dictionaries/%s.dict" % file for file in dictionaries],
    )
    native.cc_test(
        name = name + "_test",
        size = "small",
        args = folders or [native.package_name() + "/testdata"],
        data = corpus or native.glob(["testdata/**"]),
        deps = [":" + name, "//convert/testing:fuzz_entry", "//convert/testing:run_corpus_main"],
    )
    native.cc_binary(
        name = name + "er",
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [":" + name, "//convert/testing:fuzz_entry"],
    )
