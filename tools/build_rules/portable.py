"""What makes programs and libraries run on other machines than this one: the shared libraries that
they need, beside them."""

import os
import re
import shutil
import subprocess
import sys

# Libraries of the machine: newer ones serve older programs, and CUDA's libraries are built for
# them.
OF_EVERY_MACHINE = re.compile(
    r"^(ld-linux-\w+(-64)?|libc|libm|libpthread|libdl|librt|libresolv|libutil|libanl|libnss_\w+|"
    r"libstdc\+\+|libgcc_s)\.so(\.\d+)*$")


def needed_libraries(program):
    """Paths of the shared libraries that the program loads at its start, by their names."""
    output = subprocess.run(["ldd", str(program)], check=True, capture_output=True, text=True)
    found = {}
    for line in output.stdout.splitlines():
        match = re.match(r"\s*(\S+) => (.+?)( \(0x[0-9a-f]+\))?$", line)
        if not match:
            continue
        name, path = match[1], match[2]
        if OF_EVERY_MACHINE.match(name):
            continue
        if path == "not found":
            sys.exit(f"{program} needs {name}, which is not on this machine")
        found[name] = path
    return found


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def strip(path, program="strip"):
    subprocess.run([program, "--strip-unneeded", str(path)], check=True)


def look_in(path, folders):
    patch(path, "--set-rpath", folders)


def patch(path, *arguments):
    subprocess.run(["patchelf", *arguments, str(path)], check=True)
