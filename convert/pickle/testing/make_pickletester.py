#!/usr/bin/env python3
"""Writes ../testdata/pickletester.tsv: what the tests of CPython's unpickler load, which is under
the licence of Python. A line is the result, a tab, and the pickle in hexadecimal digits. Results:
"loads"; "calls", if what the pickle calls fails; "malformed". Made with Python 3.11.
"""

import pathlib
import unittest
from test import test_pickle

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "testdata/pickletester.tsv"


class Recorded(test_pickle.CUnpicklerTests):
    results = {}

    def loads(self, buf, **kwds):
        self.results[bytes(buf)] = "loads"
        try:
            return super().loads(buf, **kwds)
        except Exception:
            calls = self._testMethodName in ("test_bad_reduce", "test_bad_newobj",
                                             "test_bad_newobj_ex")
            self.results[bytes(buf)] = "calls" if calls else "malformed"
            raise


if __name__ == "__main__":
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Recorded)
    assert unittest.TextTestRunner(verbosity=0).run(suite).wasSuccessful()
    OUTPUT.write_text("".join(f"{result}\t{contents.hex()}\n"
                              for contents, result in sorted(Recorded.results.items())))
