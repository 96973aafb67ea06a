"""A folder of C++ is one library, and its tests."""

load("//third_party/pch:precompiled_header.bzl", "cc_library", "cc_test")

_FOR_OTHERS = ["*_test.cc", "*_main.cc", "*_fuzz.cc", "*_benchmark.cc"]

def cc_folder(name = None, files = [], exclude = [], **others):
    """A library of the sources and headers of a folder.

    Args:
      name: the folder's own by default.
      files: its sources and headers, where they are not all those of the folder.
      exclude: files of the folder that belong to other targets. Tests, fuzzers, benchmarks and
        main programs always do.
      **others: as of cc_library.
    """
    if not files:
        files = native.glob(["*.cc", "*.h"], exclude = _FOR_OTHERS + exclude)
    cc_library(
        name = name or native.package_name().split("/")[-1],
        srcs = [file for file in files if file.endswith(".cc")],
        hdrs = [file for file in files if file.endswith(".h")],
        **others
    )

def cc_tests(deps, exclude = [], special = {}, **others):
    """A test of each source of a folder whose name ends in _test.cc: a small one by default.

    Args:
      deps: of all of them, GoogleTest and its main() apart.
      exclude: sources that have a target of their own.
      special: further arguments of cc_test, by the names of tests; `deps` are further ones.
      **others: likewise, of all of them.
    """
    sources = native.glob(["*_test.cc"], exclude = exclude)
    for name in special:
        if name + ".cc" not in sources:
            fail("special: there is no " + name + ".cc")
    for source in sources:
        name = source[:-len(".cc")]
        arguments = dict(others)
        arguments.update(special.get(name, {}))
        cc_test(
            name = name,
            size = arguments.pop("size", "small"),
            srcs = [source],
            deps = deps + arguments.pop("deps", []) + ["//third_party/googletest:gtest_main"],
            **arguments
        )
