#!/usr/bin/env python3
"""Executes steps of a run again, and compares every bit with its ledger.

  bazel run //trainer/tools:audit -- RUN --steps=40-60[,90-95] FLAGS...
  bazel run //trainer/tools:audit -- RUN --random=3 [--seed=1] FLAGS...
  bazel run //trainer/tools:audit -- RUN --bisect FLAGS...

RUN is the folder of a run in EXACT numerics: config.textproto, metrics.jsonl, saves.jsonl and,
there or where the settings say (an object store, too), its checkpoints. --random chooses so many
ranges of ten steps. --bisect finds the first saved state that does not follow from the beginning.
FLAGS are those of `train`: any topology that this machine can start. One process has
--data-parallel-size=1 --tensor-model-parallel-size=1 --pipeline-model-parallel-size=1
--zero-stage=0.
Each range is executed from the nearest checkpoint before it, or from the beginning, in a folder
that is deleted afterwards.

Exit code: 0, proven; 1, not proven: the first step, checkpoint or record that differs is named; 2,
nothing was proven or refuted: wrong arguments, FAST numerics, no ledger, a replay that could not
run; 128 + the number of a signal that ended it.
"""

import ctypes
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback

# Where Bazel has put the module beside this program.
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from run_folder import NotProven, Refused, Run, is_remote, open_file

COMPARED = ("settings", "first_sample", "consumed_samples", "lr", "loss_bits", "grad_norm",
            "grad_norm_bits", "skipped", "ledger")
LENGTH_OF_RANDOM_RANGES = 10
# A replay does not evaluate, export or replicate, ends after its last step alone, and keeps one
# checkpoint.
QUIET = ["--eval-interval=0", "--valid-data-path=", "--tokenizer-model=", "--export-llmc=",
         "--export-llmc-interval=0", "--export-hf-interval=0", "--last-save-in-hf=false",
         "--replicate-to-peers=false", "--num-tokens-to-generate=0",
         "--stop-file-path=", "--exit-duration-in-mins=0", "--async-upload=false",
         "--max-checkpoint-keep=1", "--save-retain-interval=0", "--save-top-k=0",
         "--save-retain-minutes=0", "--save-interval-minutes=0", "--save-continuously=false"]
WHOLE_CHECKPOINT = ["--load-format=tessera", "--parameter-to-structured-name=",
                    "--load-content=all", "--load-tensors=", "--finetune=false",
                    "--no-load-optim=false", "--no-load-rng=false", "--allow-missing=false",
                    "--allow-unexpected=false", "--verify-load", "--strict-topology=false"]
# What train says of token files that are not the run's, or are damaged.
OTHER_DATA = re.compile(r"does not fit the data: token files| at offset \d+: ")
# Words of the launcher about processes.
STARTING = re.compile(r"train: (\d+ processes|a process for each slot)\b")
SECONDS_TO_POLL = 0.05
SECONDS_TO_END = 20


class OtherData(NotProven):
    """The token files are not those of the run."""


class Interrupted(BaseException):
    """A signal, whose number this holds."""


class Lines:
    """The records of a file that another process writes, as they arrive."""

    def __init__(self, path, kind):
        self.path, self.kind, self.offset = path, kind, 0

    def new(self):
        try:
            with open_file(self.path) as file:
                file.seek(self.offset)
                text = file.read()
        except FileNotFoundError:
            return
        text = text[:text.rfind(b"\n") + 1]
        self.offset += len(text)
        for line in text.splitlines():
            record = json.loads(line)
            if record["kind"] == self.kind:
                yield record


def begin_process(command, said):
    """In a session of its own: the terminal's Ctrl-C comes to this program alone. When this one
    dies, it is told to end."""
    pr_set_pdeathsig = 1
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
        start_new_session=True,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM))


def end_process(process):
    """Ends a replay at once, which takes two signals, and waits for all of its processes. A wait
    without a limit could last for ever: a signal may have met Python as it waited before."""
    for send, seconds in ((process.terminate, 0.3), (process.terminate, SECONDS_TO_END),
                          (process.kill, SECONDS_TO_END)):
        if process.poll() is not None:
            return
        send()
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            pass


