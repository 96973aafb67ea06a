"""A header that the compiler parses once, for all sources that include it with -include-pch."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# Tests are compiled without optimization, which is two thirds of the compiler's time. What they
# test is in libraries, which are compiled as for users.
TEST_COPTS = ["-O0", "-U_FORTIFY_SOURCE"]

def _precompiled_header(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        # Of a module that is being compiled.
        unsupported_features = ctx.disabled_features + ["layering_check", "module_maps"],
    )
    output = ctx.actions.declare_file(ctx.label.name + ".pch")
    flags = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = ACTION_NAMES.cpp_compile,
        variables = cc_common.create_compile_variables(
            cc_toolchain = toolchain,
            feature_configuration = features,
            source_file = "-",
            output_file = "-",
            # The sizes of headers tell whether they have changed; copies of a cache have new times.
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts +
                                 ctx.attr.copts +
                                 ["-Xclang", "-fno-pch-timestamp", "-fmodules-strict-decluse",
                                  "-fpch-instantiate-templates"],
        ),
    )
    compiler = cc_common.get_tool_for_action(
        feature_configuration = features,
        action_name = ACTION_NAMES.cpp_compile,
    )
    ctx.actions.run_shell(
        mnemonic = "PrecompileHeader",
        # From a pipe to a pipe, in the root: no path of a sandbox gets into the output.
        command = 'cat %s | (cd / && "$@") > %s' % (
            " ".join([source.path for source in ctx.files.srcs]),
            output.path,
        ),
        arguments = [compiler, "-x", "c++-header"] + flags,
        inputs = depset(ctx.files.srcs, transitive = [toolchain.all_files]),
        outputs = [output],
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([output]))]

_pch = rule(
    implementation = _precompiled_header,
    attrs = {
        "copts": attr.string_list(),
        "srcs": attr.label_list(allow_files = [".inc"], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    doc = "Makes NAME.pch of `srcs`, one after the other.",
)

def precompiled_header(name, srcs, copts = []):
    _pch(name = name, srcs = srcs, copts = copts)
    # As an input of what depends on it.
    native.cc_library(
        name = name + "_headers",
        textual_hdrs = [":" + name],
    )

def is_ours():
    """Whether this repository is the workspace, not a part of somebody else's."""
    return native.repository_name() == "@"

def _with(header, rule, name, copts, deps, precompiled = True, **others):
    if not is_ours():
        # What .bazelrc has for all of the workspace. The layering was checked in ours.
        copts = ["-std=c++20", "-fno-math-errno"] + copts
        others["features"] = others.get("features", []) + ["-layering_check"]

    # The compiler refuses a header that was compiled without it.
    differs = any([option.startswith("-fsanitize=") for option in copts])
    third_party = native.package_name().startswith("third_party")
    if is_ours() and not third_party and precompiled and not differs:
        copts = ["-include-pch", "$(BINDIR)/third_party/pch/%s.pch" % header] + copts
        deps = deps + ["//third_party/pch:%s_headers" % header]
    rule(name = name, copts = copts, deps = deps, **others)

def cc_library(name, copts = [], deps = [], **others):
    _with("common", native.cc_library, name, copts, deps, **others)

def cc_test_library(name, copts = [], deps = [], **others):
    """A library that only tests use, and that is compiled as they are."""
    _with("tests", native.cc_library, name, TEST_COPTS + copts, deps, testonly = True, **others)

def cc_binary(name, copts = [], deps = [], **others):
    _with("common", native.cc_binary, name, copts, deps, **others)

def cc_test(name, copts = [], deps = [], **others):
    _with("tests", native.cc_test, name, TEST_COPTS + copts, deps, **others)
