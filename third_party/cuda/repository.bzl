"""The CUDA toolkit of this machine as the repository @cuda; an empty one where there is none."""

_ABSENT = """
package(default_visibility = ["//visibility:public"])

[
    cc_library(name = name)
    for name in ["cudart", "headers"]
]

filegroup(name = "version")
"""

_PRESENT = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/crt/*",
        "include/nccl_device/**",
    ]),
    includes = ["include"],
)

cc_library(
    name = "cudart",
    linkopts = ["-L{home}/lib64", "-lcudart_static", "-ldl", "-lpthread", "-lrt"],
    deps = [":headers"],
)

filegroup(
    name = "version",
    srcs = glob(["version.json"]),
)
"""

def _cuda_repository_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    present = ctx.path(home + "/bin/nvcc").exists
    if present:
        ctx.symlink(home + "/include", "include")
        if ctx.path(home + "/version.json").exists:
            ctx.symlink(home + "/version.json", "version.json")
    ctx.file("BUILD.bazel", (_PRESENT if present else _ABSENT).replace("{home}", home))
    ctx.file("defs.bzl", "CUDA_HOME = %r\n" % (home if present else ""))

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    doc = "Looks in $CUDA_HOME, then in /usr/local/cuda. @cuda//:defs.bzl has CUDA_HOME, " +
          "empty without a toolkit.",
    configure = True,
    environ = ["CUDA_HOME"],
    local = True,
)
