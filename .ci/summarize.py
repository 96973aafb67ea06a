#!/usr/bin/env python3
"""Counts what Bazel ran: summarize.py DIRECTORY, which holds NAME.json (build events) and NAME.rc (exit status)."""

import collections
import json
import pathlib
import sys
import urllib.parse
import xml.etree.ElementTree

PASSED = ("PASSED", "FLAKY")
# Reasons for leaving out a target that are no failure: it does not fit the configuration.
HARMLESS = ("SKIPPED", "NO_BUILD")


def read_events(path):
    """The build events; an interrupted Bazel leaves a last line that is no JSON, or no file."""
    if not path.exists():
        return
    for line in path.read_text(errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def count_cases(result):
    """The number of test cases in a test's XML report, 0 when it has none."""
    for output in result.get("testActionOutput", ()):
        if output.get("name") != "test.xml":
            continue
        path = urllib.parse.unquote(urllib.parse.urlparse(output.get("uri", "")).path)
        try:
            root = xml.etree.ElementTree.parse(path).getroot()
            return sum(1 for _ in root.iter("testcase"))
        except (OSError, xml.etree.ElementTree.ParseError):
            return 0
    return 0


def read_run(events):
    """label -> (status, cases) of every test, and of every other target that was not built."""
    results, cases = {}, collections.Counter()
    for event in events:
        kind, identity = next(iter(event["id"].items()))
        label = identity.get("label", "") if isinstance(identity, dict) else ""
        aborted = event.get("aborted")
        if kind == "testResult":
            cases[label] += count_cases(event.get("testResult", {}))
        elif kind == "testSummary":
            # A test that was not built has a summary without a status.
            status = event.get("testSummary", {}).get("overallStatus", "NO_STATUS")
            if results.get(label) != "FAILED TO BUILD":
                results[label] = "FAILED TO BUILD" if status == "NO_STATUS" else status
        elif aborted is not None:
            # configuredLabel and unconfiguredLabel name causes; the targets that they stop have events of their own.
            if kind in ("targetCompleted", "pattern") and aborted.get("reason") not in HARMLESS:
                name = label or " ".join(identity.get("pattern", []))
                results[name] = "FAILED TO BUILD"
        elif kind == "targetCompleted" and not event.get("completed", {}).get("success"):
            results[label] = "FAILED TO BUILD"
    return {label: (status, cases[label]) for label, status in results.items()}


def main(directory):
    passed = failed = 0
    for rc_file in sorted(pathlib.Path(directory).glob("*.rc"), reverse=True):
        results = read_run(read_events(rc_file.with_suffix(".json")))
        rc = int(rc_file.read_text())
        run_passed = sum(status in PASSED for status, _ in results.values())
        run_failed = len(results) - run_passed
        print(f"\n{rc_file.stem}:")
        for label, (status, cases) in sorted(results.items()):
            print(f"  {status:<16} {label}" + (f"  ({cases} cases)" if cases > 1 else ""))
        if run_failed == 0 and (rc != 0 or run_passed == 0):
            print(f"  bazel ended with status {rc} after {run_passed} tests")
            run_failed = 1
        passed += run_passed
        failed += run_failed
    if passed + failed == 0:
        failed = 1
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
