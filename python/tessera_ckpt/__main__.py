"""`python -m tessera_ckpt` and `tessera-ckpt`: the command `ckpt`, with its arguments."""

import ctypes
import os
import signal
import sys

from tessera_ckpt._library import library_path


def main() -> int:
    command = getattr(ctypes.CDLL(str(library_path())), "tessera_command", None)
    if command is None:
        print(f"{library_path()} has no commands", file=sys.stderr)
        return 2
    # The command returns when it is done: Python could not be interrupted before.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    words = [b"ckpt", *map(os.fsencode, sys.argv[1:])]
    return int(command(len(words), (ctypes.c_char_p * (len(words) + 1))(*words)))


if __name__ == "__main__":
    sys.exit(main())
