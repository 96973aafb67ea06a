#!/usr/bin/env python3
"""Breaks sources on purpose and reports whether a test notices.

bazel run //tests/mutation:mutate -- --seed=1 --count=50 checkpoint/save checkpoint/manager

Draws --count mutants of the folders' sources (tests and testing/ apart) from --seed: an operator
that becomes another one, a condition that becomes its opposite, a call that is left out, an error
that is swallowed, a number that is one too large. Each is built and tested in a copy of the
committed tree: first by the tests of its own folder, then by those of --wider. One line for each
mutant says "killed" and by what, or "SURVIVED"; a mutant that does not compile is replaced by
another one. The last line counts them. The copy is --copy, which is kept for the next time.
"""

import argparse
import collections
import os
import pathlib
import random
import re
import subprocess
import sys

# What a mutant may change: (name, pattern, replacement). The pattern is searched in a line of code
# without its comment and strings.
OPERATORS = (
    ("condition", r"\bif \((?!const|auto|TESSERA|[\w:<>*& ]+ \w+ = )(.+)\) (?=\S.*;$|\{$)",
     r"if (!(\1)) "),
    ("comparison", r" < (?=[\w(])", " <= "),
    ("comparison", r" > (?=[\w(])", " >= "),
    ("comparison", r" <= ", " < "),
    ("comparison", r" >= ", " > "),
    ("equality", r" == ", " != "),
    ("equality", r" != ", " == "),
    ("logic", r" && ", " || "),
    ("logic", r" \|\| ", " && "),
    ("sum", r"(?<=[\w)]) \+ (?=[\w(])", " - "),
    ("sum", r"(?<=[\w)]) - (?=[\w(])", " + "),
    ("call", r"^(\s+)(?:[a-z]\w*(?:\.|->))?(?!TESSERA)[A-Z]\w*\(.*\);$", r"\1;"),
    ("error", r"TESSERA_RETURN_IF_ERROR\((.+)\);$", r"(void)(\1);"),
    ("error", r"return absl::\w+Error\(.*\);$", "return absl::OkStatus();"),
    ("truth", r"\btrue\b", "false"),
    ("truth", r"\bfalse\b", "true"),
    ("number", r"(?<![\w.'])([1-9]\d*)(?![\w.'])", lambda m: str(int(m.group(1)) + 1)),
)
NOT_CODE = re.compile(r"^\s*(//|#|using |namespace |LOG\(|static_assert|case |template)")

Mutant = collections.namedtuple("Mutant", "file line name before after")


def blank(line):
    """The line with the contents of strings and its comment replaced by spaces of their length."""
    line = re.sub(r'"(?:[^"\\]|\\.)*"', lambda m: '"' + " " * (len(m.group()) - 2) + '"', line)
    return re.sub(r"//.*", lambda m: " " * len(m.group()), line).rstrip()


def mutants_of(path, text):
    for number, line in enumerate(text.splitlines()):
        if NOT_CODE.search(line) or '"' in line and line.count('"') % 2:
            continue
        code = blank(line)
        for name, pattern, replacement in OPERATORS:
            for match in re.finditer(pattern, code):
                # The groups of the match, taken from the line itself, strings included.
                whole = re.compile(pattern).match(line, match.start())
                after = (whole or match).expand(replacement) if isinstance(replacement, str) \
                    else replacement(match)
                changed = line[:match.start()] + after + line[match.end():]
                yield Mutant(path, number, name, line, changed)


def draw(root, folders, seed):
    found = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*.cc")):
            name = path.relative_to(root).as_posix()
            if not re.search(r"_(test|main|fuzz)\.cc$|/testing/|/example/", name):
                found += mutants_of(name, path.read_text())
    random.Random(seed).shuffle(found)
    return found


def run_tests(root, targets):
    """"" where all pass, "build" where something does not compile, else the first failed test."""
    done = subprocess.run(
        ["./bazelw", "test", "--noshow_progress", "--test_output=summary", "--build_tests_only",
         "--notest_keep_going", *targets],
        cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode in (0, 4):  # 4: the folder has no test
        return ""
    failed = re.search(r"^(//\S+)\s.*(FAILED|TIMEOUT)", done.stdout, re.MULTILINE)
    return failed.group(1) if done.returncode == 3 and failed else "build"


def judge(root, mutant, wider):
    path = root / mutant.file
    text = path.read_text()
    lines = text.split("\n")
    lines[mutant.line] = mutant.after
    path.write_text("\n".join(lines))
    try:
        own = f"//{pathlib.PurePath(mutant.file).parent.as_posix()}/..."
        return run_tests(root, [own]) or run_tests(root, wider)
    finally:
        path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--wider", default="//checkpoint/testing/...,//tests/worlds/jobs/...")
    parser.add_argument("--copy", default="/var/tmp/tessera-mutation", type=pathlib.Path)
    parser.add_argument("folders", nargs="+")
    options = parser.parse_args()
    os.chdir(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."))
    wider = [target for target in options.wider.split(",") if target]

    if not options.copy.exists():
        subprocess.run(["git", "worktree", "add", "--detach", str(options.copy)], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.strip()
    subprocess.run(["git", "checkout", "--quiet", "--force", head], cwd=options.copy, check=True)
    broken = run_tests(options.copy, [f"//{folder}/..." for folder in options.folders] + wider)
    if broken:
        sys.exit(f"fails without a mutant: {broken}")

    counts = collections.Counter()
    for mutant in draw(options.copy, options.folders, options.seed):
        if counts["killed"] + counts["survived"] == options.count:
            break
        by = judge(options.copy, mutant, wider)
        if by == "build":
            continue
        counts["killed" if by else "survived"] += 1
        print(f"{'killed by ' + by if by else 'SURVIVED'}: {mutant.file}:{mutant.line + 1} "
              f"({mutant.name})\n  - {mutant.before.strip()}\n  + {mutant.after.strip()}",
              flush=True)
    print(f"{sum(counts.values())} mutants: {counts['killed']} killed, "
          f"{counts['survived']} survived")


if __name__ == "__main__":
    main()
