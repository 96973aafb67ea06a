"""@compiler: Bazel's toolchain of this machine, with fewer of the system's headers in its list."""

# Folders of system headers that sources include from, beside those of the C and C++ libraries: of
# others, the compiler says that no module exports them.
_FOLDERS = [
    "absl/",
    "benchmark/",
    "boost/context/",
    "glog/",
    "gmock/",
    "google/",
    "gtest/",
    "hwy/",
    "nlohmann/",
    "openssl/",
]

_C_FOLDERS = ["arpa/", "asm-generic/", "c++/", "linux/", "net/", "netinet/"]

def _is_included(path):
    for root in ["/usr/include/", "/usr/local/include/"]:
        if path.startswith(root):
            rest = path[len(root):]
            folder = rest.partition("/")[0]
            return folder == rest or folder.endswith("-linux-gnu") or any([
                rest.startswith(known)
                for known in _FOLDERS + _C_FOLDERS
            ])
    return True

def _compiler_repository_impl(ctx):
    headers = ctx.path(Label("@local_config_cc//:module.modulemap"))
    for file in headers.dirname.readdir():
        if file.basename not in [headers.basename, "WORKSPACE"]:
            ctx.symlink(file, file.basename)
    ctx.file(headers.basename, "\n".join([
        line
        for line in ctx.read(headers).split("\n")
        if not line.startswith("  textual header ") or _is_included(line.split("\"")[1])
    ]))

compiler_repository = repository_rule(
    implementation = _compiler_repository_impl,
    doc = "To check the layering, the compiler reads the list for every source, and looks for " +
          "each header in it: tens of thousands where all of Boost is installed.",
)
