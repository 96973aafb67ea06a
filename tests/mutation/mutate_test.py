#!/usr/bin/env python3
"""Mutants of a source that is made up here, compiled together and chosen one by one."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import mutate

SOURCE = """
int Sum(int n, bool twice) {
  int sum = 0;  // 1 + 1 is no code
  for (int i = 1; i < n; ++i) {
    sum = sum +
          i;
  }
  if (twice) sum *= 2;
  return sum;
}
"""
MAIN = """
#include <cstdio>
#include "folder/sum.cc"
int main() { printf("%d %d", Sum(4, false), Sum(4, true)); }
"""
# What each mutant makes of the output, which is "6 12".
EXPECTED = {("number", "1"): "5 10", ("< to <=", "i < n"): "10 20",
            ("+ to -", "sum +\n          i"): "-6 -12", ("condition", "twice"): "12 6",
            ("number", "2"): "6 18"}


class MutateTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.root / "folder").mkdir()
        (self.root / "folder/sum.cc").write_text(SOURCE)
        (self.root / "main.cc").write_text(MAIN)
        self.drawn = mutate.draw(self.root, ["folder"], 1)

    def run_program(self, number):
        env = {**os.environ, "TESSERA_MUTANT": str(number), "TEST_TARGET": "//a:test",
               "TESSERA_REACHED": str(self.root / "reached")}
        return subprocess.run([self.root / "main"], env=env, text=True, check=True,
                              stdout=subprocess.PIPE).stdout

    def test_a_variable_chooses_the_mutant_that_counts(self):
        mutants = dict(self.drawn)
        self.assertEqual({(mutant.name, mutant.before) for mutant in mutants.values()},
                         set(EXPECTED))
        mutate.write(self.root, mutants)
        subprocess.run(["clang++", "-I", self.root, self.root / "main.cc", "-o",
                        self.root / "main"], check=True)
        (self.root / "reached").touch()
        self.assertEqual(self.run_program(0), "6 12")
        self.assertEqual(sorted((self.root / "reached").read_text().splitlines()),
                         [f"//a:test {number}" for number in sorted(mutants)])
        for number, mutant in mutants.items():
            self.assertEqual(self.run_program(number), EXPECTED[mutant.name, mutant.before])

    def test_a_line_has_one_mutant(self):
        chosen, left = mutate.apart(self.drawn, 5)
        self.assertEqual(sorted(mutant.line for mutant in chosen.values()), [4, 5, 8])
        self.assertEqual(left, [])
        self.assertEqual(mutate.apart(self.drawn, 1), (dict(self.drawn[:1]), self.drawn[1:]))

    def test_the_tests_of_its_folder_come_first(self):
        tests = {"//a/b:tests", "//a/b/c:own", "//a/bc:tests", "//d:one", "//e/f:tests", "//e:it"}
        self.assertEqual(list(mutate.in_turn(tests, "a/b", ["//a/...", "//x/...", "//d:one",
                                                            "//e/..."])),
                         [{"//a/b:tests", "//a/b/c:own"}, {"//a/bc:tests"}, {"//d:one"},
                          {"//e/f:tests", "//e:it"}])

    def test_errors_are_those_of_their_lines(self):
        mutants = dict(self.drawn)
        said = "folder/sum.cc:6:3: error: bad\nfolder/sum.cc:8:1: note: here\n"
        self.assertEqual({mutants[number].line for number in mutate.to_blame(said, mutants)}, {5})
        said = "folder/other.cc:5:3: error: bad\nfolder/sum.cc:8:1: note: here\n"
        self.assertEqual({mutants[number].line for number in mutate.to_blame(said, mutants)}, {8})
        with self.assertRaises(SystemExit):
            mutate.to_blame("folder/other.cc:5:3: error: bad\n", mutants)


if __name__ == "__main__":
    unittest.main()
