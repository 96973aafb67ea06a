"""A shared library that exports nothing but what it is to export."""

load("@arm64//:root.bzl", "FLAGS")
load("//third_party/absl:archives.bzl", "ABSL_ARCHIVES")

def shared_library(name, exports, deps, visibility):
    """One file of `deps`, for programs in any language.

    Args:
      name: of the file.
      exports: a version script of the linker's.
      deps: what it is made of.
      visibility: of the file.
    """

    # The linker exports functions of the standard library that our objects have copies of, unless
    # it sees that library before them.
    native.genrule(
        name = "copy_standard_library",
        outs = ["libstdc++.so"],
        cmd = select({
            "//third_party/arm64": "cp $$(clang++ %s -print-file-name=libstdc++.so) $@" % FLAGS,
            "//conditions:default": "cp $$(clang++ -print-file-name=libstdc++.so) $@",
        }),
    )
    native.cc_import(
        name = "standard_library",
        shared_library = ":libstdc++.so",
    )
    native.cc_binary(
        name = name,
        additional_linker_inputs = [exports],
        linkopts = [
            "-Wl,--version-script=$(location %s)" % exports,
            "-Wl,-z,defs",
            # Stays when a program unloads it: protobuf, Abseil and threads keep addresses in it.
            "-Wl,-z,nodelete",
            "-Wl,--as-needed",
            "-Wl,--gc-sections",
            "-Wl,-soname,%s" % name,
        ] + ["-labsl_%s" % archive for archive in ABSL_ARCHIVES],
        linkshared = True,
        visibility = visibility,
        deps = [":standard_library"] + deps,
    )
