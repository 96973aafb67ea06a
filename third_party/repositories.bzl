"""The repositories that BUILD files of Tessera name, for its own WORKSPACE and for others."""

load("//third_party:bazel_rules.bzl", "bazel_rules")
load("//third_party/arm64:repository.bzl", "arm64_repository")
load("//third_party/compiler:repository.bzl", "compiler_repository")
load("//third_party/cuda:repository.bzl", "cuda_repository")

def _libraries_impl(ctx):
    ctx.file("BUILD.bazel")
    ctx.file("defs.bzl", "ABSEIL = %r\n" % ctx.attr.absl)

_libraries = repository_rule(
    implementation = _libraries_impl,
    attrs = {"absl": attr.string()},
)

def tessera_repositories(absl = None):
    """Defines what the workspace has not defined before: Debian's packages, nothing is downloaded.

    Args:
      absl: the repository of Abseil's sources to build and link with, such as "@com_google_absl",
        or "" for Debian's package. By default @com_google_absl, if the workspace has defined it
        before, otherwise Debian's. Protobuf is @com_google_protobuf, which is Debian's unless the
        workspace has defined it before.
    """
    bazel_rules()
    if absl == None:
        absl = "@com_google_absl" if native.existing_rule("com_google_absl") else ""
    _libraries(name = "tessera_libraries", absl = absl)
    if not native.existing_rule("com_google_protobuf"):
        native.new_local_repository(
            name = "com_google_protobuf",
            build_file = str(Label("//third_party/protobuf:protobuf.BUILD")),
            path = "/usr",
        )
    arm64_repository(name = "arm64")
    compiler_repository(name = "compiler")
    cuda_repository(name = "cuda")
