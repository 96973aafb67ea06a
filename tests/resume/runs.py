"""Runs of the trainer in one folder, and comparisons of what they recorded: what the experiments of
tests/resume and tests/reshard share."""

import argparse
import glob
import json
import os
import re
import shutil
import statistics
import subprocess
import sys

# Where `bazel run` puts the programs, seen from the folder in which it starts a program.
PROGRAMS = {"train": "trainer/app/train", "prepare_data": "trainer/data/prepare_data",
            "ckpt": "tools/ckpt/ckpt", "compare_runs": "tools/compare_runs/compare_runs",
            "launcher": "trainer/configs/launch.py"}


def parser(description, out):
    """A parser of the flags that every experiment has."""
    result = argparse.ArgumentParser(description=description.split("\n", maxsplit=1)[0])
    result.add_argument("--out", default=out, help="a folder, which is emptied first")
    result.add_argument("--keep-checkpoints", action="store_true")
    return result


def start(experiment, options):
    """Runs an experiment below the folder in which the user is. Its exit code is 1 where anything
    differs."""
    programs = {name: os.path.abspath(path) for name, path in PROGRAMS.items()}
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()))
    sys.exit(experiment(programs, options).run())


class Runs:
    def __init__(self, programs, options):
        self.programs = programs
        self.options = options
        self.out = os.path.abspath(options.out)
        self.config = os.path.join(self.out, "common.textproto")
        self.tokens = None
        self.differences = 0

    def dir(self, name):
        return os.path.join(self.out, name)

    def checkpoints(self, name):
        return os.path.join(self.dir(name), "checkpoints")

    def prepare(self, settings):
        """Empties the folder, and writes the settings that all runs have, as text."""
        shutil.rmtree(self.out, ignore_errors=True)
        os.makedirs(self.out)
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(settings)

    def prepare_text(self, tokenizer, vocabulary):
        """The text of Debian's perl-doc as tokens."""
        data = self.dir("data")
        subprocess.run([self.programs["prepare_data"], f"--output_dir={data}",
                        f"--tokenizer={tokenizer}", f"--vocab_size={vocabulary}"],
                       stdout=subprocess.DEVNULL, check=True)
        self.tokens = f"{data}/train_*.bin"

    def command(self, name, *flags):
        return [sys.executable, self.programs["launcher"], self.programs["train"],
                self.programs["prepare_data"], self.config, f"--train-data-path={self.tokens}",
                f"--run-dir={self.dir(name)}", *flags]

    def train(self, name, *flags):
        """One run, in a folder of its own; its log is in log.txt there."""
        os.makedirs(self.dir(name))
        print(f"{name} ...", flush=True)
        with open(os.path.join(self.dir(name), "log.txt"), "w", encoding="utf-8") as log:
            code = subprocess.run(self.command(name, *flags), stdout=log,
                                  stderr=subprocess.STDOUT, check=False).returncode
        if code != 0:
            sys.exit(f"experiment: {name} ended with exit code {code}: see {log.name}")

    def delete_checkpoints(self, name):
        if not self.options.keep_checkpoints:
            shutil.rmtree(self.checkpoints(name))

    def compare_runs(self, *arguments):
        """The exit code of compare_runs, and the object that it printed."""
        result = subprocess.run([self.programs["compare_runs"], "--json", *arguments],
                                stdout=subprocess.PIPE, check=False)
        if result.returncode > 1:
            sys.exit(f"experiment: cannot be compared: {' '.join(arguments)}")
        return result.returncode, json.loads(result.stdout)

    def compare(self, one, other, *flags, svg=None):
        """Compares every bit of two runs; returns a cell of a table."""
        plot = [f"--svg={self.dir(svg)}"] if svg else []
        code, found = self.compare_runs(self.dir(one), self.dir(other), "--exact", *plot, *flags)
        loss = found["quantities"]["loss"]

        def linked(text):
            return f"[{text}]({svg})" if svg else text

        if code == 0:
            return f"{linked('equal')}, {loss['compared']} steps"
        self.differences += 1
        return f"{linked('DIFFERENT')}, largest {loss['largest_difference']}"

    def compare_state(self, one, other, step):
        """Compares two checkpoints by their digests; returns a cell of a table."""
        folders = [os.path.join(self.checkpoints(name), f"step-{step:08d}")
                   for name in (one, other)]
        result = subprocess.run([self.programs["ckpt"], "diff", *folders], stdout=subprocess.PIPE,
                                check=False, text=True)
        if result.returncode == 0:
            return "state equal"
        print(result.stdout)
        self.differences += 1
        return "STATE DIFFERENT"

    def records(self, name):
        """Of each step whose line is complete."""
        with open(os.path.join(self.dir(name), "metrics.jsonl"), encoding="utf-8") as file:
            records = [json.loads(line) for line in file if line.endswith("\n")]
        return {r["step"]: r for r in records if r["kind"] == "step"}

    def median_of_steps(self, name, field):
        """The median of a field of the run's steps, the first one left out."""
        steps = list(self.records(name).values())
        return statistics.median(record[field] for record in steps[1:])

    def seconds(self, name, what):
        """The median of what the run's log reports: of its saves ("saved"), or its load."""
        pattern = rf"^{what} .* in ([0-9.]+) s(:|$)"
        with open(os.path.join(self.dir(name), "log.txt"), encoding="utf-8") as file:
            found = re.findall(pattern, file.read(), re.MULTILINE)
        return statistics.median(float(seconds) for seconds, _ in found)

    def steps_kept(self, name):
        folders = glob.glob(os.path.join(self.checkpoints(name), "step-*"))
        return sorted(int(os.path.basename(folder)[len("step-"):]) for folder in folders)

    def checkpoint_bytes(self, name, step):
        folder = os.path.join(self.checkpoints(name), f"step-{step:08d}")
        return sum(os.path.getsize(os.path.join(folder, file)) for file in os.listdir(folder))

    def weights(self, name):
        """From the checkpoint's manifest: shapes of all weights, aliases once."""
        report = subprocess.run([self.programs["ckpt"], "inspect", "--json",
                                 self.checkpoints(name)], stdout=subprocess.PIPE, check=True)
        return {tensor["name"]: tensor["shape"] for tensor in json.loads(report.stdout)["tensors"]
                if tensor["role"] == "WEIGHT" and "alias_of" not in tensor}

    def finish(self, lines):
        """Writes the report; returns the exit code."""
        report = os.path.join(self.out, "report.md")
        with open(report, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        print("\n".join(lines))
        print(f"{self.differences} comparisons differ; report: {report}")
        return 1 if self.differences else 0
