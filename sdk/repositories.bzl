"""What a workspace needs besides the SDK, as the sources have it."""

load("//third_party:bazel_rules.bzl", "bazel_rules")

def tessera_repositories(absl = ""):
    """Defines what the workspace has not defined before.

    Args:
      absl: the library is built, with Debian's Abseil.
    """
    if absl or native.existing_rule("com_google_absl"):
        fail("the SDK is built with Debian's Abseil; Tessera's sources can be built with others")
    bazel_rules()
