#!/usr/bin/env python3
"""Breaks sources on purpose and reports whether a test notices.

bazel run //tests/mutation:mutate -- --seed=1 --count=50 checkpoint/save checkpoint/manager

Draws --count mutants of the folders' sources (tests and testing/ apart) from --seed: an operator
that becomes another one, a condition that becomes its opposite, a call that is left out, an error
that is swallowed, a number that is one too large. They are compiled together, in a copy of the
committed tree, and the variable TESSERA_MUTANT chooses the one that counts; so two that share a
line are not drawn, and one that does not compile is replaced by another one. All tests of the
folders and of --wider run once without a mutant and tell which mutants they come to. Each mutant is
then tested by those that come to it: first by the tests of its own folder, then by those of each
other target, in their order. One line for each says "killed" and by what, or "SURVIVED". The last
line counts them.

--only=3,14 judges the mutants of these numbers again, of the same seed and sources. The copy is
--copy, which is kept for the next time, and has this tree's user.bazelrc.
"""

import argparse
import collections
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

# Binary operators, and what becomes of them.
SWAPS = {"==": "!=", "!=": "==", "<": "<=", ">": ">=", "<=": "<", ">=": ">", "&&": "||",
         "||": "&&", "+": "-", "-": "+"}
# Of these, and of what ends their operands. Other operators bind more strongly.
PRECEDENCE = collections.defaultdict(
    lambda: 9, {"||": 1, "&&": 2, "|": 3, "^": 3, "&": 3, "==": 4, "!=": 4, "<": 5, ">": 5,
                "<=": 5, ">=": 5, "<<": 6, ">>": 6, "+": 7, "-": 7, "*": 8, "/": 8, "%": 8},
    **dict.fromkeys((";", ",", "?", ":", "=", "+=", "-=", "|=", "&=", "return"), 0))
OPERATOR = re.compile(r"(?<=[\w)\]\"'}])\s(==|!=|<=|>=|<|>|&&|\|\||\+|-)\s+(?=[\w(!*&\"'-])")
TOKEN = re.compile(r"[()\[\]{};,]|\breturn\b|(?<=\s)[-=!<>&|+*/%^?:]+(?=\s)")
# What else may change: (name, pattern, text in its place). There, $M is whether the mutant counts,
# and $X what was there.
CHANGES = (
    ("condition",
     r"(?<=\bif \()(?!const|auto|TESSERA)(?:(?! [=!<>&|]|;).)+(?=\) (?![=!<>]).*[;{]$)",
     "$M != static_cast<bool>($X)"),
    ("call", r"(?<=[;{})]\n)\s+(?:[a-z]\w*(?:\.|->))?(?!TESSERA)[A-Z]\w*\([^;\n]*\);$",
     "if (!$M) { $X }"),
    ("error", r"(?<=TESSERA_RETURN_IF_ERROR\()[^;]+(?=\);$)",
     "$M ? (static_cast<void>($X), absl::OkStatus()) : $X"),
    ("error", r"return absl::\w+Error\([^;]*\);$", "{ if ($M) return absl::OkStatus(); $X }"),
    ("truth", r"\btrue\b", "!$M"),
    ("truth", r"\bfalse\b", "$M"),
    ("number", r"(?<![\w.'])(?<!p-)[1-9]\d*(?![\w.'])", "($M ? $X + 1 : $X)"),
)
NOT_CODE = re.compile(r"^\s*(#|using |namespace |LOG\(|static_assert|case |template)", re.MULTILINE)
HEAD = """#ifndef TESSERA_MUTANT
#define TESSERA_MUTANT
#pragma clang diagnostic ignored "-Weverything"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
inline const int tessera_mutant = getenv("TESSERA_MUTANT") ? atoi(getenv("TESSERA_MUTANT")) : 0;
// Notes the test that comes to a mutant. Uses no memory and no function that a test replaces.
inline bool NoteTesseraMutant(int number) {
  const char *const path = getenv("TESSERA_REACHED"), *const test = getenv("TEST_TARGET");
  if (path == nullptr || test == nullptr) return true;
  char line[300];
  const int size = snprintf(line, sizeof(line), "%s %d\\n", test, number);
  const long file = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CLOEXEC);
  syscall(SYS_write, file, line, size);
  syscall(SYS_close, file);
  return true;
}
template <int number>
bool TesseraMutant() {
  static const bool noted = NoteTesseraMutant(number);
  return number == tessera_mutant;
}
#endif
#line 1
"""
BAZEL_FLAGS = ("--noshow_progress", "--test_output=summary", "--build_tests_only",
               "--notest_keep_going", "--test_env=TESSERA_MUTANT", "--test_env=TESSERA_REACHED",
               "--test_env=GTEST_FAIL_FAST=1", "--test_timeout=180,600,1800,3600")

