"""simulated_twins: C++ libraries whose sources nvcc compiles, and their twins without a GPU.

Those of nvcc are built under --config=cuda and left out of `//...` elsewhere.
"""

load("//third_party/pch:precompiled_header.bzl", "cc_library")
load("//tools/build_rules:folders.bzl", "units")
load("@cuda//:defs.bzl", "CUDA_HOME")

# For targets that use CUDA without a .cu of their own: target_compatible_with = CUDA_ONLY.
CUDA_ONLY = select({
    "//third_party/cuda:enabled": [],
    "//conditions:default": ["//third_party/cuda:unavailable"],
})

# Machine code for A100 and H100/H200 from one PTX, which later devices compile for themselves.
_ARCHITECTURES = [
    "-gencode=arch=compute_80,code=[sm_80,sm_90,compute_80]",
]

# Machine code for H100/H200 alone, with instructions that no later device has.
_HOPPER = ["-gencode=arch=compute_90a,code=sm_90a"]

def _cuda_objects_impl(ctx):
    if not CUDA_HOME:
        fail("--config=cuda needs the CUDA toolkit: no nvcc in $CUDA_HOME/bin or " +
             "/usr/local/cuda/bin")
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    inputs = depset(
        ctx.files.hdrs + ctx.files._version,
        transitive = [context.headers for context in contexts],
    )
    objects = []
    reports = []
    for source in ctx.files.srcs:
        stem = "_nvcc/%s/%s" % (ctx.label.name, source.basename)
        object = ctx.actions.declare_file(stem + ".o")
        report = ctx.actions.declare_file(stem + ".ptxas")
        arguments = ctx.actions.args()
        arguments.add(report)
        arguments.add(CUDA_HOME + "/bin/nvcc")
        arguments.add_all(["-ccbin", "g++", "-std=c++20", "-O3", "-Xptxas=-v"])
        arguments.add_all(["-Xcompiler", "-fPIC,-Wall,-Wextra"])
        arguments.add_all(["-Werror", "all-warnings", "-I."])
        arguments.add_all(ctx.attr.architectures + ["--no-compress"])  # tests read the machine code
        for context in contexts:
            arguments.add_all(context.includes, before_each = "-isystem")
            arguments.add_all(context.system_includes, before_each = "-isystem")
            arguments.add_all(context.quote_includes, before_each = "-I")
            arguments.add_all(context.defines, before_each = "-D")
        arguments.add_all(ctx.attr.copts)
        arguments.add_all(["-x", "cu", "-c", source, "-o", object])
        ctx.actions.run_shell(
            # What nvcc prints is shown where it fails. It names its temporary files by the process
            # id, which sandboxes have in common, as they have /tmp.
            command = """
                report="$1"; shift
                export TMPDIR="$report.tmp"
                mkdir -p "$TMPDIR"
                "$@" >"$report" 2>&1 || { cat "$report"; exit 1; }
                rm -r "$TMPDIR"
            """,
            arguments = [arguments],
            inputs = depset([source], transitive = [inputs]),
            outputs = [object, report],
            mnemonic = "Nvcc",
            progress_message = "Compiling %s with nvcc" % source.short_path,
            use_default_shell_env = True,
        )
        objects.append(object)
        reports.append(report)
    return [
        DefaultInfo(files = depset(objects)),
        OutputGroupInfo(reports = depset(reports)),
    ]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    doc = "Objects; in the output group `reports`, what ptxas says of the registers and the " +
          "memory of each kernel.",
    attrs = {
        "architectures": attr.string_list(mandatory = True),
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = True),
        "srcs": attr.label_list(allow_files = [".cc"]),
        "_version": attr.label(default = "@cuda//:version"),
    },
)

def _cuda_library(name, srcs, hopper_srcs, textual_hdrs, hdrs, deps, copts, visibility):
    """A cc_library whose sources nvcc compiles as CUDA.

    Args:
      name: of the cc_library that others depend on.
      srcs: sources for every architecture.
      hopper_srcs: further sources, whose kernels compute capability 9.0 alone can run.
      textual_hdrs: headers that only the sources include.
      hdrs: the interface, free of CUDA syntax.
      deps: as of a cc_library. The runtime library is added.
      copts: for nvcc.
      visibility: as usual.
    """
    objects = {name + "_objects": (srcs, _ARCHITECTURES)}
    if hopper_srcs:
        objects[name + "_hopper_objects"] = (hopper_srcs, _HOPPER)
    for target, (sources, architectures) in objects.items():
        _cuda_objects(
            name = target,
            srcs = sources,
            hdrs = hdrs + textual_hdrs,
            architectures = architectures,
            copts = copts,
            tags = ["cuda"],
            target_compatible_with = CUDA_ONLY,
            visibility = ["//visibility:private"],
            deps = deps,
        )
    native.cc_library(
        name = name,
        srcs = objects.keys(),
        hdrs = hdrs,
        tags = ["cuda"],
        target_compatible_with = CUDA_ONLY,
        visibility = visibility,
        deps = deps + ["//third_party/cuda:cudart"],
    )

def simulated_twins(
        name,
        srcs,
        hdrs,
        deps,
        twins = [],
        simulated_copts = [],
        visibility = None,
        hopper_srcs = []):
    """Kernels: `name` for a device and, for tests, `simulated_NAME` for the simulated one.

    Neither compiler fuses multiplications and additions by itself: fused ones are written as such,
    so that both compute the same. A kernel that spills registers is an error.

    The sources are compiled several at once, as those of a cc_folder are: half of the time of nvcc
    goes into headers. With --config=apart, each is compiled on its own.

    Args:
      name: of the library for a device.
      srcs: of both: .cc files, and .h files that only they include.
      hdrs: of both, free of CUDA syntax.
      deps: of both.
      twins: labels PACKAGE:TARGET, on which NAME depends, and simulated_NAME on
        PACKAGE:simulated_TARGET.
      simulated_copts: for the host's compiler.
      visibility: of both.
      hopper_srcs: further sources of both, whose kernels compute capability 9.0 alone can run.
        Each is compiled on its own.
    """
    sources = units(name, [file for file in srcs if file.endswith(".cc")])
    headers = [file for file in srcs if not file.endswith(".cc")]
    _cuda_library(
        name = name,
        srcs = sources,
        hopper_srcs = hopper_srcs,
        textual_hdrs = headers,
        hdrs = hdrs,
        copts = ["-fmad=false", "--expt-relaxed-constexpr", "-Xptxas=--warn-on-spills"],
        visibility = visibility,
        deps = deps + twins,
    )
    cc_library(
        name = "simulated_" + name,
        testonly = True,
        srcs = headers + sources + hopper_srcs,
        hdrs = hdrs,
        copts = ["-ffp-contract=off"] + simulated_copts,
        visibility = visibility,
        deps = deps + [label.replace(":", ":simulated_") for label in twins],
    )
