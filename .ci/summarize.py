#!/usr/bin/env python3
"""Counts the test cases that Bazel ran, and ends with "N passed, N failed, N skipped":

  summarize.py DIRECTORY, which holds NAME.json (build events), NAME.rc (exit status) and NAME.logs
  (a copy of bazel-testlogs) of each run, and NAME.left_out (the reason) of each that there was none
  of.

A case is a test of GoogleTest's, or a target of another kind as a whole. A target that ended badly
without a case to blame, or that was not built, counts as one failed case.

Cases say why they are skipped, and what they need (conditions.py). GoogleTest's do with
GTEST_SKIP() << "REASON (needs: X)"; other tests print a line "SKIPPED: REASON (needs: X)" for all
of the target, or "SKIPPED NAME: REASON (needs: X)" for a part of it, and succeed. A case that is
skipped though the run has what it needs, or that is disabled, counts as failed.

Before that last line stand the ends of the logs of the targets that failed.
"""

import dataclasses
import json
import pathlib
import re
import sys
import urllib.parse
import xml.etree.ElementTree

import conditions

PASSED = ("PASSED", "FLAKY")
# Reasons for skipping a target that are not failures: it does not fit the configuration.
HARMLESS = ("SKIPPED", "NO_BUILD")
SKIPPED_LINE = re.compile(r"^SKIPPED(?: (\S+))?: (.*)$", re.MULTILINE)
NEEDS = re.compile(r"\(needs: ([a-z0-9_, ]*)\)")
LINES_OF_A_FAILURE = 60


@dataclasses.dataclass
class Skip:
    name: str  # empty: the whole target
    reason: str

    def needs(self):
        return [name.strip() for found in NEEDS.findall(self.reason) for name in found.split(",")]


@dataclasses.dataclass
class Target:
    """What came of one label."""
    status: str = ""
    passed: int = 0
    failed: int = 0
    skips: list = dataclasses.field(default_factory=list)
    logs: list = dataclasses.field(default_factory=list)  # of its shards that ended badly

    def add_report(self, status, cases, log):
        if status not in PASSED:
            self.logs.append(log)
        for case in cases:
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed += 1
            elif case.get("result") == "skipped" or case.find("skipped") is not None:
                self.skips.append(Skip(case_name(case), skip_reason(case)))
            elif case.get("status") == "notrun":
                self.skips.append(Skip(case_name(case), "disabled"))
            else:
                self.passed += 1
        for name, reason in SKIPPED_LINE.findall(log):
            self.skips.append(Skip(name, reason))
            if not name:
                self.passed = max(0, self.passed - 1)

    def end(self):
        """Makes the counts agree with the status."""
        if self.status in PASSED:
            self.failed = 0  # includes cases that succeeded on a retry
            if self.passed == 0 and not self.skips:
                self.passed = 1
        elif self.failed == 0:
            self.failed = 1
            self.passed = max(0, self.passed - 1)

    def text(self):
        counts = [(self.passed, "passed"), (self.failed, "failed"), (len(self.skips), "skipped")]
        return f"{self.status:<16} {{}}  ({', '.join(f'{n} {what}' for n, what in counts if n)})"


def case_name(case):
    return ".".join(filter(None, (case.get("classname"), case.get("name"))))


def skip_reason(case):
    skipped = case.find("skipped")
    text = "" if skipped is None else skipped.get("message") or skipped.text or ""
    # GoogleTest's first line contains the location.
    lines = text.strip().split("\n")
    return " ".join(lines[1:] if len(lines) > 1 else lines)


