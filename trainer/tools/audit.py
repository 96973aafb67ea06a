#!/usr/bin/env python3
"""Executes steps of a run again, and compares every bit with its ledger.

  bazel run //trainer/tools:audit -- RUN --steps=40-60[,90-95] FLAGS...
  bazel run //trainer/tools:audit -- RUN --random=3 [--seed=1] FLAGS...

RUN is the folder of a run in EXACT numerics: config.textproto, metrics.jsonl, saves.jsonl and,
there or where the settings say, its checkpoints. --random chooses so many ranges of ten steps.
FLAGS are those of `train`, as --data-parallel-size=2: any topology that this machine can start.
Each range is executed from the nearest checkpoint before it, or from the beginning, in a folder
that is deleted afterwards.

Exit code: 0, proven; 1, not proven: the first step that differs, or where the replay ended, is
named; 2, nothing was compared: wrong arguments, FAST numerics, no ledger.
"""

import hashlib
import json
import math
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

COMPARED = ("settings", "first_sample", "consumed_samples", "lr", "loss_bits", "grad_norm",
            "skipped", "ledger")
LENGTH_OF_RANDOM_RANGES = 10
# A replay neither evaluates nor exports, ends after its last step alone, and keeps one checkpoint.
QUIET = ["--eval-interval=0", "--valid-data-path=", "--tokenizer-model=", "--export-llmc=",
         "--export-llmc-interval=0", "--export-hf-interval=0", "--num-tokens-to-generate=0",
         "--stop-file-path=", "--exit-duration-in-mins=0", "--async-upload=false",
         "--max-checkpoint-keep=1", "--save-retain-interval=0", "--save-top-k=0",
         "--save-retain-minutes=0"]
WHOLE_CHECKPOINT = ["--load-format=tessera", "--load-content=all", "--load-tensors=",
                    "--finetune=false", "--no-load-optim=false", "--no-load-rng=false",
                    "--allow-missing=false", "--allow-unexpected=false", "--verify-load"]


class Refused(Exception):
    """Nothing can be compared."""


class NotProven(Exception):
    """A step does not follow."""


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def bits(number):
    return "none" if number is None or not math.isfinite(number) else struct.pack(
        ">d", number).hex()


def link(previous, record):
    """The digest of a step, as trainer/state/ledger.h describes it."""
    loss = struct.unpack(">d", bytes.fromhex(record["loss_bits"]))[0]
    return sha256(f"tessera ledger 1\n{previous}\n{record['settings']}\n{record['step']} "
                  f"{bits(loss)} {bits(record['grad_norm'])} {bits(record['lr'])} "
                  f"{record['first_sample']} {record['consumed_samples']}\n")


def read_records(path, kind):
    """The records of a kind by step. An incomplete last line is that of a process that died."""
    records = {}
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            record = json.loads(line)
            if record["kind"] == kind:
                records[record["step"]] = record
        except (ValueError, KeyError, TypeError) as error:
            raise NotProven(f"{path}: line {number} is no record") from error
    return records


class Run:
    """What the folder of a run tells."""

    def __init__(self, folder):
        self.folder = folder
        self.config = folder / "config.textproto"
        try:
            settings = self.config.read_text(encoding="utf-8")
        except OSError as error:
            raise Refused(f"cannot read {self.config}: {error.strerror}") from error
        if not re.search(r"^\s*numerics: EXACT$", settings, re.MULTILINE):
            raise Refused(f"{folder} is a run in FAST numerics, whose bits depend on the topology: "
                          "only EXACT ones can be audited")
        self.steps = read_records(folder / "metrics.jsonl", "step")
        if not any("ledger" in record for record in self.steps.values()):
            raise Refused(f"{folder}/metrics.jsonl holds no ledger")
        saves = folder / "saves.jsonl"
        self.saves = read_records(saves, "save") if saves.exists() else {}
        self.checkpoints = self.find_checkpoints(settings)

    def find_checkpoints(self, settings):
        place = folder = self.folder / "checkpoints"
        configured = re.search(r'^\s*save: "(.*)"$', settings, re.MULTILINE)
        if not folder.is_dir() and configured:
            place = pathlib.Path(configured.group(1))
        found = {}
        for manifest in [*place.glob("step-*/manifest.pb"),
                         *place.glob("rolling-?/step-*/manifest.pb")]:
            number = manifest.parent.name.removeprefix("step-")
            if number.isdigit():
                found.setdefault(int(number), manifest.parent)
        return found

    def check_chain(self):
        """Every line's digest is that of its numbers and of the line before. Returns the steps at
        which a chain begins."""
        begins = []
        previous = ""
        last = None
        for step, record in sorted(self.steps.items()):
            if last != step - 1 and step - 1 in self.saves:
                # The run has gone on here from a checkpoint of another folder.
                previous, last = self.saves[step - 1]["ledger"], step - 1
            if "ledger" not in record:
                previous, last = "", step
                continue
            try:
                follows = last == step - 1 and link(previous, record) == record["ledger"]
                if not follows and link("", record) == record["ledger"]:
                    begins.append(step)
                elif not follows and last in (step - 1, None):
                    raise NotProven(f"step {step}: its line in metrics.jsonl is not the one that "
                                    "its digest was computed of")
                elif not follows:
                    raise NotProven(f"step {last + 1}: it has no line in metrics.jsonl")
            except (KeyError, TypeError, ValueError, struct.error) as error:
                raise NotProven(f"step {step}: its line in metrics.jsonl is damaged") from error
            previous, last = record["ledger"], step
        for step, save in sorted(self.saves.items()):
            bound = sha256(f"tessera save 1\n{step}\n{save.get('ledger')}\n{save.get('state')}\n")
            at_step = self.steps.get(step, save)
            if bound != save.get("save") or at_step.get("ledger") != save["ledger"]:
                raise NotProven(f"step {step}: its line in saves.jsonl does not fit the ledger")
        return begins


