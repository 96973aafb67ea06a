#!/usr/bin/env python3
"""The form of every source file that git knows.

format.py check | fix

`check` names each fault and ends with status 1; `fix` mends what a program can mend, files not yet
added to git included.
"""

import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # the test leaves nothing in the source tree
import build_lists  # pylint: disable=wrong-import-position
import local_names  # pylint: disable=wrong-import-position
import named_tests  # pylint: disable=wrong-import-position
import std_includes  # pylint: disable=wrong-import-position

MAX_FILE_BYTES = 1000000
MAX_COLUMNS = 100
# Of a source, tests included. Longer ones hold two things: each gets a file and a name.
MAX_LINES = 500
LONGER = ("checkpoint/c/tessera_checkpoint.h",  # one public header
          "compute/kernels/cuda/testing/simt_host.cc",  # one machine
          "trainer/config/config.proto")  # the settings, each with its help
# Of a folder at the top, so that it can be read in a day: C++ and messages, without what is for
# tests. The C interface and the group over MPI are rooms of their own.
MAX_ROOM_LINES = 20000
LARGER_ROOMS = {"convert": 22000}  # ten formats
PRODUCT = re.compile(r"\.(cc|h|proto)$")
NO_PRODUCT = re.compile(r"_test\.|_fuzz\.|(^|/)(testing|testdata|tests|examples)/|"
                        r"^checkpoint/(c|mpi)/")
BUILD_FILES = ("BUILD", "BUILD.bazel")
# Packages that any other may use.
LIBRARIES = ("base/", "checkpoint/c/", "checkpoint/mpi/", "comm/", "convert/", "layout/",
             "storage/", "tensor/", "tests/worlds/power/")
FIX_COMMAND = "./bazelw run //tests/format:fix"
FILES_PER_FORMATTER = 16
CLANG_FORMAT_MAJOR = 14  # other versions format some lines otherwise

CPP = re.compile(r"\.(cc|h|cu|cuh|proto)$")
WRAPPED = re.compile(r"(\.(cc|h|cu|cuh|proto|py|sh|bzl|bazel|md|html|textproto)|/\.ci/run)$")
# Kept byte for byte, whatever they look like. The folders of tests/interop/NAME are what the
# program of that name wrote, or imitations: docs/convert.md says which.
FIXTURE = re.compile(r"(^|/)(corpus|fixtures|golden|testdata)/|^tests/interop/[^/]+/[^/]+/")
# A table's row cannot be wrapped in Markdown, nor can a word.
UNWRAPPABLE = re.compile(r"\|.*\||[ #/*-]*[^ ]+")
TRAILING_SPACE = re.compile(r"[ \t\r]+$", re.MULTILINE)

# Comments that one understands only at the second reading: "null where there is none", "a text that
# is no number", "the size is that of the file", "Of the first group.".
COMMENT = re.compile(r"(?:^|[ \t])//[/!]? (.*)")
HARD_TO_READ = re.compile(r"(^| )(is|are) (none|that of|those of)([ ,.;:)]|$)")
NEGATED_NOUN = re.compile(r"(^| )(is|are) no [a-z]")
PLAIN_NEGATION = re.compile(r"[Tt]here (is|are) no |no (longer|more) ")
UNFINISHED = re.compile(r"[a-z,(]$")


def list_files(*options):
    """Source files; git's own options choose which. Without a repository, as in an unpacked
    archive: all files."""
    git = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z", *options],
                         capture_output=True, check=False)
    if git.returncode == 0:
        names = set(os.fsdecode(git.stdout).split("\0")) - {""}
    else:
        names = {path.as_posix() for path in pathlib.Path().rglob("*")
                 if not re.match(r"bazel-|runs/", path.as_posix())}
    # What git still knows may be deleted.
    return sorted(name for name in names if os.path.isfile(name) and not os.path.islink(name))


def text_of(name):
    """The text of a file that is to have the form of a text, None for others."""
    content = pathlib.Path(name).read_bytes()
    if FIXTURE.search(name) or b"\0" in content:
        return None
    return content.decode(errors="surrogateescape")


