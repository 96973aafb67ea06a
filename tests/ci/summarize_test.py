"""Runs .ci/summarize.py on build events made up here."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, ".ci")
import conditions
import summarize

GOOGLE_TEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="A">{}</testsuite></testsuites>"""
PASSED = '<testcase name="{}" status="run" result="completed" classname="A" />'
FAILED = ('<testcase name="{}" status="run" result="completed" classname="A">'
          '<failure message="a_test.cc:4&#x0A;1 is not 2" type="" /></testcase>')
SKIPPED = ('<testcase name="{}" status="run" result="skipped" classname="A">'
           '<skipped message="a_test.cc:2&#x0A;{}"><![CDATA[a_test.cc:2]]></skipped></testcase>')
DISABLED = '<testcase name="DISABLED_{}" status="notrun" result="suppressed" classname="A" />'
# Bazel's report for tests that write none themselves.
SHELL = ('<testsuites><testsuite name="sh"><testcase name="sh" status="run"></testcase>'
         '</testsuite></testsuites>')


class SummarizeTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.events = []
        # A machine with a GPU on which mounting is not permitted.
        self.enterContext(mock.patch.dict(conditions.CONDITIONS, {
            "gpu": lambda _: True, "mount": lambda _: False}))

    def output(self, name, text):
        # As Bazel does, each run writes to the same places. With a space: URIs are quoted.
        os.makedirs(self.logs(), exist_ok=True)
        path = os.path.join(self.logs(), f"{len(os.listdir(self.logs()))} {name}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return {"name": name, "uri": "file://" + path.replace(" ", "%20")}

    def logs(self):
        return os.path.join(self.folder, "testlogs")

    def options(self, *options):
        self.events.append({"id": {"optionsParsed": {}}, "optionsParsed": {"cmdLine": options}})

    def result(self, label, report, log="", shard=1, attempt=1, status="PASSED"):
        self.events.append({
            "id": {"testResult": {"label": label, "run": 1, "shard": shard, "attempt": attempt}},
            "testResult": {"status": status,
                           "testActionOutput": [self.output("test.log", log),
                                                self.output("test.xml", report)]}})

    def summary(self, label, status):
        self.events.append({"id": {"testSummary": {"label": label}},
                            "testSummary": {"overallStatus": status}})

    def target(self, label, *cases, status="PASSED"):
        self.result(label, GOOGLE_TEST.format("".join(cases)))
        self.summary(label, status)

    def shell(self, label, log, status="PASSED"):
        self.result(label, SHELL, log, status=status)
        self.summary(label, status)

    def end_run(self, name="host", rc=0):
        with open(os.path.join(self.folder, name + ".json"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(event) + "\n" for event in self.events)
        with open(os.path.join(self.folder, name + ".rc"), "w", encoding="utf-8") as file:
            file.write(str(rc))
        self.events = []
        if os.path.exists(self.logs()):
            os.rename(self.logs(), os.path.join(self.folder, name + ".logs"))

    def summarize(self):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = summarize.main(self.folder)
        return code, printed.getvalue()

    def expect(self, last_line, code, *lines):
        got, printed = self.summarize()
        self.assertEqual(printed.splitlines()[-1], last_line, printed)
        self.assertEqual(got, code, printed)
        for line in lines:
            self.assertIn(line, printed)

    def test_cases_are_counted_over_targets_shards_and_runs(self):
        self.target("//a:a_test", PASSED.format("X"), PASSED.format("Y"))
        self.result("//b:b_test", GOOGLE_TEST.format(PASSED.format("X")), shard=1)
        self.result("//b:b_test", GOOGLE_TEST.format(PASSED.format("Y")), shard=2)
        self.summary("//b:b_test", "PASSED")
        self.shell("//c:c_test", "all well\n")
        self.end_run("host")
        self.target("//a:a_test", SKIPPED.format("X", "nothing can be mounted (needs: mount)"))
        self.end_run("cuda")
        self.expect("5 passed, 0 failed, 1 skipped", 0, "\nhost:\n", "\ncuda:\n",
                    "PASSED           //a:a_test  (2 passed)",
                    "PASSED           //a:a_test  (1 skipped)")

    def test_failures(self):
        self.target("//a:a_test", PASSED.format("X"), FAILED.format("Y"), FAILED.format("Z"),
                    status="FAILED")
        self.shell("//b:b_test", "\n".join(f"line {i}" for i in range(100)), status="TIMEOUT")
        self.events.append({"id": {"targetCompleted": {"label": "//c:c_test"}},
                            "completed": {"success": False}})
        self.end_run(rc=1)
        self.expect("1 passed, 4 failed, 0 skipped", 1, "FAILED TO BUILD  //c:c_test",
                    "host: //b:b_test ended so:\n  line 40\n", "  line 99\n1 passed")

    def test_a_target_that_dies_is_a_failure(self):
        # The test had written a report of its earlier cases.
        self.target("//a:a_test", PASSED.format("X"), PASSED.format("Y"), status="FAILED")
        self.end_run(rc=3)
        self.expect("1 passed, 1 failed, 0 skipped", 1)

    def test_bazel_itself_may_fail(self):
        self.target("//a:a_test", PASSED.format("X"))
        self.end_run(rc=37)
        self.expect("1 passed, 1 failed, 0 skipped", 1, "bazel ended with status 37")

    def test_nothing_is_no_success(self):
        self.expect("0 passed, 1 failed, 0 skipped", 1)

    def test_the_last_attempt_counts(self):
        self.result("//a:a_test", GOOGLE_TEST.format(FAILED.format("X")), attempt=1)
        self.result("//a:a_test", GOOGLE_TEST.format(PASSED.format("X")), attempt=2)
        self.summary("//a:a_test", "FLAKY")
        self.end_run()
        self.expect("1 passed, 0 failed, 0 skipped", 0)

    def test_skips_that_the_machine_explains(self):
        self.target("//a:a_test", PASSED.format("X"),
                    SKIPPED.format("Y", "nothing can be mounted (needs: mount)"))
        self.shell("//b:b_test", "SKIPPED: no mounts (needs: gpu, mount)\n")
        self.shell("//c:c_test", "one\nSKIPPED two: no mounts (needs: mount)\nthree\n")
        self.end_run()
        self.expect("2 passed, 0 failed, 3 skipped", 0,
                    "//a:a_test A.Y: nothing can be mounted (needs: mount)\n",
                    "//b:b_test: no mounts", "//c:c_test two: no mounts")

    def test_skips_that_the_machine_does_not_explain(self):
        self.target("//a:a_test", PASSED.format("X"), SKIPPED.format("Y", "no device (needs: gpu)"))
        self.shell("//b:b_test", "SKIPPED: no device (needs: gpu)\n")
        self.shell("//c:c_test", "SKIPPED two: no device (needs: gpu)\n")
        self.end_run()
        self.expect("2 passed, 3 failed, 0 skipped", 1,
                    "WRONGLY SKIPPED  //a:a_test A.Y: no device (needs: gpu): this run has all")

    def test_skips_need_a_known_reason(self):
        self.target("//a:a_test", PASSED.format("X"), SKIPPED.format("Y", "not today"),
                    SKIPPED.format("Z", "no coffee (needs: coffee)"), DISABLED.format("W"))
        self.end_run()
        self.expect("1 passed, 3 failed, 0 skipped", 1, "it names nothing that it needs",
                    "no such condition: coffee", "A.DISABLED_W: disabled")

    def test_a_run_that_is_left_out(self):
        self.target("//a:a_test", PASSED.format("X"))
        self.end_run()
        with open(os.path.join(self.folder, "mounts.left_out"), "w", encoding="utf-8") as file:
            file.write("no mounts (needs: mount)\n")
        self.expect("1 passed, 0 failed, 1 skipped", 0, "all of it: no mounts (needs: mount)")

    def test_what_a_run_may_use(self):
        skip = SKIPPED.format("Y", "too slow (needs: uninstrumented)")
        self.options("--test_output=errors", "--copt=-fsanitize=thread")
        self.target("//a:a_test", PASSED.format("X"), skip)
        self.end_run("tsan")
        self.expect("1 passed, 0 failed, 1 skipped", 0)
        self.options("--test_output=errors")
        self.target("//a:a_test", PASSED.format("X"), skip)
        self.end_run("host")
        self.expect("2 passed, 1 failed, 1 skipped", 1)

    def test_processors(self):
        flags = {"avx2", "fma"}
        with mock.patch.object(conditions, "processor_flags", lambda: flags):
            for options, wrong in (((), True), (("--test_env=TESSERA_CPU=avx512",), True),
                                   (("--test_env=TESSERA_CPU=sse4",), False)):
                settings = conditions.Settings(options)
                self.assertEqual(bool(conditions.objection(["avx2"], settings)), wrong, options)
            self.assertFalse(conditions.objection(["avx512"], conditions.Settings(())))

    def test_this_machine_can_be_asked(self):
        for name, holds in conditions.CONDITIONS.items():
            self.assertIn(holds(conditions.Settings(())), (True, False), name)


if __name__ == "__main__":
    unittest.main()
