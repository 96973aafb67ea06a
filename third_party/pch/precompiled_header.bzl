"""A header that the compiler parses once, for all sources that include it with -include-pch."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# Tests are compiled without optimization, which is two thirds of the compiler's time. What they
# test is in libraries, which are compiled as for users.
TEST_COPTS = ["-O0", "-U_FORTIFY_SOURCE"]

def _flags(ctx, toolchain, features, source, output, copts):
    return cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = ACTION_NAMES.cpp_compile,
        variables = cc_common.create_compile_variables(
            cc_toolchain = toolchain,
            feature_configuration = features,
            source_file = source,
            output_file = output,
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts +
                                 ctx.attr.copts + copts,
        ),
    )

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
    # The sizes of headers tell whether they have changed; copies of a cache have new times.
    copts = ["-Xclang", "-fno-pch-timestamp", "-fmodules-strict-decluse"]
    copts += ["-fpch-instantiate-templates"] + (["-fpch-codegen"] if ctx.outputs.object else [])
    flags = _flags(ctx, toolchain, features, "-", "-", copts)
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
    if ctx.outputs.object:
        ctx.actions.run(
            mnemonic = "PrecompileHeader",
            executable = compiler,
            arguments = _flags(
                ctx,
                toolchain,
                features,
                output.path,
                ctx.outputs.object.path,
                ["-Wno-unused-command-line-argument"],
            ),
            inputs = depset([output], transitive = [toolchain.all_files]),
            outputs = [ctx.outputs.object],
            use_default_shell_env = True,
        )
    return [DefaultInfo(files = depset([output]))]

_pch = rule(
    implementation = _precompiled_header,
    attrs = {
        "copts": attr.string_list(),
        "object": attr.output(),
        "srcs": attr.label_list(allow_files = [".inc"], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    doc = "Makes NAME.pch of `srcs`, one after the other, and `object` of its functions.",
)

def precompiled_header(name, srcs, copts = [], object = None, **others):
    """A header, and NAME_headers, on which what is compiled with it depends.

    Args:
      name: of the header.
      srcs: its parts.
      copts: of the header, and of what is compiled with it.
      object: an object that gets the code of all inline functions of the header. What is compiled
        with it has no code for these, so that it is compiled and linked in less time.
      **others: as of NAME_headers, a cc_library.
    """
    _pch(name = name, srcs = srcs, copts = copts, object = object, testonly = object != None)
    # As an input of what depends on it.
    native.cc_library(
        name = name + "_headers",
        srcs = [object] if object else [],
        textual_hdrs = [":" + name],
        testonly = object != None,
        **others
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

def cc_test_binary(name, copts = [], deps = [], **others):
    """A program that only tests and measurements start, and that is compiled as tests are."""
    _with("tests", native.cc_binary, name, TEST_COPTS + copts, deps, testonly = True, **others)

def cc_binary(name, copts = [], deps = [], **others):
    _with("common", native.cc_binary, name, copts, deps, **others)

def cc_test(name, copts = [], deps = [], **others):
    _with("tests", native.cc_test, name, TEST_COPTS + copts, deps, **others)
