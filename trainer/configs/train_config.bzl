"""Runnable targets for shipped settings."""

def train_config(name):
    """`bazel run //trainer/configs:NAME -- --flag=value ...` trains with NAME.textproto, flags on top."""
    native.sh_binary(
        name = name,
        srcs = ["train.sh"],
        args = [
            "$(rootpath //trainer/app:train)",
            "$(rootpath %s.textproto)" % name,
        ],
        data = [
            name + ".textproto",
            "//trainer/app:train",
        ],
    )
