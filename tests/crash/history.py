"""What runs have recorded and saved, and whether that is what the undisturbed run did."""

import glob
import json
import os
import subprocess

# The fields of a record, without its timings.
FIELDS = {
    "step": ("loss_bits", "lr", "grad_norm", "skipped", "consumed_samples"),
    "eval": ("eval_loss_bits", "tokens", "best"),
}
MANIFEST = "manifest.pb"
TOMBSTONE = b"TESSERA tombstone "  # what begins a manifest of a save that was given up


class Violation(Exception):
    """A promise that was not kept."""


def read_records(run_dir):
    """The complete lines of metrics.jsonl as (kind, step, values), in their order."""
    records = []
    try:
        with open(os.path.join(run_dir, "metrics.jsonl"), encoding="utf-8") as file:
            for line in file:
                if not line.endswith("\n"):
                    break  # the process died while it wrote
                try:
                    record = json.loads(line)
                    values = tuple(record[field] for field in FIELDS[record["kind"]])
                    records.append((record["kind"], record["step"], values))
                except (ValueError, KeyError) as error:
                    raise Violation(f"metrics.jsonl: {error!r} in the line {line!r}") from error
    except FileNotFoundError:
        pass
    return records


def metrics_inode(run_dir):
    """Which file metrics.jsonl is; None where there is none."""
    try:
        return os.stat(os.path.join(run_dir, "metrics.jsonl")).st_ino
    except FileNotFoundError:
        return None


def last_step(records):
    return max((step for _, step, _ in records), default=0)


def step_directories(folder):
    """Of permanent and of rolling checkpoints, committed or not: (path, inode). In an object store,
    those of a slot are in the folders of their attempts."""
    found = set()
    for place in [folder, *glob.glob(os.path.join(glob.escape(folder), "rolling-[01]")),
                  *glob.glob(os.path.join(glob.escape(folder), "rolling-[01]", "[!s]*"))]:
        try:
            found |= {(entry.path, entry.inode()) for entry in os.scandir(place)
                      if entry.name.startswith("step-")}
        except FileNotFoundError:
            pass
    return found


def is_committed(directory):
    try:
        with open(os.path.join(directory, MANIFEST), "rb") as manifest:
            return manifest.read(len(TOMBSTONE)) != TOMBSTONE
    except FileNotFoundError:
        return False


def committed(folder):
    """The checkpoints that have a manifest, by a look of our own at the folder: their steps in
    ascending order, each with its directory."""
    return sorted((int(os.path.basename(path).removeprefix("step-")), path)
                  for path, _ in step_directories(folder)
                  if is_committed(path))


def quarantined(folder):
    """Directories of checkpoints that a run has called damaged."""
    return sorted(path for path, _ in step_directories(folder)
                  if os.path.basename(path).partition(".")[2].startswith("damaged"))


def half_written(folder):
    """Directories without a manifest: (path, inode)."""
    return {(path, inode) for path, inode in step_directories(folder)
            if not os.path.exists(os.path.join(path, MANIFEST))}


def describe_half_written(paths):
    """How far the save had come that left these."""
    files = {name for path in paths for name in os.listdir(path)}
    if not paths:
        return "nothing"
    if any(name.startswith(MANIFEST + ".tmp") for name in files):
        return "data and a temporary manifest"
    return "data" if files else "an empty directory"


def step_directory(folder, step):
    return os.path.join(folder, f"step-{step:08d}")


class Ckpt:
    """The `ckpt` program."""

    def __init__(self, program):
        self.program = program

    def run(self, *arguments):
        """The exit code, and all that is printed."""
        result = subprocess.run([self.program, *arguments], check=False, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)
        return result.returncode, result.stdout

    def check(self, *arguments):
        code, printed = self.run(*arguments)
        if code != 0:
            raise Violation(f"ckpt {' '.join(arguments)} has exit code {code}:\n"
                            f"{printed[-3000:]}")
        return printed


class Reference:
    """The undisturbed run: every record, and a checkpoint of every step."""

    def __init__(self, run_dir, steps, eval_interval):
        self.run_dir = run_dir
        self.steps = steps
        records = read_records(run_dir)
        self.records = {(kind, step): values for kind, step, values in records}
        self.order = [(kind, step) for kind, step, _ in records]
        expected = []
        for step in range(1, steps + 1):
            expected.append(("step", step))
            if step % eval_interval == 0:
                expected.append(("eval", step))
        if self.order != expected:
            raise Violation("the undisturbed run did not record every step and evaluation once")

    def folder(self):
        return os.path.join(self.run_dir, "checkpoints")

    def check_records(self, records):
        """They must be the beginning of this run's, bit for bit."""
        for (kind, step, values), expected in zip(records, self.order):
            if (kind, step) != expected:
                raise Violation(f"metrics.jsonl: {kind} {step} stands where {expected[0]} "
                                f"{expected[1]} belongs")
            for field, value, reference in zip(FIELDS[kind], values, self.records[expected]):
                if value != reference:
                    raise Violation(f"{field} of {kind} {step} is {value}, that of the undisturbed "
                                    f"run {reference}")
        if len(records) > len(self.order):
            raise Violation(f"metrics.jsonl has {len(records)} records, the undisturbed run "
                            f"{len(self.order)}")

    def check_checkpoint(self, ckpt, directory, step):
        """Every byte sound, and the same state as this run's at the same step."""
        ckpt.check("verify", "--digests", directory)
        _, report = ckpt.run("diff", step_directory(self.folder(), step), directory)
        # A run that is asked to end saves first; the next one evaluates the step.
        owed = ("trainer.best_loss:", "trainer.health.validation_loss:")
        differing = [line for line in report.splitlines() if line.startswith("metadata ")
                     and not (("eval", step) in self.records and line.split()[2] in owed)]
        if "tensor differences: 0, metadata differences: " not in report or differing:
            raise Violation(f"ckpt diff at step {step}:\n{report}")

    def check_complete(self, records, step):
        """A checkpoint of `step` is younger than the records before it, and than the step's."""
        wanted = self.order[:self.order.index(("step", step)) + 1] if step > 0 else []
        if len(records) < len(wanted):
            raise Violation(f"there is a checkpoint of step {step}, but metrics.jsonl ends with "
                            f"{records[-1][:2] if records else 'nothing'}")
