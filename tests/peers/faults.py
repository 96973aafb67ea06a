"""The same faults for PyTorch DCP, Orbax and Tessera: what each makes of them, as a table.

  faults.py TESSERA_RANK [--libraries=dcp,orbax,tessera] [--scale=1] [--seed=1] [--ranks=2]
            [--only=TITLE] [--into=FILE] [--scratch=DIR]

Every element of the state is known, so that a load that succeeds is compared with what was saved,
bit for bit. The table is printed; with --into, it replaces that of the file. Each trial is logged
to stderr.
Exit code 1 where Tessera loads other values, loses what it reported as saved, or does not answer,
and where a scenario could not be finished.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time

import job as jobs

TENSORS = 8  # of 4 MiB
# Seconds for the answer to a save or load, and for the other ranks once one has failed and ends.
# JAX ends what waits after 300 s, and Orbax after 600 s: these answers count.
LIMIT = 700
BESIDE = 6  # trials that wait beside the others
DATA_BYTES = 256 << 10  # files of this size and more hold the weights

EQUAL, OTHER, ERROR, NONE = "equal", "other values", "error", "none"
BEFORE = "the one before loads"
WRONG = "other values load, without an error"
MIX = "a mix of both loads, without an error"
LOST = "reported as saved, but the one before loads"
SUPPLANTED = "the state of the other loads"
UNLOADABLE = "it does not load"
OLDER = "steps older loads"
NOTHING = "finds nothing"
BROKEN = (WRONG, MIX, LOST, SUPPLANTED, UNLOADABLE, OLDER, NOTHING, "no answer")
NOT_RUN = "not run: nothing can be mounted here"
UNFINISHED = "not finished"

STARTED = time.monotonic()


def say(text):
    print(f"{time.monotonic() - STARTED:.0f} s: {text}", file=sys.stderr, flush=True)


def what_failed(answers, seconds):
    """One phrase for the answers after so many seconds, of which at least one is no success."""
    after = f" after {float(f'{seconds:.1g}'):.0f} s" if seconds >= 60 else ""
    counts = ((sum(answer.startswith("error") for answer in answers), ERROR),
              (answers.count("died"), f"the process ends{after}"),
              (answers.count("silent"), f"no answer{after}"))
    if counts[0][0] == len(answers):
        return ERROR + after
    return ", ".join(f"{count} of {len(answers)} ranks: {text}" for count, text in counts if count)


class Faults:
    """The scenarios, for one library."""

    def __init__(self, library, options, pool=None, saved=None):
        self.library, self.options, self.pool = library, options, pool
        self.title = self.random = None  # of the scenario
        self.number = 0  # of its trials beside
        self.jobs = {}  # by mode
        self.seconds = {}  # of saves, by mode
        self.root = tempfile.mkdtemp(prefix="folders-", dir=options.scratch)
        self.folders = 0
        self.saved = saved  # a folder with steps 1 and 2

    def end(self):
        for mode in list(self.jobs):
            self.drop(mode)
        shutil.rmtree(self.root)

    def say(self, text):
        say(f"{self.library.title}: {self.title}: {text}")

    def outcomes(self, title, scenario):
        """Outcomes, and futures of outcomes."""
        self.title, self.random = title, random.Random(f"{self.options.seed} {title}")
        self.number = 0
        try:
            for outcome in scenario(self):
                if isinstance(outcome, str):
                    self.say(outcome)
                yield outcome
        except (RuntimeError, OSError) as error:
            self.say(f"{UNFINISHED}: {error}")
            for mode in list(self.jobs):
                self.drop(mode)
            yield UNFINISHED

    def beside(self, trials, trial):
        """Futures of trials with jobs of their own: ranks may be silent for minutes in them."""
        self.saved = self.saved or self.saved_folder()
        for _ in range(self.count(trials)):
            self.number += 1
            yield self.pool.submit(self.alone, f"{self.title}, trial {self.number}", trial)

    def alone(self, title, trial):
        faults = Faults(self.library, self.options, saved=self.saved)
        try:
            return next(faults.outcomes(title, lambda faults: [trial(faults)]))
        finally:
            faults.end()

    # Jobs, and what they are told.

    def start(self, mode):
        return jobs.Job(self.library, mode, TENSORS, self.options.ranks)

    def job(self, mode):
        if mode not in self.jobs:
            self.jobs[mode] = self.start(mode)
        return self.jobs[mode]

    def drop(self, mode):
        """Ends a job: after a kill, and after any error, which may leave its ranks out of step."""
        return self.jobs.pop(mode).end() if mode in self.jobs else []

    def wait(self, job, ranks=None):
        answers = job.wait(LIMIT, ranks)
        if any(answer.startswith(("error", "died", "silent")) for answer in answers):
            self.say(f"{job.told}: {answers}")
        if "died" in answers or "silent" in answers:
            self.say(f"the log of its ranks:\n{job.log_text()}")
        return answers

    def begin_save(self, mode, folder, step, variant=0):
        job = self.job(mode)
        job.tell(f"save {folder} {step} {variant}")
        if not job.read(lambda: all(job.answers[rank] or job.last(rank) for rank in job.ranks),
                        LIMIT):
            raise RuntimeError(f"{job.told}: not begun: {job.log_text()}")
        return job

    def typical(self, mode):
        """Seconds of a save, once all ranks have begun it."""
        return statistics.median(self.seconds[mode])

    def save(self, mode, folder, step, variant=0):
        """"saved", or what failed."""
        job = self.begin_save(mode, folder, step, variant)
        begin = time.monotonic()
        answers = self.wait(job)
        if all(answer == "saved" for answer in answers):
            self.seconds.setdefault(mode, []).append(time.monotonic() - begin)
            return "saved"
        self.drop(mode)
        return what_failed(answers, time.monotonic() - begin)

    def load(self, folder, step, mode=None):
        """(EQUAL, step, variant), (OTHER, step), (NONE,), or (what failed,)."""
        mode = mode or self.library.mode
        job = self.job(mode)
        begin = time.monotonic()
        job.tell(f"load {folder} {step}")
        answers = self.wait(job)
        if all(answer.startswith("loaded") for answer in answers):
            found = [[int(word) for word in answer.split()[1:]] for answer in answers]
            for variant in (0, 1):
                if all(numbers[1 + variant] == numbers[3] for numbers in found):
                    return EQUAL, found[0][0], variant
            return OTHER, found[0][0]
        self.drop(mode)
        if all(answer == "none" for answer in answers):
            return (NONE,)
        return (what_failed(answers, time.monotonic() - begin),)

    def new_folder(self):
        self.folders += 1
        folder = os.path.join(self.root, str(self.folders))
        os.makedirs(folder)
        return folder

    def saved_folder(self, mode=None, steps=2):
        """A new folder with these steps."""
        folder = self.new_folder()
        for step in range(1, steps + 1):
            outcome = self.save(mode or self.library.mode, folder, step)
            if outcome != "saved":
                raise RuntimeError(f"a save failed without a fault: {outcome}")
        return folder

    def after_error(self, failed, folder, step):
        """Whether the checkpoint before can be loaded, by its step."""
        before = self.load(folder, step)
        return failed + (f"; {BEFORE} when asked for" if before[:2] == (EQUAL, step) else
                         f"; the one before: {before[0]}")

    def restart(self, folder, newest, mode=None):
        """Starts anew from a folder whose steps `newest` - 1 and below are whole."""
        found = self.load(folder, "newest", mode)
        if found[0] == EQUAL:
            return (BEFORE if found[1] == newest - 1 else "the newest loads" if found[1] == newest
                    else f"one {newest - found[1]} {OLDER}")
        if found[0] == OTHER:
            return WRONG
        failed = NOTHING if found[0] == NONE else f"ends: {found[0]}"
        return self.after_error(failed, folder, newest - 1)

    def count(self, trials):
        return max(1, round(trials * self.options.scale))

    def moments(self, trials):
        """Parts of a save's time: a third each at its begin, in its middle and about its end."""
        for trial in range(self.count(trials)):
            yield self.random.uniform(*((0, 0.1), (0.1, 0.9), (0.9, 1.3))[trial % 3])

    # Scenarios: each yields outcomes.

    def killed(self, mode):
        folder, good = self.saved_folder(mode, 4), 4
        for moment in self.moments(24):
            self.begin_save(mode, folder, good + 1)
            time.sleep(moment * self.typical(mode))
            reported = "saved" in self.drop(mode)
            outcome = self.restart(folder, good + 1, mode)
            if reported and outcome == BEFORE:
                outcome = LOST
            good += outcome == "the newest loads"
            again = outcome in (BEFORE, LOST, "the newest loads")
            if again and self.save(mode, folder, good + 1) != "saved":
                outcome, again = f"{outcome}; the save after the restart fails", False
            yield outcome
            good += 1
            if not again:
                folder, good = self.saved_folder(mode, 2), 2

    def saved_again(self):
        mode = self.library.mode
        for moment in self.moments(24):
            folder = self.saved_folder()
            self.begin_save(mode, folder, 2, variant=1)
            time.sleep(moment * self.typical(mode))
            answers = self.drop(mode)
            refused = any(answer.startswith("error") for answer in answers)
            found = self.load(folder, 2)
            if found[0] == EQUAL:
                outcome = ("the old state loads", "the new state loads")[found[2]]
            elif found[0] == OTHER:
                outcome = WRONG
            else:
                outcome = self.after_error(f"neither state loads ({found[0]})", folder, 1)
            yield f"the second save is refused, {outcome}" if refused else outcome

    def damaged(self, folder, step, damage):
        """A copy of a folder with steps 1 and 2, in which one file of step 2 is damaged."""
        copy = self.new_folder()
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        damage(self, self.files(copy, step))
        return copy

    def files(self, folder, step):
        """(files with weights, other files) of a step."""
        paths = [os.path.join(where, name)
                 for where, _, names in os.walk(self.library.step_folder(folder, step))
                 for name in names]
        paths = sorted(path for path in paths if os.path.getsize(path) > 0)
        return ([path for path in paths if os.path.getsize(path) >= DATA_BYTES],
                [path for path in paths if os.path.getsize(path) < DATA_BYTES])

    def cut(self, files):
        path = self.random.choice(files[0])
        size = self.random.randrange(os.path.getsize(path))
        os.truncate(path, size)
        self.say(f"{path}: {size} bytes left")

    def flip(self, path):
        with open(path, "r+b") as file:
            offset = self.random.randrange(os.path.getsize(path))
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 0xFF]))
        self.say(f"{path}: byte {offset} inverted")

    def flip_weight(self, files):
        self.flip(self.random.choices(files[0], [os.path.getsize(path) for path in files[0]])[0])

    def flip_other(self, files):
        self.flip(self.random.choice(files[1]))

    def empty_other(self, files):
        path = self.random.choice(files[1])
        os.truncate(path, 0)
        self.say(f"{path}: emptied")

    def remove(self, files):
        path = self.random.choice(files[0])
        os.remove(path)
        self.say(f"{path}: removed")

    def load_damaged(self, damage):
        folder = self.damaged(self.saved, 2, damage)
        found = self.load(folder, 2)
        shutil.rmtree(folder)
        return "loads, equal" if found[0] == EQUAL else WRONG if found[0] == OTHER else found[0]

    def flipped(self, flip, trials):
        self.saved = self.saved or self.saved_folder()
        for _ in range(self.count(trials)):
            yield self.load_damaged(flip)

    def restart_from_damaged(self):
        for damage in (Faults.cut, Faults.flip_weight, Faults.remove, Faults.empty_other):
            yield from self.beside(4, lambda faults, damage=damage: faults.restart(
                faults.damaged(faults.saved, 2, damage), 2))

    @contextlib.contextmanager
    def mounted(self, part):
        """A file system with step 1 and room for this part of step 2, or None."""
        step = self.library.step_folder(self.saved, 1)
        blocks = sum(os.lstat(os.path.join(where, name)).st_blocks
                     for where, folders, names in os.walk(step) for name in (*folders, *names))
        folder = self.new_folder()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={int(512 * blocks * (1 + part))}", "none",
                 folder]
        if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            yield None
            return
        try:
            outcome = self.save(self.library.mode, folder, 1)
            if outcome != "saved":
                raise RuntimeError(f"a save failed with room for it: {outcome}")
            yield folder
        finally:
            self.drop(self.library.mode)
            subprocess.run(["umount", "--lazy", folder], check=True)

    def disk_full(self):
        with self.mounted(self.random.uniform(0.1, 0.99)) as folder:
            return NOT_RUN if folder is None else self.save_and_restart(folder)

    def read_only(self):
        with self.mounted(3) as folder:
            if folder is not None:
                self.drop(self.library.mode)
                subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            return NOT_RUN if folder is None else self.save_and_restart(folder)

    def save_and_restart(self, folder):
        outcome = self.save(self.library.mode, folder, 2)
        return f"save: {outcome}; restart: {self.restart(folder, 2)}"

    def two_writers(self):
        mode = self.library.mode
        other = None
        for _ in range(self.count(12)):
            folder = self.saved_folder(steps=1)
            writers = [self.job(mode), other or self.start(mode)]
            other = writers[1]
            for variant, writer in enumerate(writers):
                writer.tell(f"save {folder} 2 {variant}")
                time.sleep(self.random.uniform(0, 0.5 * self.typical(mode)))
            saved, failed, begin = [], set(), time.monotonic()
            for variant, writer in enumerate(writers):
                answers = self.wait(writer)
                if all(answer == "saved" for answer in answers):
                    saved.append(variant)
                    continue
                failed.add(what_failed(answers, time.monotonic() - begin))
                writer.end()
                if variant == 0:
                    del self.jobs[mode]
                else:
                    other = None
            found = self.load(folder, 2)
            if found[0] == EQUAL:
                outcome = ("what it saved loads" if saved == [found[2]] else
                           "the state of one loads" if found[2] in saved or not saved else
                           SUPPLANTED)
            elif found[0] == OTHER:
                outcome = MIX
            else:
                new = f"{UNLOADABLE} ({found[0]})" if saved else "no new state"
                outcome = self.after_error(new, folder, 1)
            ends = f" ({', '.join(sorted(failed))})" if failed else ""
            yield f"{('none', 'one', 'both')[len(saved)]} reported as saved{ends}, {outcome}"
        if other:
            other.end()

    def rank_dies(self, mode):
        for victim in range(self.options.ranks):
            folder = self.saved_folder(mode, 1)
            job = self.job(mode)
            others = [rank for rank in job.ranks if rank != victim]
            job.tell(f"save {folder} 2 0", others)
            time.sleep(1)
            begin = time.monotonic()
            job.kill([victim])
            answers = self.wait(job, others)
            seconds = time.monotonic() - begin
            self.drop(mode)
            how = ("saved" if all(answer == "saved" for answer in answers) else
                   what_failed(answers, seconds))
            yield f"rank {victim} dies: {how}; restart: {self.restart(folder, 2, mode)}"


