"""Packs programs and the shared libraries that they need into one archive.

  make_bundle.py --output=FILE.tar.gz --max_bytes=N [--file=FOLDER:FILE ...] PROGRAM ...

The archive holds one folder, named after it: the programs, stripped, with the --file's in their
folders, and in lib/ every shared library that a program needs or opens, at any depth, except those
that belong to each machine: glibc's and the compiler's. Each file looks for what it needs in lib/
first.
"""

import argparse
import gzip
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

from tools.build_rules.portable import copy, look_in, needed_libraries, strip

OPENED_LATER = "libcurl.so.4"  # where a program is given the name of an object store


def is_program(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def fill(folder, programs, files):
    libraries = {}
    for place, source in files + [(".", program) for program in programs]:
        target = folder / place / os.path.basename(source)
        copy(source, target)
        if is_program(target):
            libraries.update(needed_libraries(source))
            strip(target)
            look_in(target, "$ORIGIN/lib:$ORIGIN/../lib")
    path = subprocess.run(["clang", f"-print-file-name={OPENED_LATER}"], check=True,
                          capture_output=True, text=True).stdout.strip()
    libraries.update(needed_libraries(path) | {OPENED_LATER: path})
    for name, source in libraries.items():
        copy(source, folder / "lib" / name)
        look_in(folder / "lib" / name, "$ORIGIN")


def write_archive(folder, output):
    """The same bytes for the same contents."""

    def plain(entry):
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    with open(output, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in paths:
            archive.add(path, path.relative_to(folder.parent), filter=plain)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--max_bytes", type=int, required=True)
    parser.add_argument("--file", action="append", default=[])
    parser.add_argument("program", nargs="+")
    flags = parser.parse_args()
    name = os.path.basename(flags.output).removesuffix(".tar.gz")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / name
        files = [tuple(file.split(":", 1)) for file in flags.file]
        fill(folder, flags.program, files)
        write_archive(folder, flags.output)
    size = os.path.getsize(flags.output)
    if size > flags.max_bytes:
        sys.exit(f"{flags.output} has {size} bytes; it may have {flags.max_bytes}")


if __name__ == "__main__":
    main()
