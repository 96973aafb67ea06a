"""Names each function that two joined sources of a folder define locally.

Sources of a folder that are compiled at once (tools/build_rules/folders.bzl; of kernels,
third_party/cuda/cuda.bzl) share an anonymous namespace, where two functions of one name are
overloads: a call could silently find the neighbour's. Such sources are to be listed in `apart`, or
one of the functions gets a better name.
Types and constants need no such test, since the compiler refuses their second definition.
"""

import collections
import pathlib
import re

# A function at the beginning of a line: its type, its name and a parenthesis.
FUNCTION = re.compile(r"^(?!\s|return|using|namespace|static_assert|TEST|INSTANTIATE|#)"
                      r"[\w:<>,&*\s\[\]]*?[\w>&*\]]\s[&*]?(\w+)\(")
BOUNDS = re.compile(r"TESSERA_BOUNDS\([^()]*\)\s+")  # before the names of kernels
FOR_OTHERS = re.compile(r"_(test|main|fuzz|benchmark)\.cc$")


class BuildFile(dict):
    """The names that a BUILD file knows: those of its own, cc_folder, cc_tests, simulated_twins,
    and, for all others, a function that does nothing."""

    def __init__(self, folder):
        super().__init__(cc_folder=self.library, cc_tests=self.tests, glob=self.glob,
                         simulated_twins=self.twins)
        self.folder = folder
        self.joined = []  # lists of sources that are compiled at once

    def __missing__(self, name):
        return lambda *_, **__: []

    def glob(self, include, exclude=(), **_):
        left_out = {path for pattern in exclude for path in self.folder.glob(pattern)}
        return sorted(path.relative_to(self.folder).as_posix() for pattern in include
                      for path in self.folder.glob(pattern) if path not in left_out)

    def library(self, files=(), exclude=(), apart=(), **_):
        files = files or [file for file in self.glob(["*.cc"], exclude)
                          if not FOR_OTHERS.search(file)]
        self.joined.append([file for file in files
                            if file.endswith(".cc") and file not in apart])

    def twins(self, srcs, **_):
        self.joined.append([file for file in srcs if file.endswith(".cc")])

    def tests(self, exclude=(), apart=(), special=(), **_):
        self.joined.append([file for file in self.glob(["*_test.cc"], exclude)
                            if file not in apart and file[:-len(".cc")] not in special])


def local_functions(path):
    """The names of the functions in the anonymous namespaces of a source."""
    names = set()
    inside = False
    for line in BOUNDS.sub("", path.read_text()).splitlines():
        if line == "namespace {":
            inside = True
        elif line == "}  // namespace":
            inside = False
        elif inside and (found := FUNCTION.match(line)):
            names.add(found.group(1))
    return names


def faults(files):
    """A sentence for each such function in the folders whose BUILD files are among the files."""
    found = []
    for path in [pathlib.Path(name) for name in files
                 if name.endswith("/BUILD.bazel") and not name.startswith("third_party/")]:
        build = BuildFile(path.parent)
        exec(compile(path.read_text(), str(path), "exec"), build)  # pylint: disable=exec-used
        for sources in build.joined:
            owners = collections.defaultdict(list)
            for source in sources:
                for name in local_functions(path.parent / source):
                    owners[name].append(source)
            found += [f"{path.parent / files[-1]}: {name}() is local to {files[0]}, too: rename "
                      "one of them, or list one in `apart`"
                      for name, files in sorted(owners.items()) if len(files) > 1]
    return found
