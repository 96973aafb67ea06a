#!/usr/bin/env python3
"""Another version of clang-format than the sources' is refused, with what to install."""

import unittest

import format as source_format


class VersionTest(unittest.TestCase):
    def test_the_version_of_the_sources_alone_is_taken(self):
        for version in ("Debian clang-format version 14.0.6", "clang-format version 14.0.0-1"):
            self.assertIsNone(source_format.formatter_fault(version + "\n"))
        for version in ("clang-format version 15.0.7", "clang-format version 4.14.0", "none"):
            fault = source_format.formatter_fault(version + "\n")
            self.assertIn(f'clang-format is "{version}"', fault)
            self.assertIn("install the package clang-format-14", fault)


if __name__ == "__main__":
    unittest.main()
