#!/usr/bin/env python3
"""Rules of the form: the version of clang-format, how many lines a room may have, lists in BUILD
files."""

import unittest

import build_lists
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

    def test_lists_of_build_files_are_put_in_order(self):
        text = """cc_folder(
    files = glob(["b.cc", "a.cc"]) + ["c.cc"],
    args = ["b", "a"],
    special = {"slow_test": dict(data = ["//b", "a"])},
    deps = [
        "@protobuf",
        "//a/b",
        # With a reason.
        "//a:c",
        "//a",
        ":own",
        "//a"
    ] + select({":cuda": ["//z", "//y"]}),
)
genrule(srcs = ["b", "a"])
"""
        mended = """cc_folder(
    files = glob(["a.cc", "b.cc"]) + ["c.cc"],
    args = ["b", "a"],
    special = {"slow_test": dict(data = ["a", "//b"])},
    deps = [
        ":own",
        "//a",
        # With a reason.
        "//a:c",
        "//a/b",
        "@protobuf",
    ] + select({":cuda": ["//y", "//z"]}),
)
genrule(srcs = ["b", "a"])
"""
        self.assertEqual([fault.split(": ")[0] for fault in build_lists.faults("BUILD", text)],
                         ["BUILD:2", "BUILD:4", "BUILD:5", "BUILD:13"])
        self.assertEqual(build_lists.fix(text), mended)
        self.assertEqual(list(build_lists.faults("BUILD", mended)), [])

    def test_a_list_of_a_build_file_that_is_repeated_is_named(self):
        text = "a(deps = [%s])\nb(data = [%s])\n"
        self.assertEqual(list(build_lists.faults("BUILD", text % (('"x", "y"',) * 2))), [])
        self.assertEqual(list(build_lists.faults("BUILD", text % (('"x", "y", "z"',) * 2))),
                         ["BUILD:2: the list of line 1 again: give it a name"])


if __name__ == "__main__":
    unittest.main()