def is_same_place(load, save):
    """Whether a run that loads from there continues itself: a folder may have several names."""
    if not load or not save or is_remote(load) or is_remote(save):
        return load.rstrip("/") == save.rstrip("/")
    return os.path.realpath(load) == os.path.realpath(save)


def is_there(place):
    """Whether a replay may find something there; an object store is not asked."""
    return is_remote(place) or os.path.exists(place)


class Replay:
    """Executes steps `start` + 1 to `last` again in the folder `scratch`, from the checkpoint
    `origin` (None: from the beginning), and compares them with the ledger. With `to_next_state` it
    goes on after a line that differs until a saved state was compared, too."""

    def __init__(self, run, start, last, origin, flags, scratch, to_next_state=False):
        self.run, self.start, self.last = run, start, last
        self.executed = start  # the last step that was
        self.line = None       # the first that differs: (step, sentence)
        self.other_settings = False
        self.same = []         # saved steps whose states are equal
        self.other = {}        # a sentence by saved step whose state differs
        self.scratch = scratch
        self.to_next_state = to_next_state
        self.steps = Lines(scratch / "metrics.jsonl", "step")
        self.saves = Lines(scratch / "saves.jsonl", "save")
        command = [sys.executable, *PROGRAMS, str(run.config), *QUIET, *flags,
                   f"--run-dir={scratch}", f"--save={scratch}/checkpoints", "--enable-save-ckpt",
                   "--auto-resume", f"--exit-interval={last}"]
        if origin is not None:
            command += [*WHOLE_CHECKPOINT, f"--load={origin}", f"--ckpt-step={start}"]
            # What the run stated of the checkpoint that it began from is not true of this one.
            if re.search(r"^\s*consumed_samples: ", run.settings, re.MULTILINE):
                position = run.steps[start + 1]["first_sample"]
                command.append(f"--consumed-samples={position}")
        elif start > 0:
            # The folder that the run began from may have later checkpoints by now.
            command += ["--exit-on-missing-checkpoint", f"--ckpt-step={start}"]
        elif is_same_place(run.setting("load"), run.setting("save")):
            command += ["--load=", "--exit-on-missing-checkpoint=false"]
        with open(scratch / "stderr", "wb") as said:
            process = begin_process(command, said)
        try:
            self.watch(process)
        finally:
            end_process(process)
        self.exit_code = process.returncode
        if self.line is None and not self.other:
            self.check_end()

    def watch(self, process):
        while True:
            ended = process.poll() is not None
            # A state is saved after its step has been recorded.
            saves = list(self.saves.new())
            for record in self.steps.new():
                self.compare_step(record)
            for record in saves:
                self.compare_state(record)
            found_state = self.other or (self.line and max(self.same, default=0) >= self.line[0])
            if ended or found_state or (self.line and not self.to_next_state):
                return
            try:
                process.wait(timeout=SECONDS_TO_POLL)
            except subprocess.TimeoutExpired:
                pass

    def compare_step(self, again):
        step = again["step"]
        if step != self.executed + 1:
            raise Refused(f"the replay executed step {step} instead of step {self.executed + 1}: "
                          "the run does not begin any more where it began")
        self.executed = step
        for field in COMPARED:
            recorded, now = self.run.steps.get(step, {}).get(field), again.get(field)
            # Older versions recorded no bits of a norm that is not finite.
            if field == "grad_norm_bits" and recorded is None:
                continue
            if recorded != now and self.line is None and step <= self.last:
                self.line = (step, f"{field} is {recorded} in the ledger, and {now} when it is "
                                   "executed again")
                self.other_settings = field == "settings"

    def compare_state(self, again):
        step = again["step"]
        if step <= self.start or step not in self.run.saves:
            return
        recorded, now = self.run.saves[step]["state"], again["state"]
        if recorded == now:
            self.same.append(step)
        else:
            self.other[step] = (f"the saved state is {recorded} in saves.jsonl, and {now} when it "
                                "is computed again")

    def check_end(self):
        """The replay has come to its end, and no step differs."""
        said = "; ".join(
            line for line in (self.scratch / "stderr").read_text(errors="replace").splitlines()
            if line.strip() and not STARTING.match(line)) or "it says nothing"
        if self.exit_code == 2:
            raise Refused(said)
        if self.executed < self.last and OTHER_DATA.search(said):
            raise OtherData(f"step {self.executed + 1}: the replay ended before it: {said}")
        if self.executed < self.last:
            raise Refused(f"step {self.executed + 1}: the replay could not execute it: {said}")
        if self.exit_code != 0:
            raise Refused(f"steps {self.start + 1} to {self.last}: their lines are those of the "
                          f"ledger, but then the replay ended with an error: {said}")

    def expect_equal(self):
        differences = [(step, 1, sentence) for step, sentence in self.other.items()]
        if self.line is not None:
            differences.append((self.line[0], 0, self.line[1]))
        if differences:
            step, _, sentence = min(differences)
            raise NotProven(f"step {step}: {sentence}")