# Title, how it is done, and its outcomes.
SCENARIOS = [
    ("killed in a save", "SIGKILL to all ranks, equally often in the first tenth of a save's time, "
     "in the middle and about its end; then a restart, whose next save must work",
     lambda faults: faults.killed("sync")),
    ("killed in an asynchronous save", "the same", lambda faults: faults.killed("async")),
    ("killed in a second save of a step", "the step is there already, with other values; then it "
     "is loaded", Faults.saved_again),
    ("truncated shard", "a file with weights ends at a random offset; then the step is loaded",
     lambda faults: faults.beside(8, lambda faults: faults.load_damaged(Faults.cut))),
    ("flipped byte in a weight", "one byte, anywhere in the files with weights, inverted",
     lambda faults: faults.flipped(Faults.flip_weight, 30)),
    ("flipped byte in metadata", f"one byte of a random one of the other files (below "
     f"{DATA_BYTES >> 10} KiB), inverted", lambda faults: faults.flipped(Faults.flip_other, 20)),
    ("missing file of a rank", "a file with weights is removed",
     lambda faults: faults.beside(4, lambda faults: faults.load_damaged(Faults.remove))),
    ("damaged newest", "step 1 is whole, step 2 has a truncated shard, a flipped byte in a weight, "
     "a missing file, an empty metadata file (equally many); a restart without a step",
     Faults.restart_from_damaged),
    ("read-only folder", "the file system is mounted read-only after the first checkpoint; then a "
     "restart", lambda faults: faults.beside(1, Faults.read_only)),
    ("disk full", "a tmpfs with room for 10 to 99 % of the second checkpoint; then a restart",
     lambda faults: faults.beside(4, Faults.disk_full)),
    ("two writers", "two jobs save the same step, with other values, at once; then it is loaded; "
     "in brackets: what a job answers that does not save it", Faults.two_writers),
    ("a rank dies while the others save", "it is killed before it begins, no launcher ends the "
     "others; then a restart", lambda faults: faults.rank_dies("sync")),
    ("a rank dies while the others save asynchronously", "the same",
     lambda faults: faults.rank_dies("async")),
]


