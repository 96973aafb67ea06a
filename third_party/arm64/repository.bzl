"""Debian's arm64 packages in a folder, as the repository @arm64: its compiler and its libraries.

root.bzl has the folder, the compiler's flags, and the emulator of that processor: "" where it or
one of the packages is missing.
"""

_TOOLS = ["ar", "dwp", "gcov", "ld", "nm", "objcopy", "objdump", "strip"]

_BUILD = """
load("@bazel_tools//tools/cpp:unix_cc_toolchain_config.bzl", "cc_toolchain_config")

package(default_visibility = ["//visibility:public"])

cc_toolchain_suite(
    name = "toolchain",
    toolchains = {{"aarch64": ":compiler"}},
)

filegroup(name = "empty")

cc_toolchain(
    name = "compiler",
    all_files = ":empty",
    compiler_files = ":empty",
    dwp_files = ":empty",
    linker_files = ":empty",
    module_map = "headers.modulemap",
    objcopy_files = ":empty",
    strip_files = ":empty",
    toolchain_config = ":config",
)

cc_toolchain_config(
    name = "config",
    abi_libc_version = "glibc",
    abi_version = "aarch64",
    compile_flags = {target} + [
        "-U_FORTIFY_SOURCE",
        "-fstack-protector",
        "-Wall",
        "-fno-omit-frame-pointer",
        # Results have the bits of other processors: no multiply-adds but those that are written.
        "-ffp-contract=off",
    ],
    compiler = "clang",
    cpu = "aarch64",
    cxx_builtin_include_directories = ["{root}", "{clang}", "/usr/lib/clang"],
    cxx_flags = [],
    host_system_name = "local",
    link_flags = {target} + [
        "-fuse-ld=/usr/bin/aarch64-linux-gnu-ld.gold",
        "-Wl,-no-as-needed",
        "-Wl,-z,relro,-z,now",
    ],
    link_libs = ["-lstdc++", "-lm"],
    opt_compile_flags = [
        "-g0",
        "-O2",
        "-D_FORTIFY_SOURCE=1",
        "-DNDEBUG",
        "-ffunction-sections",
        "-fdata-sections",
    ],
    opt_link_flags = ["-Wl,--gc-sections"],
    supports_start_end_lib = True,
    target_libc = "glibc",
    target_system_name = "aarch64-linux-gnu",
    tool_paths = {tools},
    toolchain_identifier = "arm64",
    unfiltered_compile_flags = [
        "-no-canonical-prefixes",
        "-Wno-builtin-macro-redefined",
        "-D__DATE__=\\"redacted\\"",
        "-D__TIMESTAMP__=\\"redacted\\"",
        "-D__TIME__=\\"redacted\\"",
    ],
)
"""

def _arm64_repository_impl(ctx):
    root = ctx.os.environ.get("TESSERA_ARM64_ROOT") or "/usr/aarch64-linux-gnu"
    clang = ctx.execute(["clang", "-print-resource-dir"]).stdout.strip() + "/include"

    # Layering is checked for all headers but these.
    headers = ctx.execute(
        ["find", "-L", root + "/usr/include", root + "/usr/lib/gcc", clang, "-type", "f"],
    )
    ctx.file("headers.modulemap", "module \"crosstool\" [system] {\n%s}\n" % "".join([
        "  textual header \"%s\"\n" % path
        for path in headers.stdout.splitlines()
    ]))
    tools = {tool: "/usr/bin/aarch64-linux-gnu-" + tool for tool in _TOOLS}
    tools["gcc"] = "/usr/bin/clang"
    tools["cpp"] = "/usr/bin/clang-cpp"
    tools["llvm-cov"] = "/usr/bin/llvm-cov"
    target = ["--target=aarch64-linux-gnu", "--sysroot=" + root]
    ctx.file("BUILD.bazel", _BUILD.format(
        clang = clang,
        root = root,
        target = repr(target),
        tools = repr(tools),
    ))
    emulator = ctx.which("qemu-aarch64")
    installed = emulator and all([
        ctx.path(path).exists
        for path in [root + "/usr/include/hwy/highway.h", tools["ld"]]
    ])
    ctx.file("root.bzl", "ROOT = %r\nFLAGS = %r\nEMULATOR = %r\n" % (
        root,
        " ".join(target),
        str(emulator) if installed else "",
    ))

arm64_repository = repository_rule(
    implementation = _arm64_repository_impl,
    environ = ["TESSERA_ARM64_ROOT"],
)
