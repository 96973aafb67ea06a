"""A folder of C++ is one library, and its tests."""

load("//third_party/pch:precompiled_header.bzl", "cc_library", "cc_test", "cc_test_library")

_FOR_OTHERS = ["*_test.cc", "*_main.cc", "*_fuzz.cc", "*_benchmark.cc"]

# Sources that the compiler takes at once. The headers of a folder's sources are much the same, and
# so are the templates that they instantiate: six at once cost what four cost apart.
_AT_ONCE = 6

# What every folder may use without saying so.
_EVERYWHERE = ["//base", "//third_party/absl"]

# What every test may use besides.
_IN_TESTS = ["//base:testing", "//third_party/googletest:gtest_main"]

def _and(labels, deps):
    return deps + [label for label in labels if label not in deps]

def _with_base(deps):
    return deps if native.package_name() == "base" else _and(_EVERYWHERE, deps)

def cc_folder(
        name = None,
        files = [],
        exclude = [],
        apart = [],
        deps = [],
        rule = cc_library,
        **others):
    """A library of the sources and headers of a folder.

    The sources are compiled several at once, so that a name that is local to one of them must be
    unknown to the others; with --config=apart, each on its own.

    Args:
      name: the folder's own by default.
      files: its sources and headers, where they are not all those of the folder.
      exclude: files of the folder that belong to other targets. Tests, fuzzers, benchmarks and
        main programs always do.
      apart: sources that are always compiled on their own.
      deps: of the library, base and Abseil apart.
      rule: that makes the library.
      **others: as of cc_library.
    """
    name = name or native.package_name().split("/")[-1]
    if not files:
        files = native.glob(["*.cc", "*.h"], exclude = _FOR_OTHERS + exclude)
    sources = [file for file in files if file.endswith(".cc")]
    rule(
        name = name,
        srcs = units(name, sources, apart),
        hdrs = [file for file in files if file.endswith(".h")],
        deps = _with_base(deps),
        **others
    )

def cc_test_folder(**arguments):
    """A folder that only tests use, compiled as they are. What they wait for is a cc_folder."""
    cc_folder(rule = cc_test_library, **arguments)

def units(name, sources, apart = []):
    """What the compiler takes at once: each of `apart` on its own, the other sources joined."""
    for file in apart:
        if file not in sources:
            fail("apart: there is no " + file)
    joined = [file for file in sources if file not in apart]
    count = (len(joined) + _AT_ONCE - 1) // _AT_ONCE
    return select({
        "//third_party/pch:apart": sources,
        "//conditions:default": [file for file in sources if file in apart] + [
            _join("%s_sources_%d" % (name, i), joined[i::count])
            for i in range(count)
        ],
    })

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

def cc_tests(deps, exclude = [], apart = [], special = {}, **others):
    """The tests of a folder, its sources whose names end in _test.cc, as one program: `tests`.

    Like the sources of a folder's library, they are compiled several at once.

    Args:
      deps: of all of them, GoogleTest and its main(), base, its testing and Abseil apart.
      exclude: sources that belong to other targets.
      apart: sources that are always compiled on their own.
      special: sources that are a program of their own, each of the name of its source: further
        arguments of cc_test, by their names; `deps` are further ones.
      **others: further arguments of cc_test, of all of them. A test is a small one by default.
    """
    sources = native.glob(["*_test.cc"], exclude = exclude)
    for name in special:
        if name + ".cc" not in sources:
            fail("special: there is no " + name + ".cc")
    ordinary = [source for source in sources if source[:-len(".cc")] not in special]
    programs = {name: dict(arguments, srcs = [name + ".cc"]) for name, arguments in special.items()}
    if ordinary:
        programs["tests"] = dict(srcs = units("tests", ordinary, apart))
    for name, own in programs.items():
        arguments = dict(others)
        arguments.update(own)
        cc_test(
            name = name,
            size = arguments.pop("size", "small"),
            deps = _and(_IN_TESTS, _with_base(deps + arguments.pop("deps", []))),
            **arguments
        )

def cc_proto(name, deps = [], **others):
    """NAME.proto as NAME_proto, and as C++, NAME_cc_proto."""
    native.proto_library(name = name + "_proto", srcs = [name + ".proto"], deps = deps, **others)
    native.cc_proto_library(name = name + "_cc_proto", deps = [":" + name + "_proto"], **others)

def html_page(name, srcs, **others):
    """A page as a constant: NAME.h has it as kName, of the sources one after the other.

    Args:
      name: of the library, in words with underscores between them: kReportPage for report_page.
      srcs: parts of one page of HTML. The first is usually //base/page:head.html.
      **others: as of cc_library.
    """
    guard = "TESSERA_%s_%s_H_" % (native.package_name().replace("/", "_").upper(), name.upper())
    constant = "k" + "".join([word.capitalize() for word in name.split("_")])
    native.genrule(
        name = name + "_header",
        srcs = srcs,
        outs = [name + ".h"],
        cmd = "".join([
            "{ echo '#ifndef %s'; echo '#define %s'; " % (guard, guard),
            "echo '#include <string_view>'; echo 'namespace tessera {'; ",
            "printf '%%s' 'inline constexpr std::string_view %s = R\"page('; " % constant,
            "cat $(SRCS); echo ')page\";'; echo '}  // namespace tessera'; ",
            "echo '#endif  // %s'; } > $@" % guard,
        ]),
    )
    cc_library(name = name, hdrs = [name + ".h"], **others)