Mutant = collections.namedtuple("Mutant", "file line last_line begin end name before after")


def blank(text, strings):
    """The text without its comments, and perhaps without the contents of strings; as long."""
    def spaces(match):
        found = match.group()
        if found.startswith("/"):
            return " " * len(found)
        return found[0] + "_" * (len(found) - 2) + found[-1] if strings else found
    return re.sub(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)\'|//[^\n]*', spaces, text)


def end_of(tokens, opening, closing, includes):
    """The token at which an operand ends."""
    depth = 0
    for token in tokens:
        word = token.group()
        depth += (word in opening) - (word in closing)
        if depth < 0 or depth == 0 and word not in closing and not includes(PRECEDENCE[word]):
            return token
    return None


def operation(code, match):
    """The place of an operator with its operands; None where it is not an expression."""
    own = PRECEDENCE[match.group(1)]
    before = TOKEN.finditer(code, max(code.rfind("\n\n", 0, match.start()), 0), match.start() + 1)
    left = end_of(reversed(list(before)), ")]}", "([{", lambda precedence: precedence >= own)
    right = end_of(TOKEN.finditer(code, match.end() - 1), "([{", ")]}",
                   lambda precedence: precedence > own)
    if left is None or right is None:
        return None
    operands = code[left.end():right.start()]
    return (left.end() + len(operands) - len(operands.lstrip()),
            right.start() - len(operands) + len(operands.rstrip()))


def mutants_of(path, text):
    code, plain = blank(text, strings=True), blank(text, strings=False)
    found = []
    for match in OPERATOR.finditer(code):
        place = operation(code, match)
        if place:
            (begin, end), (at, to) = place, match.span(1)
            swap = SWAPS[match.group(1)]
            found.append((begin, end, f"{match.group(1)} to {swap}",
                          f"($M ? {plain[begin:at]}{swap}{plain[to:end]} : $X)"))
    for name, pattern, after in CHANGES:
        found += [(*match.span(), name, after)
                  for match in re.finditer(pattern, code, re.MULTILINE)]
    for begin, end, name, after in found:
        changed = code[begin:end]
        lines = code[code.rfind("\n", 0, begin) + 1:code.find("\n", end)]
        if changed.count("(") == changed.count(")") and not NOT_CODE.search(lines):
            line = code.count("\n", 0, begin) + 1
            yield Mutant(path, line, line + changed.count("\n"), begin, end, name,
                         plain[begin:end], after)


def draw(root, folders, seed):
    found = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*.cc")):
            name = path.relative_to(root).as_posix()
            if not re.search(r"_(test|main|fuzz)\.cc$|/testing/|/example/", name):
                found += mutants_of(name, path.read_text())
    random.Random(seed).shuffle(found)
    return list(enumerate(found, 1))


def apart(drawn, count):
    """The first mutants that have no line in common, {number: mutant}, and those behind them."""
    chosen, taken = {}, set()
    for at, (number, mutant) in enumerate(drawn):
        if len(chosen) == count:
            return chosen, drawn[at:]
        lines = {(mutant.file, line) for line in range(mutant.line, mutant.last_line + 1)}
        if not lines & taken:
            chosen[number] = mutant
            taken |= lines
    return chosen, []


def write(root, mutants):
    """Writes them into the sources. What was computed by the compiler no longer is."""
    texts = {}
    for number, mutant in sorted(mutants.items(), key=lambda item: -item[1].begin):
        text = texts.get(mutant.file) or (root / mutant.file).read_text()
        after = mutant.after.replace("$M", f"TesseraMutant<{number}>()")
        after = after.replace("$X", mutant.before).replace("\n", " ")
        begin = text.rfind("\n", 0, mutant.begin) + 1
        texts[mutant.file] = (
            text[:begin] + re.sub(r"\bconstexpr\b", "const", text[begin:mutant.begin]) + after +
            "\n" * mutant.before.count("\n") + text[mutant.end:])
    for file, text in texts.items():
        (root / file).write_text(HEAD + text)


def bazel(root, command, targets, *flags, mutant=0, reached="/dev/null"):
    """The return code of bazel, and what it says."""
    variables = {"TESSERA_MUTANT": str(mutant), "TESSERA_REACHED": reached}
    done = subprocess.run(["./bazelw", command, *BAZEL_FLAGS, *flags, *targets], cwd=root,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, **variables}, check=False)
    return done.returncode, done.stdout