def run(library, options):
    """The number of times of each outcome, by scenario."""
    with concurrent.futures.ThreadPoolExecutor(BESIDE) as pool:
        faults = Faults(library, options, pool)
        rows = {title: list(faults.outcomes(title, scenario))
                for title, _, scenario in SCENARIOS if options.only in title}
    faults.end()
    return {title: collections.Counter(outcome if isinstance(outcome, str) else outcome.result()
                                       for outcome in outcomes)
            for title, outcomes in rows.items()}


def cell(outcomes):
    ordered = sorted(outcomes.items(), key=lambda item: -item[1])
    return "<br>".join(f"{times} × {outcome}" for outcome, times in ordered)


def table(libraries, versions, results, options):
    lines = ["| scenario | " + " | ".join(library.title for library in libraries) + " |",
             "| --- |" + " --- |" * len(libraries)]
    lines += [f"| {title} | " + " | ".join(cell(results[library.name][title])
                                           for library in libraries) + " |"
              for title, *_ in SCENARIOS if options.only in title]
    linux = platform.release().split("-")[0]
    minutes = (time.monotonic() - STARTED) / 60
    paragraph = (f"One run of {minutes:.0f} minutes, --scale={options.scale:g} "
                 f"--seed={options.seed}: {options.ranks} ranks on {os.cpu_count()} cores, Linux "
                 f"{linux}, Python {platform.python_version()}. The state is {TENSORS} matrices of "
                 "4 MiB, split by rows, and a vector that each rank has. A rank that fails ends. "
                 f"All ranks have {LIMIT} s to answer, and {LIMIT} s more once one has failed. "
                 "Times of a minute and more are given to one digit.")
    lines += ["", textwrap.fill(paragraph, 100), ""]
    items = [f"{title}: {how}." for title, how, _ in SCENARIOS]
    items += [f"{library.title} ({versions[library.name]}): {library.note}"
              for library in libraries]
    lines += [textwrap.fill(f"- {item}", 100, subsequent_indent="  ", break_long_words=False,
                            break_on_hyphens=False) for item in items]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tessera_rank")
    parser.add_argument("--libraries", default="dcp,orbax,tessera")
    parser.add_argument("--scale", type=float, default=1, help="of the numbers of trials")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="scenarios whose title has this in it")
    parser.add_argument("--into", help="a file whose end, from its table on, is replaced")
    parser.add_argument("--scratch", default=os.environ.get("TEST_TMPDIR"))
    options = parser.parse_args()
    every = [jobs.Dcp("dcp"), jobs.Orbax("orbax"), jobs.Tessera(options.tessera_rank)]
    libraries = [library for library in every if library.name in options.libraries.split(",")]
    if options.into and (options.only or libraries != every):
        parser.error("--into takes the table of a whole run")
    versions = {library.name: library.versions() for library in libraries}
    results = {library.name: run(library, options) for library in libraries}
    text = table(libraries, versions, results, options)
    print(text)
    broken = [(name, title, outcome) for name, rows in results.items()
              for title, row in rows.items() for outcome in row
              if outcome == UNFINISHED or
              name == "tessera" and any(phrase in outcome for phrase in BROKEN)]
    if options.into:
        with open(options.into, "r+", encoding="utf-8") as file:
            kept = file.read().partition("| scenario |")[0]
            file.seek(0)
            file.truncate()
            file.write(kept + text)
    sys.exit(f"Broken: {broken}" if broken else 0)


if __name__ == "__main__":
    main()
