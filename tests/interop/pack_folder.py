"""Packs a folder into one file, for the corpus of a fuzz target that reads several files.

    python pack_folder.py FOLDER OUTPUT [NAME...]

Leaves out runs of zeros, and files of the given names. convert/testing/packed_folder.h
says what the file looks like.
"""

import pathlib
import re
import sys

RUN_OF_ZEROS = re.compile(b"\\0{48,}")


def parts(contents):
    """Pairs of an offset and the bytes there; the last one ends with the file."""
    begin = 0
    for run in RUN_OF_ZEROS.finditer(contents):
        if run.start() > begin:
            yield begin, contents[begin:run.start()]
        begin = run.end()
    yield begin, contents[begin:]


def main():
    folder, output, *left_out = sys.argv[1:]
    packed = []
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if not path.is_file() or path.name in left_out:
            continue
        contents = path.read_bytes()
        assert b"\n== " not in contents, path
        name = path.relative_to(folder).as_posix()
        packed += [f"== {name} {offset}\n".encode() + part for offset, part in parts(contents)]
    pathlib.Path(output).write_bytes(b"\n".join(packed))


if __name__ == "__main__":
    main()
