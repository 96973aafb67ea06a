#!/usr/bin/env python3
"""The table of docs/gpus.md, from the form that check.cc writes, and the script that measures."""

import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import time
import unittest

import gpus_table


class GpusTableTest(unittest.TestCase):
    def test_checks_have_a_line_and_figures_all_of_theirs(self):
        def check(name, outcome, seconds, detail, **figures):
            return {"name": name, "outcome": outcome, "seconds": seconds, "detail": detail,
                    "figures": figures}

        results = {
            "device": "NVIDIA X",
            "driver": "580.1",
            "products": "cuBLASLt 13.1",
            "date": "2026-12-01",
            "checks": [
                check("operations", "passed", 58.04, "45 groups agree\nAdd 0.1 | 0.2"),
                check("gpt2_124m", "passed", 9.5, "1 tokens/s\na save", tokens_per_second=1),
                check("pytorch_1558m", "left out", 0, "does not fit into --deadline=300"),
            ],
        }
        self.assertEqual(
            gpus_table.table(results),
            """NVIDIA X, driver 580.1, cuBLASLt 13.1, 2026-12-01:

| check | outcome | seconds | result |
| --- | --- | ---: | --- |
| `operations` | passed | 58.0 | 45 groups agree |
| `gpt2_124m` | passed | 9.5 | 1 tokens/s<br>a save |
| `pytorch_1558m` | left out | 0.0 | does not fit into --deadline=300 |
| all | | 67.5 | |""",
        )


# Writes an empty table to the file that --json names, and fails where a file says so.
CHECK_DEVICE = """#!/bin/sh
for flag; do
  case $flag in --json=*) json=${flag#--json=} ;; esac
done
echo "checks $*"
[ ! -e broken ] || exit 1
echo '{"device": "X", "driver": "1", "products": "Y", "date": "Z", "checks": []}' >"$json"
"""


class MeasureGpuTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.addCleanup(shutil.rmtree, self.folder)
        here = pathlib.Path(__file__).parent
        for name in ("measure_gpu.sh", "gpus_table.py"):
            shutil.copy(here / name, self.folder)
        self.write("check_device", CHECK_DEVICE)
        self.write("train", '#!/bin/sh\necho "trains $*"\n')
        self.write("prepare_data", "#!/bin/sh\n")
        self.write("nvidia-smi", "#!/bin/sh\necho 1980 MHz\n")
        self.environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        self.archive = self.folder / "results.tar.gz"

    def write(self, name, text):
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def measure(self, *steps, **environment):
        ran = subprocess.run([self.folder / "measure_gpu.sh", *steps], check=False,
                             env={**self.environment, **environment}, stdin=subprocess.DEVNULL,
                             capture_output=True, text=True)
        return ran.returncode, ran.stdout

    def packed(self):
        with tarfile.open(self.archive) as archive:
            return sorted(archive.getnames())

    def test_the_archive_has_this_run_alone(self):
        self.assertEqual(self.measure("check", "measure")[0], 0)
        both = ["check.json", "check.txt", "clocks.csv", "measure.json", "measure.txt"]
        self.assertEqual(self.packed(), ["results", *("results/" + name for name in both)])
        (self.folder / "results/cache/tessera").mkdir(parents=True)
        (self.folder / "results/cache/tessera/products").write_text("a table")
        (self.folder / "broken").touch()
        status, shown = self.measure("measure", "train")
        self.assertEqual(status, 1)
        self.assertEqual(shown.splitlines()[-1], "failed: measure")
        # Neither tables nor figures of the run before, which stay in a folder of their own.
        self.assertEqual(self.packed(), ["results", "results/clocks.csv", "results/measure.txt",
                                         "results/prepare.txt", "results/train.txt"])
        self.assertNotIn("driver", shown)
        self.assertEqual(len(list(self.folder.glob("results-*/check.json"))), 1)

    def test_the_archive_outlives_a_script_that_is_killed(self):
        self.write("check_device", "#!/bin/sh\necho half\nread line <more\n")
        self.write("sleep", "#!/bin/sh\nexec /bin/sleep 0.1\n")  # between two archives
        os.mkfifo(self.folder / "more")
        with subprocess.Popen([self.folder / "measure_gpu.sh", "check"], env=self.environment,
                              stdout=subprocess.DEVNULL) as script:
            half = b""
            while half != b"half\n" and script.poll() is None:
                time.sleep(0.01)
                if self.archive.exists() and "results/check.txt" in self.packed():
                    with tarfile.open(self.archive) as archive:
                        half = archive.extractfile("results/check.txt").read()
            self.assertIsNone(script.poll())
            script.kill()
        (self.folder / "more").write_text("\n")  # ends what the script has left

    def test_an_archive_that_cannot_be_written_is_a_failure(self):
        for archive, status in (("nowhere/a.tar.gz", 1), ("results/a.tar.gz", 2)):
            with self.subTest(archive=archive):
                ended, shown = self.measure("check", ARCHIVE=str(self.folder / archive))
                self.assertEqual(ended, status)
                self.assertEqual("failed: archive" in shown, status == 1)
        self.assertFalse(self.archive.exists())


if __name__ == "__main__":
    unittest.main()
