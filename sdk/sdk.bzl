"""The checkpoint library, packed for programs that are built without its sources."""

load("//third_party/absl:archives.bzl", "ABSL_TARGETS")

def _static_library_impl(ctx):
    objects = []
    flags = []
    for linker_input in ctx.attr.library[CcInfo].linking_context.linker_inputs.to_list():
        flags += [flag for flag in linker_input.user_link_flags if flag not in flags]
        for library in linker_input.libraries:
            objects += library.pic_objects or library.objects
    ctx.actions.run(
        executable = "/usr/bin/ar",
        # Objects of several folders may have the same name: none replaces another.
        arguments = [ctx.actions.args().add("qcsD").add(ctx.outputs.archive).add_all(objects)],
        inputs = objects,
        outputs = [ctx.outputs.archive],
        mnemonic = "Archive",
    )
    ctx.actions.write(ctx.outputs.flags, "".join([flag + "\n" for flag in flags]))

_static_library = rule(
    implementation = _static_library_impl,
    doc = "All objects of a library and of what it depends on, and the linker's flags for " +
          "libraries of other projects, one a line.",
    attrs = {
        "archive": attr.output(mandatory = True),
        "flags": attr.output(mandatory = True),
        "library": attr.label(mandatory = True, providers = [CcInfo]),
    },
)

def sdk(name, library, wheel, sources, files, visibility):
    """tessera-checkpoint.tar.gz.

    Args:
      name: of the target.
      library: the C++ interface, and the C interface as far as it has no other dependencies.
      wheel: the Python package, which has the C interface with all that it needs.
      sources: headers, and what Bazel needs, under the names that they have here.
      files: those of this package.
      visibility: as usual.
    """
    _static_library(
        name = name + "_library",
        archive = "libtessera_checkpoint_cxx.a",
        flags = "link_flags.txt",
        library = library,
    )
    native.genrule(
        name = name,
        srcs = sources + files + ["libtessera_checkpoint_cxx.a", "link_flags.txt", wheel],
        outs = ["tessera-checkpoint.tar.gz"],
        cmd = "python3 -B $(location make_sdk.py) --output=$@ --wheel=$(location %s) " % wheel +
              "--archive=$(location libtessera_checkpoint_cxx.a) " +
              "--link-flags=$(location link_flags.txt) " +
              "".join(["--absl-target=%s " % target for target in ABSL_TARGETS]) +
              " ".join(["$(locations %s)" % source for source in sources + files]),
        tools = ["make_sdk.py"],
        visibility = visibility,
    )
