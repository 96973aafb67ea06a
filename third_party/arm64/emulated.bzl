"""Programs for 64-bit ARM that run on an emulated processor, beside those of this machine."""

load("@arm64//:root.bzl", "EMULATOR", "ROOT")

# As --config=arm64.
_OPTIONS = {
    "//command_line_option:cpu": "aarch64",
    "//command_line_option:crosstool_top": "@arm64//:toolchain",
    "//command_line_option:host_crosstool_top": "@compiler//:toolchain",
}

def _for_arm64_impl(_settings, _attr):
    return _OPTIONS

_for_arm64 = transition(
    implementation = _for_arm64_impl,
    inputs = [],
    outputs = _OPTIONS.keys(),
)

_RUN = """#!/bin/bash
# Runs the program beside this file.
exec %s -cpu %s -L %s "${BASH_SOURCE[0]}.aarch64" "$@"
"""

_SKIP = """#!/bin/bash
echo "SKIPPED: there was no emulator, or no folder of third_party/arm64/install.sh (needs: arm64)"
"""

def _emulated_impl(ctx):
    script = ctx.actions.declare_file(ctx.label.name)
    runfiles = ctx.runfiles()
    if ctx.attr.program:
        program = ctx.attr.program[0][DefaultInfo]
        binary = ctx.actions.declare_file(ctx.label.name + ".aarch64")
        ctx.actions.symlink(
            output = binary,
            target_file = program.files_to_run.executable,
            is_executable = True,
        )
        runfiles = ctx.runfiles([binary]).merge(program.default_runfiles)
    run = _RUN % (EMULATOR, ctx.attr.processor, ROOT)
    ctx.actions.write(script, run if ctx.attr.program else _SKIP, is_executable = True)
    return [DefaultInfo(executable = script, runfiles = runfiles)]

_ATTRIBUTES = {
    "processor": attr.string(default = "max"),
    "program": attr.label(cfg = _for_arm64),
    "_allowlist_function_transition": attr.label(
        default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
    ),
}

_emulated_binary = rule(implementation = _emulated_impl, attrs = _ATTRIBUTES, executable = True)
_emulated_test = rule(implementation = _emulated_impl, attrs = _ATTRIBUTES, test = True)

def emulated_binary(name, program, **others):
    """A program, built for 64-bit ARM, that runs on an emulated processor.

    Where the emulator or that machine's packages are missing, the program is not built, and NAME
    prints that it was skipped.

    Args:
      name: of the target.
      program: a label.
      **others: `processor`, as qemu-aarch64's -cpu: one with SVE by default; and those of all
        rules.
    """
    _emulated_binary(name = name, program = program if EMULATOR else None, **others)

def emulated_test(name, program, **others):
    """Likewise, for a test."""
    _emulated_test(name = name, program = program if EMULATOR else None, **others)