def header_guard_faults(name, text):
    """TESSERA_PATH_FILE_H_ in the #ifndef, the #define and after the last #endif. What is compiled
    once for each of Highway's targets has the guard that its toggle turns."""
    guard = "TESSERA_" + re.sub(r"[^A-Z0-9]", "_", name.upper()) + "_"
    lines = text.splitlines()
    if name.endswith("-inl.h"):
        if f"#if defined({guard}) == defined(HWY_TARGET_TOGGLE)" not in lines:
            yield f"{name}: the header guard is not {guard}, toggled"
        return
    found = [line for line in lines if re.match(r"#(ifndef|define)", line)][:2] + lines[-1:]
    if found != [f"#ifndef {guard}", f"#define {guard}", f"#endif  // {guard}"]:
        yield f"{name}: the header guard is not {guard}"


def visibility_faults(name, text):
    """Packages are private; what they offer is widened target by target. The public ones: the
    system libraries, what is in base, and the interfaces of checkpoint and convert."""
    if name.startswith("third_party/") or name in ("checkpoint/BUILD.bazel",
                                                   "convert/BUILD.bazel"):
        return
    if ("default_visibility" in text and
            'default_visibility = ["//visibility:private"]' not in text):
        yield f"{name}: the default visibility of a package is private"
    if name.startswith(LIBRARIES):
        return
    for number, line in enumerate(text.splitlines(), 1):
        if "//visibility:public" in line:
            yield f"{name}:{number}: //visibility:public; name the packages that need it"
            return


def comment_faults(name, text):
    """Comments that are hard to read, and lines of a comment that stand twice."""
    comment = line_before = ""
    for number, line in enumerate(text.split("\n"), 1):
        before, found = comment, COMMENT.search(line)
        comment = found.group(1) if found else ""
        if (HARD_TO_READ.search(comment) or
                NEGATED_NOUN.search(comment) and not PLAIN_NEGATION.search(comment) or
                comment.startswith("Of ") and not UNFINISHED.search(before)):
            yield f"{name}:{number}: hard to read: {comment}"
        if len(comment) > 3 and line == line_before:
            yield f"{name}:{number}: twice: {comment}"
        line_before = line


def text_faults(name, text):
    """Faults of any text: spaces at ends of lines, a missing last newline, and long lines."""
    if found := TRAILING_SPACE.search(text):
        yield f"{name}:{text.count(chr(10), 0, found.start()) + 1}: trailing whitespace"
    if text and not text.endswith("\n"):
        yield f"{name}: no newline at the end"
    if WRAPPED.search(name):
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > MAX_COLUMNS and not UNWRAPPABLE.fullmatch(line):
                yield f"{name}:{number}: more than {MAX_COLUMNS} columns"
                return


def file_faults(name):
    """All faults of one file, apart from clang-format's."""
    size = os.path.getsize(name)
    if size > MAX_FILE_BYTES:
        yield f"{name}: {size} bytes; at most {MAX_FILE_BYTES} belong into git"
    text = text_of(name)
    if text is None:
        return
    yield from text_faults(name, text)
    if name.endswith((".h", ".cuh")):
        yield from header_guard_faults(name, text)
    if CPP.search(name):
        if text.count("\n") > MAX_LINES and name not in LONGER:
            yield f"{name}: {text.count(chr(10))} lines; at most {MAX_LINES} in a source"
        yield from comment_faults(name, text)
        for header in std_includes.missing(name, text):
            yield f"{name}: uses names of <{header}>, which it does not include"
    if os.path.basename(name) in BUILD_FILES:
        yield from visibility_faults(name, text)
        yield from build_lists.faults(name, text)