def to_blame(said, mutants):
    """The numbers of the mutants at which the compiler has found errors, or to which it points."""
    for kind in ("error", "note"):
        places = {(file, int(line)) for file, line in re.findall(
            rf"^([\w/]+\.cc):(\d+):\d+: {kind}:", said, re.MULTILINE)}
        blamed = [number for number, mutant in mutants.items()
                  if any((mutant.file, line) in places
                         for line in range(mutant.line, mutant.last_line + 1))]
        if blamed:
            return blamed
    return sys.exit(f"does not compile:\n{said[-4000:]}")


def compile_together(root, mutants, targets):
    """Leaves out those that do not compile."""
    # A disk cache would keep what is made of every mutant.
    flags = ["--keep_going", "--disk_cache="] if mutants else []
    while True:
        subprocess.run(["git", "checkout", "--quiet", "--", "."], cwd=root, check=True)
        write(root, mutants)
        code, said = bazel(root, "build", targets, *flags)
        if code == 0:
            return
        for number in to_blame(said, mutants):
            del mutants[number]


def find_tests(root, targets):
    """{number: the tests that come to the mutant}. All of them pass while no mutant counts."""
    tests = collections.defaultdict(set)
    with tempfile.NamedTemporaryFile("r") as reached:
        code, said = bazel(root, "test", targets, "--disk_cache=", reached=reached.name)
        if code:
            sys.exit(f"fails without a mutant:\n{said[-4000:]}")
        for line in reached:
            test, number = line.split()
            tests[int(number)].add(test)
    return tests


def in_turn(tests, folder, targets):
    """The tests of a folder, and then those of each target that are left."""
    left = set(tests)
    for target in (f"//{folder}/...", *targets):
        package = target.removesuffix("/...")
        group = {test for test in left
                 if test == target or test.startswith((f"{package}:", f"{package}/"))}
        left -= group
        if group:
            yield group


def judge(root, number, mutant, tests, targets):
    """The test that fails, or an empty string."""
    for group in in_turn(tests, pathlib.PurePath(mutant.file).parent.as_posix(), targets):
        code, said = bazel(root, "test", group, "--disk_cache=", mutant=number)
        if code == 3:
            return re.search(r"^(//\S+)\s.*(FAILED|TIMEOUT)", said, re.MULTILINE).group(1)
        if code:
            sys.exit(said[-4000:])
    return ""


def make_copy(copy):
    """A copy of the committed tree."""
    if not copy.exists():
        subprocess.run(["git", "worktree", "add", "--detach", str(copy)], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.strip()
    subprocess.run(["git", "checkout", "--quiet", "--force", head], cwd=copy, check=True)
    if os.path.exists("user.bazelrc"):
        shutil.copy("user.bazelrc", copy)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--only", default="")
    parser.add_argument("--wider", default="//checkpoint/testing/...,//tests/worlds/jobs/...")
    parser.add_argument("--copy", default="/var/tmp/tessera-mutation", type=pathlib.Path)
    parser.add_argument("folders", nargs="+")
    options = parser.parse_args()
    os.chdir(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."))
    targets = [f"//{folder}/..." for folder in options.folders]
    targets += [target for target in options.wider.split(",") if target]
    only = [int(number) for number in options.only.split(",") if number]

    make_copy(options.copy)
    compile_together(options.copy, {}, targets)
    left = [(number, mutant) for number, mutant in draw(options.copy, options.folders, options.seed)
            if number in only or not only]
    counts = collections.Counter()
    while left and counts.total() < options.count:
        # Some do not compile.
        chosen, left = apart(left, (options.count - counts.total()) * 9 // 8 + 1)
        compile_together(options.copy, chosen, targets)
        tests = find_tests(options.copy, targets)
        for number, mutant in list(chosen.items())[:options.count - counts.total()]:
            by = judge(options.copy, number, mutant, tests[number], targets)
            counts["killed" if by else "survived"] += 1
            verdict = f"killed by {by}" if by else "SURVIVED" if tests[number] else \
                "SURVIVED, no test comes to it"
            print(f"{verdict}: {number} {mutant.file}:{mutant.line} ({mutant.name}) "
                  f"{' '.join(mutant.before.split())}", flush=True)
    print(f"{counts.total()} mutants: {counts['killed']} killed, {counts['survived']} survived")


if __name__ == "__main__":
    main()
