#!/usr/bin/env python3
"""The table of docs/gpus.md, from the form that check.cc writes, and the script that measures."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import unittest

import gpus_table

FLAGS = pathlib.Path("trainer/config/testdata/flags.golden").read_text()


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


# Writes an empty table to the file that --json names, and one of products where it is to be
# measured; fails where a file says so.
CHECK_DEVICE = """#!/bin/sh
for flag; do
  case $flag in
    --json=*) json=${flag#--json=} ;;
    --measure=*) measures=1 ;;
  esac
done
echo "checks $*"
[ ! -e broken ] || exit 1
if [ -n "$measures" ]; then
  mkdir -p "$XDG_CACHE_HOME/tessera"
  : >"$XDG_CACHE_HOME/tessera/products"
fi
echo '{"device": "X", "driver": "1", "products": "Y", "date": "Z", "checks": []}' >"$json"
"""


# Writes a part of the archive first, and the rest when a line comes, where a file says so.
TAR = f"""#!/bin/sh
echo begin >>packs
echo half >"$2"
[ ! -e slow ] || read line <go
{shutil.which("tar")} "$@"
status=$?
echo end >>packs
exit $status
"""

FLOCK = f"""#!/bin/sh
echo lock >>locks
exec {shutil.which("flock")} "$@"
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
        self.write("nvidia-smi", "#!/bin/sh\necho 1980 MHz\nexec /bin/sleep infinity\n")
        self.write("sleep", "#!/bin/sh\nread line <tick\n")  # between two archives
        self.write("tar", TAR)
        self.write("flock", FLOCK)
        for name in ("tick", "go", "more"):
            os.mkfifo(self.folder / name)
        self.environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        self.slow = self.folder / "slow"  # the next archive waits for a line in `go`
        self.archive = self.folder / "results.tar.gz"

    def write(self, name, text):
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def start(self, *steps, **environment):
        """The script, and a file that ends when the last of its processes does."""
        alive, held = os.pipe()
        script = subprocess.Popen([self.folder / "measure_gpu.sh", *steps],
                                  env={**self.environment, **environment}, pass_fds=[held],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        os.close(held)
        alive = os.fdopen(alive)
        for cleanup in (script.wait, script.stdout.close, script.stderr.close, alive.close):
            self.addCleanup(cleanup)
        return script, alive

    def expect_nothing_left(self, alive):
        """Neither a process nor a half archive."""
        self.assertEqual(alive.read(), "")
        self.assertEqual(list(self.folder.glob("results.tar.gz?*")), [])

    def measure(self, *steps, **environment):
        script, alive = self.start(*steps, **environment)
        shown, _ = script.communicate()
        self.expect_nothing_left(alive)
        return script.returncode, shown

    def packed(self):
        with tarfile.open(self.archive) as archive:
            return sorted(archive.getnames())

    def test_the_archive_has_this_run_alone(self):
        self.assertEqual(self.measure("check", "measure")[0], 0)
        both = ["cache", "cache/tessera", "cache/tessera/products", "check.json", "check.txt",
                "clocks.csv", "measure.json", "measure.txt"]
        self.assertEqual(self.packed(), ["results", *("results/" + name for name in both)])
        (self.folder / "broken").touch()
        status, shown = self.measure("measure", "train")
        self.assertEqual(status, 1)
        self.assertEqual(shown.splitlines()[-1], "failed: measure")
        # Neither tables nor figures of the run before, which stay in a folder of their own.
        texts = ["measure", "prepare", "train", "train_1558m", "train_llama3_1b"]
        self.assertEqual(self.packed(), ["results", "results/clocks.csv",
                                         *(f"results/{name}.txt" for name in texts)])
        self.assertNotIn("driver", shown)
        self.assertEqual(len(list(self.folder.glob("results-*/check.json"))), 1)

    def test_models_train_by_the_table_that_was_measured(self):
        status, shown = self.measure()
        self.assertEqual(status, 0, shown)
        for name, has_table in (("train", False), ("train_with_table", True),
                                ("train_1558m", True), ("train_llama3_1b", True)):
            text = (self.folder / f"results/{name}.txt").read_text()
            self.assertEqual("--product-table=" in text, has_table, text)
            for flag in re.findall("(--[^= ]+)=", text):
                if flag != "--config":  # of the program itself
                    self.assertRegex(FLAGS, rf"(?m)^\w+ {flag} <")

    def begin_step(self):
        """What start() returns, when a step has begun. A line in `more` ends it."""
        self.write("check_device", "#!/bin/sh\necho half\nread line <more\n")
        script, alive = self.start("check")
        text = self.folder / "results/check.txt"
        while not (text.exists() and text.read_text()):
            time.sleep(0.01)
        return script, alive

    def end_step(self, alive):
        with self.until_line("more"):
            pass
        self.expect_nothing_left(alive)

    @contextlib.contextmanager
    def until_line(self, name):
        """While a process waits for a line, which it then gets."""
        with open(self.folder / name, "w", encoding="utf-8") as pipe:
            yield
            pipe.write("\n")

    def kill_at(self, moment):
        """Kills a script whose observer waits for a line; it then packs what is there."""
        script, alive = self.begin_step()
        with self.until_line("tick"):
            pass
        while not self.archive.exists():
            time.sleep(0.01)
        if moment == "go":
            with self.until_line("tick"):
                self.slow.touch()
        with self.until_line(moment):
            script.kill()
            script.wait()
            self.assertIn("results/check.txt", self.packed())
            (self.folder / "results/last").touch()
            self.slow.unlink(missing_ok=True)
        self.end_step(alive)

    def test_the_archive_outlives_a_script_that_is_killed(self):
        for moment in ("tick", "go"):  # between two archives, and in the middle of one
            with self.subTest(moment=moment):
                self.kill_at(moment)
                self.assertIn("results/last", self.packed())
                self.archive.unlink()

    def test_a_script_that_is_terminated_packs_what_is_there(self):
        script, alive = self.begin_step()
        with self.until_line("tick"):
            self.slow.touch()
        with open(self.folder / "go", "w", encoding="utf-8"):  # in the middle of an archive
            (self.folder / "results/last").touch()
            self.slow.unlink()
            script.terminate()
            script.wait()
        self.assertIn("results/last", self.packed())
        self.end_step(alive)

    def test_archives_are_packed_one_after_the_other(self):
        script, alive = self.begin_step()
        with self.until_line("tick"):
            self.slow.touch()
        with contextlib.suppress(BrokenPipeError), self.until_line("go"):
            self.slow.unlink()
            with self.until_line("more"):
                pass
            locks = self.folder / "locks"
            while script.poll() is None and locks.read_text().count("\n") < 2:
                time.sleep(0.01)
        self.expect_nothing_left(alive)
        self.assertEqual((self.folder / "packs").read_text().split(), ["begin", "end"] * 2)

    def test_an_archive_that_cannot_be_written_is_a_failure(self):
        for archive, status in (("nowhere/a.tar.gz", 1), ("results/a.tar.gz", 2)):
            with self.subTest(archive=archive):
                ended, shown = self.measure("check", ARCHIVE=str(self.folder / archive))
                self.assertEqual(ended, status)
                self.assertEqual("failed: archive" in shown, status == 1)
        self.assertFalse(self.archive.exists())


if __name__ == "__main__":
    unittest.main()
