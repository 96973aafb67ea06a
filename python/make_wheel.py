"""Packs the Python package, the library of the C interface, and what that needs, into a wheel.

  make_wheel.py --output=FILE.whl --library=libtessera_checkpoint.so
      --glibc=libtessera-glibc.so [--root=FOLDER] FILE...

FILE: those of the package. The libraries of other projects that the library needs are in lib/,
under names of their own, so that they meet no other copies in a process; their licenses are in the
.dist-info folder. They are those of the Debian in the folder `root`, for the machine that the name
of the wheel ends with. The wheel fits every Python from 3.9: it has no code that depends on one.

The libraries are built for a newer glibc than that of the wheel's tag. What they take from it, they
find under any version (UNCHANGED), or in a library of ours (glibc.c). The C++ standard library is
one of those that the wheel has; its symbols' versions have a name of our own, so that no program's
other copy of it is taken for ours.
"""

import argparse
import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import zipfile

from tools.build_rules.portable import OF_EVERY_MACHINE, copy, look_in, patch, strip
from tools.build_rules.symbol_versions import Library

NAME = "tessera_ckpt"
LIBRARY = "libtessera_checkpoint.so"
MAX_BYTES = 10_000_000

STANDARD_LIBRARY = "libstdc++.so.6"
PRIVATE_VERSIONS = {"GLIBCXX": "TESSERA", "CXXABI": "TESABI"}

# By machine: the number that ELF has for it, and an old version that each library of glibc has that
# ours ask for a newer one.
MACHINES = {"x86_64": (62, "GLIBC_2.4"), "aarch64": (183, "GLIBC_2.17")}
# Functions whose newest version means what glibc 2.28 has under an older one: they have moved into
# libc.so.6, or no longer set errno as SVID did.
UNCHANGED = {
    "dladdr", "dlclose", "dlerror", "dlopen", "dlsym", "exp", "log", "log2", "pow",
    "pthread_condattr_setclock", "pthread_create", "pthread_detach", "pthread_getspecific",
    "pthread_join", "pthread_key_create", "pthread_key_delete", "pthread_once",
    "pthread_rwlock_destroy", "pthread_rwlock_init", "pthread_rwlock_rdlock",
    "pthread_rwlock_unlock", "pthread_rwlock_wrlock", "pthread_setspecific", "pthread_sigmask"}

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

ENTRY_POINTS = """[console_scripts]
tessera-ckpt = tessera_ckpt.__main__:main
"""

WHEEL = """Wheel-Version: 1.0
Generator: make_wheel
Root-Is-Purelib: false
Tag: {tag}
"""


def numbers(version):
    """(2, 34) for GLIBC_2.34."""
    return tuple(map(int, re.findall(r"\d+", version)))


def parse_tag(tag):
    """((2, 28), "x86_64") for manylinux_2_28_x86_64."""
    major, minor, machine = re.search(r"manylinux_(\d+)_(\d+)_(\w+)$", tag).groups()
    return (int(major), int(minor)), machine


def tool(machine, name):
    """Of Debian's binutils, which are the machine's own or those for another one."""
    return name if machine == platform.machine() else f"{machine}-linux-gnu-{name}"


def check_tag(tag, files):
    """That the files run where the tag says, and beside another C++ standard library."""
    glibc, machine = parse_tag(tag)
    available = set(UNCHANGED)
    for path in files:
        library = Library(path)
        if library.machine != MACHINES[machine][0]:
            sys.exit(f"{path.name} is not for {machine}")
        available |= {name for name, _, defined, _ in library.symbols() if defined}
    for path in files:
        output = subprocess.run([tool(machine, "objdump"), "-T", str(path)], check=True,
                                capture_output=True, text=True).stdout
        if newer := {version for version in re.findall(r"GLIBC_[\d.]+", output)
                     if numbers(version) > glibc}:
            sys.exit(f"{path.name} needs {newer}, the tag says {tag}")
        if shared := re.findall(r".* u .*|.*(?:GLIBCXX|CXXABI)_.*", output):
            sys.exit(f"{path.name} shares symbols with other C++ standard libraries: {shared}")
        unversioned = set(re.findall(r"^0+ {6}D. \*UND\*\s+0+ +(\w+)$", output, re.MULTILINE))
        if missing := unversioned - available:
            sys.exit(f"{path.name} finds no {missing} in the wheel")


def patch_output(path, flag):
    return subprocess.run(["patchelf", flag, str(path)], check=True, capture_output=True,
                          text=True).stdout.strip()


def needed_by(path):
    """The names of the libraries that a file itself asks for."""
    return set(patch_output(path, "--print-needed").split())


