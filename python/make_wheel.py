"""Packs the Python package, the library of the C interface, and what that needs, into a wheel.

  make_wheel.py --output=FILE.whl --library=libtessera_checkpoint.so FILE...

FILE: those of the package. The libraries of other projects that the library needs are in lib/,
under names of their own, so that they meet no other copies in a process; their licenses are in the
.dist-info folder. The wheel fits every Python from 3.9: it has no code that depends on one.
"""

import argparse
import base64
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

from tools.build_rules.portable import copy, look_in, needed_libraries, patch, strip

NAME = "tessera_ckpt"
LIBRARY = "libtessera_checkpoint.so"

METADATA = """Metadata-Version: 2.1
Name: tessera-ckpt
Version: {version}
Summary: Checkpoints that fit any topology: atomic, checksummed, verified on every read
Requires-Python: >=3.9
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Provides-Extra: torch
Requires-Dist: torch>=2.4; extra == "torch"
Description-Content-Type: text/plain

Saves and loads the state of training runs, of numpy, torch or any library that speaks DLPack, under
any sharding. See docs/python.md.
"""

WHEEL = """Wheel-Version: 1.0
Generator: make_wheel
Root-Is-Purelib: false
Tag: {tag}
"""


def version_of(path, prefix):
    """The newest version of a library's symbols that a file needs: (2, 34) for glibc's 2.34."""
    output = subprocess.run(["objdump", "-T", str(path)], check=True, capture_output=True,
                            text=True).stdout
    found = re.findall(prefix + r"_(\d+(?:\.\d+)+)", output)
    return max((tuple(map(int, text.split("."))) for text in found), default=(0,))


def check_tag(tag, files):
    """That the files run where the tag says."""
    glibc = tuple(map(int, re.search(r"manylinux_(\d+)_(\d+)_x86_64$", tag).groups()))
    for path in files:
        if version_of(path, "GLIBC") > glibc:
            sys.exit(f"{path.name} needs glibc {version_of(path, 'GLIBC')}, the tag says {glibc}")
        if version_of(path, "GLIBCXX") > (3, 4, 30):
            sys.exit(f"{path.name} needs a libstdc++ newer than GCC 12's")


def patch_output(path, flag):
    return subprocess.run(["patchelf", flag, str(path)], check=True, capture_output=True,
                          text=True).stdout.strip()


def needed_by(path):
    """The names of the libraries that a file itself asks for."""
    return set(patch_output(path, "--print-needed").split())


def own_name(name):
    return f"libtessera-{name.removeprefix('lib')}"


def add_libraries(library, folder):
    """Copies the library and those that it needs. Returns the paths of what was copied."""
    needed = needed_libraries(library)
    targets = {name: folder / own_name(name) for name in needed}
    for name, source in needed.items():
        copy(source, targets[name])
    main = folder / LIBRARY
    copy(library, main)
    for path in (main, *targets.values()):
        path.chmod(0o755)
        strip(path)
        # One at a time: several at once have given libraries each other's names.
        for name in needed_by(path) & needed.keys():
            patch(path, "--replace-needed", name, own_name(name))
        if path != main:
            patch(path, "--set-soname", path.name)
        look_in(path, "$ORIGIN")
        if path != main and patch_output(path, "--print-soname") != path.name:
            sys.exit(f"{path.name} is not called so in itself")
    if outside := [path for path in needed_libraries(main).values()
                   if pathlib.Path(path).parent != folder]:
        sys.exit(f"{LIBRARY} still needs {outside}")
    return list(needed.values())


def add_licenses(libraries, folder):
    """The copyright files of the packages that the libraries are from."""
    for path in libraries:
        # dpkg knows a file by the name by which its package has it, below /usr or not.
        real = str(pathlib.Path(path).resolve())
        owner = subprocess.run(["dpkg", "-S", real, real.removeprefix("/usr")],
                               check=False, capture_output=True, text=True).stdout
        package = owner.partition(":")[0]
        notice = pathlib.Path("/usr/share/doc") / package / "copyright"
        if not package or not notice.exists():
            sys.exit(f"{path}: no package, or no copyright file of it")
        copy(notice, folder / package)


def write(root, output):
    """The same bytes for the same contents."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    record = next(root.glob("*.dist-info")) / "RECORD"
    lines = []
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as wheel:
        for path in paths:
            data, name = path.read_bytes(), path.relative_to(root).as_posix()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
            add(wheel, name, data, path.stat().st_mode)
        name = record.relative_to(root).as_posix()
        add(wheel, name, "".join(lines + [f"{name},,\n"]).encode(), 0o644)


def add(wheel, name, data, mode):
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (0o100000 | mode & 0o777) << 16
    wheel.writestr(entry, data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("file", nargs="+")
    flags = parser.parse_args()
    name, version, tag = re.fullmatch(r"(\w+)-([\d.]+)-(.+)\.whl",
                                      pathlib.Path(flags.output).name).groups()
    stated = next(re.search(r'__version__ = "(.*)"', pathlib.Path(file).read_text())[1]
                  for file in flags.file if file.endswith("_version.py"))
    if (name, version) != (NAME, stated):
        sys.exit(f"{flags.output} is named {name} {version}, the package is {NAME} {stated}")
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        for file in flags.file:
            copy(file, root / NAME / pathlib.Path(file).name)
        info = root / f"{NAME}-{version}.dist-info"
        libraries = add_libraries(flags.library, root / NAME / "lib")
        check_tag(tag, (root / NAME / "lib").iterdir())
        add_licenses(libraries, info / "licenses")
        (info / "METADATA").write_text(METADATA.format(version=version))
        (info / "WHEEL").write_text(WHEEL.format(tag=tag))
        write(root, flags.output)


if __name__ == "__main__":
    main()