def room_faults(lines_of):
    """Rooms with too many lines, of the lines of each file."""
    rooms = collections.Counter()
    for name, lines in lines_of.items():
        if PRODUCT.search(name) and not NO_PRODUCT.search(name):
            rooms[name.split("/")[0]] += lines
    for room, lines in sorted(rooms.items()):
        limit = LARGER_ROOMS.get(room, MAX_ROOM_LINES)
        if lines > limit:
            yield f"{room}/: {lines} lines of product code; at most {limit} in a room"


def formatter_fault(version):
    """What is wrong with the clang-format that says this of its version; None: nothing."""
    major = re.search(r"version (\d+)\.", version)
    if major and int(major[1]) == CLANG_FORMAT_MAJOR:
        return None
    return (f"clang-format is \"{version.strip()}\", and the sources are formatted by version "
            f"{CLANG_FORMAT_MAJOR}, Debian 12's: install the package "
            f"clang-format-{CLANG_FORMAT_MAJOR} and have its program come first in PATH as "
            "clang-format")


def run_formatter(names, *options):
    """Runs clang-format over many files, two processes at a time; returns what they say."""
    def run(batch):
        return subprocess.run(["clang-format", *options, *batch], capture_output=True, text=True,
                              check=False)
    batches = [names[i:i + FILES_PER_FORMATTER] for i in range(0, len(names), FILES_PER_FORMATTER)]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for done in pool.map(run, batches):
            if done.returncode != 0:
                errors = [line for line in done.stderr.splitlines() if "error:" in line]
                yield from errors or [f"clang-format: {done.stderr}"]


def check():
    """Prints every fault; returns the exit status."""
    files = list_files()
    cpp = [name for name in files if CPP.search(name)]
    faults = [fault for name in files for fault in file_faults(name)]
    faults += run_formatter(cpp, "--dry-run", "-Werror", "--ferror-limit=1")
    faults += room_faults({name: pathlib.Path(name).read_bytes().count(b"\n") for name in cpp})
    faults += local_names.faults(files)
    faults += named_tests.faults()
    if not files:
        faults.append(f"no source files found in {os.getcwd()}")
    if faults:
        print(*faults, sep="\n")
        print(f"Formatting, trailing whitespace, includes and lists are mended by: {FIX_COMMAND}")
        return 1
    print(f"{len(files)} files, {len(cpp)} of them formatted by clang-format: all well")
    return 0


def fix():
    """Mends layout, spaces at ends of lines, missing last newlines, missing includes of the
    standard library and the order of lists; returns the exit status."""
    files = list_files("--cached", "--others", "--exclude-standard")
    # Only files that need it are written, so that nothing is rebuilt for nothing.
    for name in files:
        text = text_of(name)
        if text is None:
            continue
        mended = TRAILING_SPACE.sub("", text)
        mended += "" if not mended or mended.endswith("\n") else "\n"
        if headers := std_includes.missing(name, mended):
            mended = std_includes.add(headers, mended)
        if os.path.basename(name) in BUILD_FILES:
            mended = build_lists.fix(mended)
        if mended != text:
            pathlib.Path(name).write_bytes(mended.encode(errors="surrogateescape"))
    errors = list(run_formatter([name for name in files if CPP.search(name)], "-i"))
    print("\n".join(errors), end="\n" if errors else "")
    return 1 if errors else 0


def main():
    if sys.argv[1:] not in (["check"], ["fix"]):
        sys.exit("usage: format.py check | fix")
    # The test runs outside the sandbox, where its own path leads back to the source tree; `bazel
    # run` names the tree.
    os.chdir(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or
             pathlib.Path(__file__).resolve().parents[2])
    if not os.path.exists("WORKSPACE"):
        sys.exit(f"{os.getcwd()} is not the source tree: run this test outside the sandbox")
    if not shutil.which("clang-format"):
        sys.exit("clang-format is missing: run ./bazelw once")
    fault = formatter_fault(subprocess.run(["clang-format", "--version"], capture_output=True,
                                           text=True, check=True).stdout)
    if fault:
        sys.exit(fault)
    sys.exit(check() if sys.argv[1] == "check" else fix())


if __name__ == "__main__":
    main()
