"""Runnable targets for shipped settings."""

def train_config(name):
    """A target that trains with NAME.textproto, and flags on top.

    `bazel run //trainer/configs:NAME -- --flag=value ...`
    Starts mpirun where the settings ask for more than one process; see launch.py.
    """
    native.sh_binary(
        name = name,
        srcs = ["train.sh"],
        args = [
            "$(rootpath launch.py)",
            "$(rootpath //trainer/app:train)",
            "$(rootpath //trainer/data:prepare_data)",
            "$(rootpath %s.textproto)" % name,
        ],
        data = [
            name + ".textproto",
            "launch.py",
            "//trainer/app:train",
            "//trainer/data:prepare_data",
        ],
        visibility = ["//tests:__subpackages__"],
    )

def audit_of_runs(name):
    """A target that executes steps of a run again: NAME.py, beside what starts a training."""
    programs = [
        "//trainer/configs:launch.py",
        "//trainer/app:train",
        "//trainer/data:prepare_data",
        "//tools/ckpt",
    ]
    native.sh_binary(
        name = name,
        srcs = [name + ".py"],
        args = ["$(rootpath %s)" % program for program in programs],
        data = programs + ["run_folder.py"],
        visibility = ["//tests:__subpackages__"],
    )