def needed_libraries(path, folder):
    """The names of the libraries in the folder that a file needs, at any depth."""
    names, waiting = set(), [path]
    while waiting:
        for name in needed_by(waiting.pop()) - names:
            if name == STANDARD_LIBRARY or not OF_EVERY_MACHINE.match(name):
                if not (folder / name).exists():
                    sys.exit(f"{path} needs {name}, which is not in {folder}")
                names.add(name)
                waiting.append(folder / name)
    return names


def own_name(name):
    return f"libtessera-{name.removeprefix('lib')}"


def make_compatible(path, tag, glibc):
    """Takes from glibc what that of the tag has, the rest from ours, and C++ from the wheel's."""
    library = Library(path)
    newest, machine = parse_tag(tag)
    names = library.drop_versions({
        version for version, *_ in library.needed()
        if version.startswith("GLIBC_") and numbers(version) > newest}, MACHINES[machine][1])
    ours = {name for name, _, defined, _ in Library(glibc).symbols() if defined}
    if unknown := names - UNCHANGED - ours:
        sys.exit(f"{path.name} needs {unknown}, which the glibc of {tag} does not have")
    library.rename_versions(PRIVATE_VERSIONS)
    library.keep_apart()
    library.save()


def add_libraries(library, glibc, tag, root, folder):
    """Copies the library and those that it needs. Returns the paths of what was copied of other
    projects."""
    machine = parse_tag(tag)[1]
    system = root / f"usr/lib/{machine}-linux-gnu"
    needed = sorted(needed_libraries(library, system))
    targets = [folder / own_name(name) for name in needed]
    for name, target in zip(needed, targets):
        copy(system / name, target)
    main, compatible = folder / LIBRARY, folder / pathlib.Path(glibc).name
    copy(library, main)
    copy(glibc, compatible)
    for path in (main, compatible, *targets):
        path.chmod(0o755)
        strip(path, tool(machine, "strip"))
        # One at a time: several at once have given libraries each other's names.
        for name in sorted(needed_by(path) & set(needed)):
            patch(path, "--replace-needed", name, own_name(name))
        if path in targets:
            patch(path, "--set-soname", path.name)
        if path != compatible:
            patch(path, "--add-needed", compatible.name)
        look_in(path, "$ORIGIN")
        if path != main and patch_output(path, "--print-soname") != path.name:
            sys.exit(f"{path.name} is not called so in itself")
        make_compatible(path, tag, glibc)
    if STANDARD_LIBRARY in needed_libraries(main, folder):
        sys.exit(f"{LIBRARY} still needs {STANDARD_LIBRARY}")
    return [system / name for name in needed]


def add_licenses(libraries, root, machine, folder):
    """The copyright files of the packages that the libraries are from."""
    # dpkg knows a file by the name by which its package has it, below /usr or not; of another
    # machine's, it knows this one's.
    names = {path: ("/" + path.resolve().relative_to(root.resolve()).as_posix()).replace(
        machine, platform.machine()).removeprefix("/usr") for path in libraries}
    told = subprocess.run(
        ["dpkg", "-S", *(start + name for name in names.values() for start in ("/usr", ""))],
        check=False, capture_output=True, text=True).stdout
    owners = {}
    for line in told.splitlines():
        packages, _, file = line.partition(": ")
        owners[file.removeprefix("/usr")] = packages.partition(":")[0]
    for path in libraries:
        package = owners.get(names[path], "")
        notice = root / "usr/share/doc" / package / "copyright"
        if not package or not notice.exists():
            sys.exit(f"{path}: no package, or no copyright file of it")
        copy(notice, folder / package)


def write(root, output):
    """The same bytes for the same contents."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    record = next(root.glob("*.dist-info")) / "RECORD"
    lines = []
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
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
    parser.add_argument("--glibc", required=True)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path("/"))
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
        libraries = add_libraries(flags.library, flags.glibc, tag, flags.root, root / NAME / "lib")
        check_tag(tag, list((root / NAME / "lib").iterdir()))
        add_licenses(libraries, flags.root, parse_tag(tag)[1], info / "licenses")
        (info / "METADATA").write_text(METADATA.format(version=version))
        (info / "entry_points.txt").write_text(ENTRY_POINTS)
        (info / "WHEEL").write_text(WHEEL.format(tag=tag))
        write(root, flags.output)
    if (size := pathlib.Path(flags.output).stat().st_size) > MAX_BYTES:
        sys.exit(f"{flags.output} has {size} bytes, of {MAX_BYTES}")


if __name__ == "__main__":
    main()
