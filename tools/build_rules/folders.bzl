"""A folder of C++ is one library, and its tests."""

load("//third_party/pch:precompiled_header.bzl", "cc_library", "cc_test")

_FOR_OTHERS = ["*_test.cc", "*_main.cc", "*_fuzz.cc", "*_benchmark.cc"]

# Sources that the compiler takes at once. The headers of a folder's sources are much the same, and
# so are the templates that they instantiate: six at once cost what four cost apart.
_AT_ONCE = 6

def cc_folder(name = None, files = [], exclude = [], apart = [], **others):
    """A library of the sources and headers of a folder.

    The sources are compiled several at once, so that a name that is local to one of them must be
    unknown to the others; with --config=apart, each on its own.

    Args:
      name: the folder's own by default.
      files: its sources and headers, where they are not all those of the folder.
      exclude: files of the folder that belong to other targets. Tests, fuzzers, benchmarks and
        main programs always do.
      apart: sources that are always compiled on their own.
      **others: as of cc_library.
    """
    name = name or native.package_name().split("/")[-1]
    if not files:
        files = native.glob(["*.cc", "*.h"], exclude = _FOR_OTHERS + exclude)
    sources = [file for file in files if file.endswith(".cc")]
    joined = [file for file in sources if file not in apart]
    count = (len(joined) + _AT_ONCE - 1) // _AT_ONCE
    cc_library(
        name = name,
        srcs = select({
            "//third_party/pch:apart": sources,
            "//conditions:default": [file for file in sources if file in apart] + [
                _join("%s_sources_%d" % (name, i), joined[i::count])
                for i in range(count)
            ],
        }),
        hdrs = [file for file in files if file.endswith(".h")],
        **others
    )

def _join(name, sources):
    """One source of several, in which the compiler's messages name the originals."""
    if len(sources) == 1:
        return sources[0]
    native.genrule(
        name = name,
        srcs = sources,
        outs = [name + ".cc"],
        cmd = "for file in $(SRCS); do echo \"#line 1 \\\"$$file\\\"\"; cat $$file; done > $@",
    )
    return name + ".cc"

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
