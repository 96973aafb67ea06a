#!/usr/bin/env python3
"""Rules of the form: the version of clang-format, and how many lines a room may have."""

import unittest

import format as source_format


class FormatTest(unittest.TestCase):
    def test_the_version_of_the_sources_alone_is_taken(self):
        for version in ("Debian clang-format version 14.0.6", "clang-format version 14.0.0-1"):
            self.assertIsNone(source_format.formatter_fault(version + "\n"))
        for version in ("clang-format version 15.0.7", "clang-format version 4.14.0", "none"):
            fault = source_format.formatter_fault(version + "\n")
            self.assertIn(f'clang-format is "{version}"', fault)
            self.assertIn("install the package clang-format-14", fault)

    def test_a_room_that_is_too_large_is_named(self):
        lines = {"base/a.cc": 19000, "base/a.h": 1000, "base/a_test.cc": 500, "base/testing/a.h": 9}
        self.assertEqual(list(source_format.room_faults(lines)), [])
        lines.update({"base/a.proto": 1, "convert/a.cc": 22000, "checkpoint/c/a.cc": 30000})
        self.assertEqual(list(source_format.room_faults(lines)),
                         ["base/: 20001 lines of product code; at most 20000 in a room"])


if __name__ == "__main__":
    unittest.main()
