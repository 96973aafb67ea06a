"""Packs the checkpoint library for programs that are built without Tessera's sources.

  make_sdk.py --output=FILE.tar.gz --wheel=FILE.whl --archive=LIBRARY.a --link-flags=FILE
      [--absl-target=LABEL ...] FILE...

FILE: headers, in the folders that they have in the sources, the documents that they name, and files
that Bazel needs. The archive
is the C++ interface, and needs Debian's libraries; the C interface is the shared library of the
wheel, with all that it needs beside it. No file names a folder outside of the SDK, which can be
unpacked anywhere.
"""

import argparse
import gzip
import io
import os
import pathlib
import re
import subprocess
import tarfile
import zipfile

MAX_BYTES = 16_000_000
HERE = pathlib.Path(__file__).parent

# Of each library that the archive needs: pkg-config's name, and Debian's package.
PACKAGES = {
    "crypto": ("libcrypto", "libssl-dev"),
    "protobuf": ("protobuf", "libprotobuf-dev"),
    "pugixml": ("pugixml", "libpugixml-dev"),
    "uring": ("liburing", "liburing-dev"),
}
# Files whose place in the SDK is not the one in the sources.
PLACES = {"sdk/repositories.bzl": "third_party/repositories.bzl", "sdk/sdk.BUILD": "BUILD.bazel"}
TEMPLATES = {
    "TesseraCheckpointConfig.cmake": "lib/cmake/TesseraCheckpoint",
    "TesseraCheckpointConfigVersion.cmake": "lib/cmake/TesseraCheckpoint",
    "tessera-checkpoint.pc": "lib/pkgconfig",
    "tessera-checkpoint-c.pc": "lib/pkgconfig",
}
# Targets of Bazel, as in the sources.
ALIASES = {"checkpoint": "checkpoint", "checkpoint/c": "c", "layout": "checkpoint",
           "storage": "checkpoint"}


def name_in_sources(path):
    """Without the folder of Bazel's outputs."""
    return re.sub(r"^bazel-out/[^/]+/bin/", "", path)


CHECK_OF_STANDARD = """
#if __cplusplus < 202002L
#error "Tessera's headers are C++20: compile with -std=c++20"
#endif
"""


def header(name, text, headers):
    """The text of a header that finds the others whatever the program's own folders are called, and
    says what is wrong where the compiler would say it in many words."""
    def replace(match):
        if match[1] in headers:
            return f'#include "{os.path.relpath(match[1], os.path.dirname(name))}"'
        if not match[1].startswith(("absl/", "google/")):
            raise SystemExit(f"{name} includes {match[1]}, which is not in the SDK")
        return match[0]
    text = re.sub(r'#include "([^"]+)"', replace, text)
    if name.endswith(".pb.h") or 'extern "C"' in text:
        return text
    return re.sub(r"^#define \w+_H_\n", lambda guard: guard[0] + CHECK_OF_STANDARD, text, count=1,
                  flags=re.MULTILINE)


def absl_version():
    """Of the headers with which the archive is compiled."""
    macros = subprocess.run(["clang++", "-dM", "-E", "-x", "c++", "-include", "absl/base/config.h",
                             "/dev/null"], check=True, capture_output=True, text=True).stdout
    return re.search(r"ABSL_LTS_RELEASE_VERSION (\d+)", macros)[1]


def fill(template, values):
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], template)


def contents(flags, version):
    """The bytes of each file, by its place in the SDK."""
    files = {"lib/libtessera_checkpoint_cxx.a": pathlib.Path(flags.archive).read_bytes()}
    with zipfile.ZipFile(flags.wheel) as wheel:
        for name in wheel.namelist():
            if found := re.fullmatch(r"tessera_ckpt/(lib/.*)", name):
                files[found[1]] = wheel.read(name)
            elif found := re.search(r"\.dist-info/(licenses/.*)", name):
                files[found[1]] = wheel.read(name)
    sources = {name_in_sources(path): pathlib.Path(path) for path in flags.file
               if not path.endswith((".a", ".cc", ".o"))}
    headers = {name for name in sources if name.endswith(".h")}
    for name, path in sources.items():
        if name in headers:
            files[f"include/{name}"] = header(name, path.read_text(), headers).encode()
        elif not name.endswith(".in"):
            files[PLACES.get(name, name)] = path.read_bytes()
    link_flags = pathlib.Path(flags.link_flags).read_text().split()
    needed = sorted(flag[2:] for flag in link_flags if re.fullmatch(r"-l\w+", flag))
    targets = [re.sub(r".*[/:]", "", label) for label in flags.absl_target]
    absl = absl_version()
    values = {
        "ABSL_TARGETS": ";".join(f"absl::{target}" for target in targets),
        "ABSL_VERSION": absl,
        # Bazel links as it does where it builds the library.
        "LINK_FLAGS": "".join(f'\n        "{flag}",' for flag in link_flags) + "\n    ",
        "PACKAGES": " ".join(f'"{name}|{PACKAGES[name][1]}"' for name in needed),
        "REQUIRES": ", ".join([*(f"absl_{target} = {absl}" for target in targets),
                               *(PACKAGES[name][0] for name in needed)]),
        "VERSION": version,
    }
    for name, folder in TEMPLATES.items():
        files[f"{folder}/{name}"] = fill((HERE / f"{name}.in").read_text(), values).encode()
    files["BUILD.bazel"] = fill(files["BUILD.bazel"].decode(), values).encode()
    files["WORKSPACE"] = b'workspace(name = "tessera")\n'
    for folder, target in ALIASES.items():
        files[f"{folder}/BUILD.bazel"] = (
            f'alias(\n    name = "{folder.rpartition("/")[2]}",\n    actual = "//:{target}",\n'
            '    visibility = ["//visibility:public"],\n)\n').encode()
    return files


def write(output, root, files):
    """The same bytes for the same contents."""
    with open(output, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, 0) as packed, \
            tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size, entry.mode = len(data), 0o755 if ".so" in name else 0o644
            archive.addfile(entry, io.BytesIO(data))
    if (size := os.path.getsize(output)) > MAX_BYTES:
        raise SystemExit(f"{output} has {size} bytes, of {MAX_BYTES}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("output", "wheel", "archive", "link-flags"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--absl-target", action="append")
    parser.add_argument("file", nargs="+")
    flags = parser.parse_args()
    version = os.path.basename(flags.wheel).split("-")[1]
    write(flags.output, f"tessera-checkpoint-{version}", contents(flags, version))


if __name__ == "__main__":
    main()
