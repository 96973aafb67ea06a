"""What is in the bundle, and that it runs where there is nothing but glibc and libstdc++.

train_bundle_test.py ARCHIVE
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ARCHIVE = ""

# What the bare machine has: the C and C++ runtime, and what its loader needs.
RUNTIME = re.compile(r"/(ld-linux-x86-64|libc|libm|libpthread|libdl|librt|libresolv|libutil|"
                     r"libstdc\+\+|libgcc_s)\.so\.\d+$")

TINY = ["--config=configs/gpt2_tiny.textproto", "--train-iters=3", "--lr-warmup-iters=1",
        "--eval-interval=0", "--global-batch-size=2", "--micro-batch-size=2", "--seq-length=16",
        "--train-data-path=data/train_000.bin", "--run-dir=run", "--save-interval=3"]


def may_mount(test):
    """Reports the test as skipped where a process may not have mounts of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", folder]
        if subprocess.run(command, check=False, stdin=subprocess.DEVNULL,
                          capture_output=True).returncode == 0:
            return True
    print(f"\nSKIPPED {test}: mounting is not permitted here (needs: mount)", flush=True)
    return False


class TrainBundleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(cls.root)
        cls.bundle = cls.root / "train_bundle"
        libraries = set()
        for program in cls.programs():
            for line in cls.ldd(program).splitlines():
                match = re.search(r"(/\S+) \(0x", line)
                if match and RUNTIME.search(match[1]):
                    libraries.add(match[1])
        for library in libraries:
            target = cls.root / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(library, target)
            target.chmod(0o755)
        for folder in ("tmp", "proc", "dev"):
            (cls.root / folder).mkdir()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    @classmethod
    def programs(cls):
        found = [path for path in cls.bundle.rglob("*")
                 if path.is_file() and path.parent.name != "lib" and os.access(path, os.X_OK) and
                 path.read_bytes()[:4] == b"\x7fELF"]
        assert len(found) >= 5, found
        return found

    @classmethod
    def ldd(cls, program):
        return subprocess.run(["ldd", str(program)], check=True, capture_output=True,
                              text=True).stdout

    def run_there(self, program, *arguments):
        """Runs a program of the bundle on a machine that has the bundle alone."""
        # The loader finds a program's own folder through /proc.
        enter = ["unshare", "--map-root-user", "--mount", "sh", "-c",
                 'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && '
                 'exec unshare --root="$0" --wd=/train_bundle "$@"', str(self.root)]
        return subprocess.run([*enter, f"/train_bundle/{program}", *arguments], check=False,
                              env={"HOME": "/tmp", "PATH": os.environ["PATH"]},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def test_libraries_come_from_the_bundle(self):
        for program in self.programs():
            for line in self.ldd(program).splitlines():
                with self.subTest(program=program.name, line=line.strip()):
                    self.assertNotIn("not found", line)
                    match = re.search(r"(/\S+) \(0x", line)
                    if match and not RUNTIME.search(match[1]):
                        real = pathlib.Path(os.path.realpath(match[1]))
                        self.assertEqual(real.parent, self.bundle / "lib")

    def test_it_trains_on_the_cpu(self):
        if not may_mount("it_trains_on_the_cpu"):
            return
        (self.bundle / "text.txt").write_text("a line of text to train on\n" * 200)
        made = self.run_there("prepare_data", "--input=text.txt", "--output_dir=data",
                              "--tokenizer=byte")
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        trained = self.run_there("train", *TINY)
        self.assertEqual(trained.returncode, 0, trained.stdout + trained.stderr)
        self.assertIn('"step":3', (self.bundle / "run/metrics.jsonl").read_text().replace(" ", ""))
        listed = self.run_there("ckpt", "verify", "run/checkpoints")
        self.assertEqual(listed.returncode, 0, listed.stdout + listed.stderr)

    def measure(self, *steps):
        return subprocess.run([self.bundle / "measure_gpu.sh", *steps], check=False,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def test_all_of_a_gpu_is_measured_by_one_script(self):
        self.assertEqual(self.measure("nothing").returncode, 2)
        if any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
            return
        ran = self.measure()
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
        steps = ["check", "measure", "train", "train_1558m", "train_llama3_1b",
                 "pytorch_124m", "pytorch_1558m"]
        self.assertEqual(ran.stdout.splitlines()[-1], "failed: " + " ".join(steps))
        # Each for want of a GPU alone.
        for step in steps:
            self.assertRegex((self.bundle / f"results/{step}.txt").read_text(),
                             r"\A(check_device|train): .*GPU.*\n\Z")

    def test_the_script_trains_by_flags_and_data_that_are_right(self):
        train = self.bundle / "train"
        train.rename(self.bundle / "trains")
        try:
            train.write_text('#!/bin/sh\nexec ./trains "$@" --device=cpu --dry-run\n')
            train.chmod(0o755)
            ran = self.measure("train")
        finally:
            (self.bundle / "trains").replace(train)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        # As docs/gpus.md has them.
        for parameters in ("124,439,808", "1,557,611,200", "1,235,814,400"):
            self.assertIn(f"model       {parameters} parameters, bf16", ran.stdout)

    def test_without_a_gpu_one_sentence_says_so(self):
        if any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
            return
        if not may_mount("without_a_gpu_one_sentence_says_so"):
            return
        for program, *arguments in (["check_device"],
                                    ["train", *TINY, "--device=cuda"]):
            with self.subTest(program=program):
                ran = self.run_there(program, *arguments)
                self.assertNotEqual(ran.returncode, 0)
                self.assertEqual(len(ran.stderr.splitlines()), 1, ran.stderr)
                self.assertRegex(ran.stderr, f"^{program}: .*GPU")
        ran = self.run_there("tests/cuda_compute_test")
        self.assertIn("no GPU (needs: gpu)", ran.stdout + ran.stderr)


if __name__ == "__main__":
    ARCHIVE = sys.argv.pop(1)
    unittest.main()