def replay(run, start, last, flags):
    """Returns the number of saved states that were compared, too."""
    origin = None
    if start in run.checkpoints:
        origin = run.checkpoints[start]
    with tempfile.TemporaryDirectory(prefix="audit-", ignore_cleanup_errors=True) as scratch:
        again = Replay(run, start, last, origin, flags, pathlib.Path(scratch))
    again.expect_equal()
    return len(again.same)


class Bisection:
    """The search for the first saved state that does not follow.

    Up to the saved step `good` everything follows from the base: the beginning or, where that is
    gone, the first checkpoint. `bad` is the first saved step whose state is known to differ."""

    def __init__(self, run, flags, begins):
        self.run, self.flags = run, flags
        for step in sorted(run.checkpoints):
            # A checkpoint whose run died before it was recorded is a record of itself.
            checked = run.check_checkpoint(step)
            if checked:
                run.saves.setdefault(step, checked)
        print(f"{len(run.checkpoints)} checkpoints are whole, and hold what the records say",
              flush=True)
        self.last = max(run.steps)
        self.good = self.base = self.find_base(begins[-1])
        self.bad = None
        self.compared = {self.base}  # saved steps whose states follow, and the base
        self.line = None
        self.other_data = ""
        self.replays = self.executed = 0
        # Where a replay may begin: checkpoints by step, those of the run before those of replays.
        self.origins = {step: [name] for step, name in run.checkpoints.items() if step > self.base}
        self.origins[self.base] = [run.checkpoints.get(self.base)]

    def find_base(self, chain):
        """The last step before those that can be executed."""
        missing = [step for step in range(chain, self.last + 1)
                   if "ledger" not in self.run.steps.get(step, {})]
        if missing:
            raise Refused(f"metrics.jsonl has no ledger of step {missing[0]}")
        gone = "with a part of a checkpoint"
        if chain == self.run.origin + 1:
            if self.can_begin():
                return self.run.origin
            gone = "with a checkpoint that is gone"
        later = [step for step in self.run.checkpoints if chain <= step < self.last]
        if not later:
            raise Refused(f"the run begins after step {chain - 1} {gone}, and it has no other")
        return min(later)

    def can_begin(self):
        """Whether that with which the run began is there."""
        load, file = self.run.stated("load"), self.run.stated("llmc_filepath")
        is_elsewhere = load and not is_same_place(load, self.run.setting("save"))
        places = [load] if is_elsewhere or self.run.origin > 0 else []
        if file and (is_elsewhere or self.run.origin == 0):
            places.append(file)
        return all(map(is_there, places)) or self.run.origin in self.run.checkpoints

    def name(self, step):
        return "the beginning" if step == self.run.origin else f"step {step}"

    def cost(self):
        return f"{self.replays} replay{'s' * (self.replays > 1)} executed {self.executed} steps"

    def search(self):
        states = [step for step in self.run.saves if self.base < step < self.last]
        targets = sorted(states) + [self.last]
        with tempfile.TemporaryDirectory(prefix="audit-", ignore_cleanup_errors=True) as scratch:
            while targets:
                self.halve(targets, pathlib.Path(scratch))
                targets = [step for step in targets
                           if self.good < step and (self.bad is None or step < self.bad[0])]
                if not targets and self.bad is None:
                    # Replays pass over a state that was saved between the steps of the interval,
                    # on a signal for example. One that ends there compares it.
                    targets = [step for step in sorted(self.run.saves)
                               if self.base < step <= self.last and step not in self.compared][:1]
                    self.good = max(step for step in self.compared
                                    if not targets or step < targets[0])
        print(self.cost(), flush=True)
        if self.bad is not None:
            raise NotProven(self.verdict() + self.other_data)
        print(f"all {self.last - self.base} steps from {self.name(self.base)} to step {self.last} "
              f"follow, and so do {len(states) + (self.last in self.run.saves)} saved states; the "
              f"head of the chain is {self.run.steps[self.last]['ledger']}{self.other_data}")

    def halve(self, targets, scratch):
        middle = targets[(len(targets) - 1) // 2]
        for name in [name for name in self.run.checkpoints.values() if self.run.is_gone(name)]:
            self.forget(name)
        start = max((step for step in self.origins if step <= self.good), default=None)
        if start is None:
            raise Refused(f"the checkpoint of step {self.base} has been deleted meanwhile")
        folder = scratch / f"to-{middle}-{self.replays}"
        folder.mkdir()
        try:
            again = Replay(self.run, start, middle, self.origins[start][0], self.flags, folder,
                           to_next_state=True)
        except OtherData as error:
            if len(self.origins[start]) == 1:
                raise NotProven(f"{error}{self.other_data}") from error
            # Checkpoints that the replays have saved were trained on the data that are here.
            self.other_data = (f"; the data that are here are not those of the checkpoint of step "
                               f"{start}: {error}")
            for name in self.run.checkpoints.values():
                self.forget(name)
            shutil.rmtree(folder)
            return
        self.replays += 1
        self.executed += again.executed - start
        first = min([*again.other, *([again.line[0]] if again.line else [])], default=None)
        follow = [step for step in again.same if first is None or step < first]
        if first is None:
            if middle in self.run.saves and middle not in again.same:
                raise Refused(f"step {middle}: the replay did not save its state")
            follow.append(middle)
            self.origins.setdefault(middle, []).append(f"{folder}/checkpoints/step-{middle:08}")
            print(f"steps {start + 1} to {middle} follow from {self.name(start)}", flush=True)
        else:
            self.bad = min((step, True) for step in again.other) if again.other else (middle, False)
            print(f"steps {start + 1} to {self.bad[0]} do not follow from {self.name(start)}",
                  flush=True)
        if again.other_settings:
            raise NotProven(f"step {again.line[0]}: {again.line[1]}: the settings are not those of "
                            "the run")
        self.line = min(filter(None, (self.line, again.line)), default=None)
        after_line = [step for step in again.same if self.line and step >= self.line[0]]
        if after_line:
            raise NotProven(f"step {self.line[0]}: {self.line[1]}, though the state of step "
                            f"{after_line[0]} follows: it is the record that does not")
        self.compared.update(follow)
        self.good = max([self.good, *follow])
        kept = self.origins[max(step for step in self.origins if step <= self.good)]
        for other in scratch.iterdir():
            if not any(str(origin).startswith(f"{other}/") for origin in kept):
                shutil.rmtree(other)
                self.forget(other)

    def forget(self, name):
        """No replay begins with the checkpoint of this name, or with those in this folder."""
        for step, origins in list(self.origins.items()):
            kept = [origin for origin in origins if not f"{origin}/".startswith(f"{name}/")]
            self.origins[step] = kept
            if not kept:
                del self.origins[step]

    def verdict(self):
        """What was proven, and no more than that."""
        bad, compared = self.bad
        line = (f"the first line that differs is that of step {self.line[0]}: {self.line[1]}"
                if self.line and self.line[0] <= bad else f"no line up to step {bad} differs")
        if not compared:
            return (f"the state of {self.name(self.good)} follows, and no later one could be "
                    f"compared; {line}")
        if bad == self.good + 1:
            return (f"the state of step {bad} does not follow from that of {self.name(self.good)}; "
                    f"{line}")
        until = min(bad, self.line[0] if self.line else bad)
        good = self.name(self.good)
        saved = good if self.good == self.run.origin else f"the save of {good}"
        return (f"between {good}, whose state follows, and step {bad}, whose state does not; "
                f"{line}; so what changed it came between {saved} and the end of step {until}")


def have(states):
    return "has 1 saved state" if states == 1 else f"have {states} saved states"


def parse_ranges(text):
    ranges = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if not match:
            raise Refused(f"--steps={text}: expected FIRST-LAST, as 40-60")
        ranges.append((int(match.group(1)), int(match.group(2) or match.group(1))))
    return ranges


def choose_ranges(options, begin, last):
    if "steps" in options:
        return parse_ranges(options["steps"])
    count, seed = options["random"], options.get("seed", "0")
    if not count.isdigit() or int(count) == 0 or not seed.isdigit():
        raise Refused("--random and --seed are numbers, the former not 0")
    chosen = random.Random(int(seed))
    firsts = [chosen.randint(begin, last) for _ in range(int(count))]
    return [(first, min(first + LENGTH_OF_RANDOM_RANGES - 1, last)) for first in firsts]


def audit(words):
    options = {}
    flags, folders = [], []
    for word in words:
        match = re.fullmatch(r"--(?:(steps|random|seed)=(.*)|(bisect))", word)
        if match:
            options[match.group(1) or match.group(3)] = match.group(2)
        else:
            (flags if word.startswith("--") else folders).append(word)
    modes = [mode for mode in ("steps", "random", "bisect") if mode in options]
    if len(folders) != 1 or len(modes) != 1 or ("seed" in options and modes != ["random"]):
        raise Refused("expected the folder of a run and either --steps=40-60, --random=3 (with "
                      "--seed=1) or --bisect; flags are written --name=value")
    run = Run(pathlib.Path(folders[0]).absolute(), CKPT, flags)
    begins = run.check_chain()
    print(f"{run.folder}: the lines of {len(run.steps)} steps are whole, in "
          + ("one chain" if len(begins) == 1 else f"{len(begins)} chains")
          + f" from step {', '.join(map(str, begins))} on", flush=True)
    if "bisect" in options:
        Bisection(run, flags, begins).search()
        return
    for first, last in choose_ranges(options, run.origin + 1, max(run.steps)):
        start = -1
        while start < 0 or start in run.checkpoints and not run.check_checkpoint(start):
            start = max((step for step in run.checkpoints if step < first), default=run.origin)
        missing = [step for step in range(min(start + 1, first), last + 1)
                   if "ledger" not in run.steps.get(step, {})]
        if first < 1 or first > last or missing:
            raise Refused(f"steps {first}-{last}: metrics.jsonl has no ledger of "
                          f"{missing[:1] or 'them'}")
        states = replay(run, start, last, flags)
        origin = f"the checkpoint of step {start}" if start in run.checkpoints else "the beginning"
        print(f"proven: steps {start + 1} to {last}, executed again from {origin}, have the bits "
              f"of the ledger, and so {have(states)}; the head of the chain is "
              f"{run.steps[last]['ledger']}", flush=True)


def on_signal(number, _frame):
    for other in ENDING_SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


def main():
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()))
    if any(word in ("-h", "--help") for word in sys.argv[5:]):
        print(__doc__)
        return 0
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        audit(sys.argv[5:])
    except Refused as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    except NotProven as error:
        print(f"not proven: {error}")
        return 1
    except Interrupted as error:
        print(f"audit: ended by signal {error.args[0]}", file=sys.stderr)
        return 128 + error.args[0]
    except OSError as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    except Exception:  # 1 would say that a step does not follow
        traceback.print_exc()
        return 2
    return 0


if __name__ == "__main__":
    ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # The launcher, train and prepare_data.
    PROGRAMS = [os.path.abspath(word) for word in sys.argv[1:4]]
    CKPT = os.path.abspath(sys.argv[4])
    sys.exit(main())