def read_events(path):
    """The build events; an interrupted Bazel leaves a last line that is no JSON, or no file."""
    if not path.exists():
        return
    for line in path.read_text(errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def read_outputs(result, logs):
    """The cases of a test's XML report, and its log, as `logs` holds them; empty where there are
    none."""
    cases, log = [], ""
    for output in result.get("testActionOutput", ()):
        uri = urllib.parse.unquote(urllib.parse.urlparse(output.get("uri", "")).path)
        path = logs / uri.partition("/testlogs/")[2]
        try:
            if output.get("name") == "test.xml":
                cases = list(xml.etree.ElementTree.parse(path).getroot().iter("testcase"))
            elif output.get("name") == "test.log":
                log = path.read_text(errors="replace")
        except (OSError, xml.etree.ElementTree.ParseError):
            pass
    return cases, log


def read_run(events, logs):
    """Targets by label, also those that were not built, and the options that Bazel was given."""
    targets, reports, options = {}, {}, []
    for event in events:
        kind, identity = next(iter(event["id"].items()))
        label = identity.get("label", "") if isinstance(identity, dict) else ""
        aborted = event.get("aborted")
        if kind == "optionsParsed":
            options += event.get("optionsParsed", {}).get("cmdLine", ())
        elif kind == "testResult":
            # Of several attempts the last one counts.
            reports[label, identity.get("run"), identity.get("shard")] = event.get("testResult", {})
        elif kind == "testSummary":
            # A test that was not built has a summary without a status.
            status = event.get("testSummary", {}).get("overallStatus", "NO_STATUS")
            if label not in targets:
                targets[label] = Target("FAILED TO BUILD" if status == "NO_STATUS" else status)
        elif aborted is not None:
            # configuredLabel and unconfiguredLabel name causes; the targets that they stop have
            # events of their own.
            if kind in ("targetCompleted", "pattern") and aborted.get("reason") not in HARMLESS:
                targets[label or " ".join(identity.get("pattern", []))] = Target("FAILED TO BUILD")
        elif kind == "targetCompleted" and not event.get("completed", {}).get("success"):
            targets[label] = Target("FAILED TO BUILD")
    for (label, _, _), result in reports.items():
        if label in targets and targets[label].status != "FAILED TO BUILD":
            targets[label].add_report(result.get("status", "PASSED"), *read_outputs(result, logs))
    for target in targets.values():
        target.end()
    return targets, options


class Totals:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.failures = []  # texts

    def add_run(self, name, rc, events, logs):
        targets, options = read_run(events, logs)
        settings = conditions.Settings(options)
        print(f"\n{name}:")
        for label, target in sorted(targets.items()):
            print("  " + target.text().format(label))
        for label, target in sorted(targets.items()):
            for skip in target.skips:
                self.add_skip(label, skip, settings)
            for log in target.logs:
                lines = log.rstrip("\n").split("\n")[-LINES_OF_A_FAILURE:]
                self.failures.append("\n  ".join([f"\n{name}: {label} ended so:", *lines]))
        passed = sum(target.passed for target in targets.values())
        failed = sum(target.failed for target in targets.values())
        if failed == 0 and (rc != 0 or not targets):
            print(f"  bazel ended with status {rc} after {len(targets)} tests")
            failed = 1
        self.passed += passed
        self.failed += failed

    def add_skip(self, label, skip, settings):
        objection = conditions.objection(skip.needs(), settings)
        where = f"{label} {skip.name}".rstrip()
        if objection:
            self.failed += 1
            print(f"  WRONGLY SKIPPED  {where}: {skip.reason}: {objection}")
        else:
            self.skipped += 1
            print(f"  skipped          {where}: {skip.reason}")


def main(directory):
    totals = Totals()
    for rc_file in sorted(pathlib.Path(directory).glob("*.rc"), reverse=True):
        totals.add_run(rc_file.stem, int(rc_file.read_text()),
                       read_events(rc_file.with_suffix(".json")), rc_file.with_suffix(".logs"))
    for reason_file in sorted(pathlib.Path(directory).glob("*.left_out")):
        print(f"\n{reason_file.stem}:")
        totals.add_skip("all of it", Skip("", reason_file.read_text().strip()),
                        conditions.Settings([]))
    if totals.passed + totals.failed == 0:
        totals.failed = 1
    for text in totals.failures:
        print(text)
    print(f"{totals.passed} passed, {totals.failed} failed, {totals.skipped} skipped")
    return 0 if totals.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
