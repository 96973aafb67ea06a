"""No kernel of ours spills registers or uses local memory, on any architecture.

spill_test.py REPORT...: what ptxas -v said of each source, as nvcc wrote it.
"""

import pathlib
import re
import sys
import unittest

# Kernels with an array that is indexed by numbers that only the run knows: a part of their mangled
# names, and the bytes of stack that it takes. Neither is hot: they read a few partial results.
ALLOWED_STACK = {"CrossEntropyLossRows": 384, "AddRunsILi2E": 16}

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
PROPERTIES = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
ARCHITECTURES = {"sm_80", "sm_90a"}


def entries(report):
    """(kernel, architecture, stack, stores, loads) of each compiled kernel."""
    kernel = None
    for line in report.splitlines():
        if match := ENTRY.search(line):
            kernel = match.groups()
        elif (match := PROPERTIES.search(line)) and kernel:
            yield (*kernel, *map(int, match.groups()))
            kernel = None


class SpillTest(unittest.TestCase):
    def test_no_kernel_spills(self):
        wrong = []
        for path in REPORTS:
            for kernel, architecture, stack, stores, loads in entries(path.read_text()):
                allowed = max((v for k, v in ALLOWED_STACK.items() if k in kernel), default=0)
                if stores or loads or stack > allowed:
                    wrong.append(
                        f"{kernel} on {architecture}: {stack} bytes of stack, {stores} bytes of "
                        f"spill stores, {loads} bytes of spill loads"
                    )
        self.assertEqual(wrong, [])

    def test_every_architecture_is_there(self):
        found = {path.name: set() for path in REPORTS}
        for path in REPORTS:
            for _, architecture, *_ in entries(path.read_text()):
                found[path.name].add(architecture)
        some = {name: which for name, which in found.items() if which}
        self.assertGreaterEqual(len(some), 10)
        for name, which in some.items():
            self.assertLessEqual(ARCHITECTURES, which, name)


class EntriesTest(unittest.TestCase):
    """That the test would find what it looks for."""

    def test_a_spill_is_found(self):
        report = """ptxas info    : Compiling entry function '_Z1kPf' for 'sm_80'
ptxas info    : Function properties for _Z1kPf
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, 400 bytes cmem[0]
"""
        self.assertEqual(list(entries(report)), [("_Z1kPf", "sm_80", 16, 8, 4)])


if __name__ == "__main__":
    REPORTS = [pathlib.Path(name) for name in sys.argv[1:]]
    del sys.argv[1:]
    unittest.main()
