"""The repositories of Bazel's own rules, from Debian's packages."""

_DEBIAN = {
    "bazel_skylib": "/usr/share/bazel/tools/skylib",
    "platforms": "/usr/share/bazel/platforms",
    "rules_java": "/usr/share/bazel/rules/java",
    "rules_proto": "/usr/share/bazel/rules/proto",
}

def _folder_impl(ctx):
    for path in ctx.path(ctx.attr.workspace).dirname.readdir():
        ctx.symlink(path, path.basename)

# A folder of this repository, wherever that is.
_folder = repository_rule(
    implementation = _folder_impl,
    attrs = {"workspace": attr.label(mandatory = True)},
    local = True,
)

def bazel_rules():
    """Defines those that the workspace has not defined before."""
    for name, path in _DEBIAN.items():
        if not native.existing_rule(name):
            native.local_repository(name = name, path = path)

    # Debian's rules_cc does not load in this Bazel; the native rules serve.
    for name in ["rules_cc", "remote_coverage_tools"]:
        if not native.existing_rule(name):
            _folder(name = name, workspace = Label("//third_party/%s:WORKSPACE" % name))