def replay(programs, run, start, last, flags):
    """Executes steps `start` + 1 to `last` again and compares them. Returns the number of saved
    states that were compared, too."""
    with tempfile.TemporaryDirectory(prefix="audit-") as scratch:
        scratch = pathlib.Path(scratch)
        command = [sys.executable, *programs, str(run.config), *QUIET, f"--run-dir={scratch}",
                   f"--save={scratch}/checkpoints", "--enable-save-ckpt", "--auto-resume",
                   f"--exit-interval={last}"]
        if start > 0:
            command += [*WHOLE_CHECKPOINT, f"--load={run.checkpoints[start]}",
                        f"--ckpt-step={start}"]
        result = subprocess.run(command + flags, check=False, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True, errors="replace")
        said = [line for line in result.stderr.splitlines() if line.strip()]
        if result.returncode == 2:
            raise Refused("; ".join(said))
        if (scratch / "saves.jsonl").exists():
            saves = read_records(scratch / "saves.jsonl", "save")
        else:
            saves = {}
        if start in saves and start in run.steps:
            if saves[start]["ledger"] != run.steps[start].get("ledger"):
                raise NotProven(f"step {start}: its checkpoint was saved by a run with another "
                                "ledger")
            if saves[start] != run.saves.get(start, saves[start]):
                raise NotProven(f"step {start}: its checkpoint does not hold the state that "
                                "saves.jsonl has recorded")
        again = {}
        if (scratch / "metrics.jsonl").exists():
            again = read_records(scratch / "metrics.jsonl", "step")
        for step in range(start + 1, last + 1):
            if step not in again:
                raise NotProven(f"step {step}: the replay ended before it: "
                                + ("; ".join(said) or "it says nothing"))
            for field in COMPARED:
                recorded, now = run.steps[step].get(field), again[step].get(field)
                if recorded != now:
                    raise NotProven(f"step {step}: {field} is {recorded} in the ledger, and {now} "
                                    "when it is executed again")
            if step in saves and step in run.saves and saves[step] != run.saves[step]:
                raise NotProven(f"step {step}: the saved state is {run.saves[step]['state']} in "
                                f"saves.jsonl, and {saves[step]['state']} when it is computed "
                                "again")
        if result.returncode != 0:
            raise NotProven(f"step {last}: the replay ended with an error: " + "; ".join(said))
        return len([step for step in saves if step > start and step in run.saves])


def parse_ranges(text):
    ranges = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if not match:
            raise Refused(f"--steps={text}: expected FIRST-LAST, as 40-60")
        ranges.append((int(match.group(1)), int(match.group(2) or match.group(1))))
    return ranges


def choose_ranges(options, last):
    if "steps" in options:
        return parse_ranges(options["steps"])
    if not options["random"].isdigit() or not options.get("seed", "0").isdigit():
        raise Refused("--random and --seed are numbers")
    chosen = random.Random(int(options.get("seed", "0")))
    firsts = [chosen.randint(1, last) for _ in range(int(options["random"]))]
    return [(first, min(first + LENGTH_OF_RANDOM_RANGES - 1, last)) for first in firsts]


def audit(programs, words):
    options = {}
    flags, folders = [], []
    for word in words:
        match = re.fullmatch(r"--(steps|random|seed)=(.*)", word)
        if match:
            options[match.group(1)] = match.group(2)
        else:
            (flags if word.startswith("--") else folders).append(word)
    if len(folders) != 1 or ("steps" in options) == ("random" in options):
        raise Refused("expected the folder of a run and either --steps=40-60 or --random=3; flags "
                      "are written --name=value")
    run = Run(pathlib.Path(folders[0]).absolute())
    begins = run.check_chain()
    print(f"{run.folder}: the lines of {len(run.steps)} steps are whole, in "
          + ("one chain" if len(begins) == 1 else f"{len(begins)} chains")
          + f" from step {', '.join(map(str, begins))} on", flush=True)
    for first, last in choose_ranges(options, max(run.steps)):
        start = max((step for step in run.checkpoints if step < first), default=0)
        missing = [step for step in range(start + 1, last + 1)
                   if "ledger" not in run.steps.get(step, {})]
        if first < 1 or first > last or missing:
            raise Refused(f"steps {first}-{last}: metrics.jsonl has no ledger of "
                          f"{missing[:1] or 'them'}")
        states = replay(programs, run, start, last, flags)
        origin = f"the checkpoint of step {start}" if start else "the beginning"
        print(f"proven: steps {start + 1} to {last}, executed again from {origin}, have the bits "
              f"of the ledger, and so have {states} saved states; the head of the chain is "
              f"{run.steps[last]['ledger']}", flush=True)


def main():
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()))
    if any(word in ("-h", "--help") for word in sys.argv[4:]):
        print(__doc__)
        return 0
    try:
        audit(PROGRAMS, sys.argv[4:])
    except Refused as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    except NotProven as error:
        print(f"not proven: {error}")
        return 1
    return 0


if __name__ == "__main__":
    # The launcher, train and prepare_data.
    PROGRAMS = [os.path.abspath(word) for word in sys.argv[1:4]]
    sys.exit(main())
