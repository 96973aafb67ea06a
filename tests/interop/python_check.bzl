"""Checks against the original programs, in Python. They are started by hand:

    ./bazelw test --test_env=TESSERA_PYTHON=/path/to/python //tests/interop:torch_check

Where a check "installs" packages, --test_env=TESSERA_PIP_INSTALL=1 lets it install them in a
virtual environment of its own instead.
"""

def python_check(name, args, data = [], size = "medium", tags = []):
    """A test NAME of NAME.sh, which runs NAME.py, if there is one, with TESSERA_PYTHON.

    Args:
      name: of the test.
      args: labels of targets, whose paths are the script's arguments, and other paths.
      data: further targets and files that it reads.
      size: of the test.
      tags: further tags.
    """
    labels = [arg for arg in args if arg[0] in "/:" or arg.endswith(".py") or arg.endswith(".md")]
    native.sh_test(
        name = name,
        size = size,
        srcs = [name + ".sh"],
        args = ["$(rootpath %s)" % arg if arg in labels else arg for arg in args],
        data = labels + [file for file in data if file not in labels],
        tags = ["manual"] + tags,
    )
