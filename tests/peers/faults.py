"""The same faults for PyTorch DCP, Orbax and Tessera: what each makes of them, as a table.

  faults.py TESSERA_RANK [--libraries=dcp,orbax,tessera] [--scale=1] [--seed=1] [--ranks=2]
            [--results=FILE] [--scratch=DIR]

Every element of the state is known, so that a load that succeeds is compared with what was saved,
bit for bit. With --results, a run adds the scenarios that the file does not have, and the table is
that of the whole file.
Exit code 1 where Tessera loads other values, loses what it reported as saved, or does not answer.
"""

import argparse
import collections
import contextlib
import json
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
# Each is LIMIT until a rank did not answer in it.
LIMIT = 400
LATER_LIMIT, LATER_GRACE = 60, 30
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


def say(text):
    print(text, file=sys.stderr, flush=True)


def what_failed(answers, seconds):
    """One phrase for the answers after so many seconds, of which at least one is no success."""
    after = f" after {round(seconds, -1):.0f} s" if seconds >= 10 else ""
    counts = ((sum(answer.startswith("error") for answer in answers), ERROR),
              (answers.count("died"), f"the process ends{after}"),
              (answers.count("silent"), f"no answer{after}"))
    if counts[0][0] == len(answers):
        return ERROR + after
    return ", ".join(f"{count} of {len(answers)} ranks: {text}" for count, text in counts if count)


class Faults:
    """The scenarios, for one library."""

    def __init__(self, library, options):
        self.library, self.options = library, options
        self.random = random.Random(options.seed)
        self.jobs = {}  # by mode
        self.messages = collections.Counter()
        self.seconds = {}  # of saves, by mode
        self.limit = self.grace = LIMIT
        self.root = tempfile.mkdtemp(prefix="folders-", dir=options.scratch)
        self.folders = 0
        self.saved = None  # a folder with steps 1 and 2

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

    def note(self, answers):
        self.messages.update(answer[:160] for answer in answers if answer.startswith("error"))

    def wait(self, job):
        answers = job.wait(self.limit, self.grace)
        if all(answer == "silent" for answer in answers):
            self.limit = LATER_LIMIT
        elif "silent" in answers or "died" in answers:
            self.grace = LATER_GRACE
        self.note(answers)
        return answers

    def begin_save(self, mode, folder, step, variant=0):
        job = self.job(mode)
        job.tell(f"save {folder} {step} {variant}")
        job.read(lambda: all(job.answers.values()), LIMIT)
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
                raise RuntimeError(f"a save failed without a fault: {outcome}, {self.messages}")
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
        damage(self.files(copy, step))
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
        os.truncate(path, self.random.randrange(os.path.getsize(path)))

    def flip(self, path):
        with open(path, "r+b") as file:
            offset = self.random.randrange(os.path.getsize(path))
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 0xFF]))

    def flip_weight(self, files):
        self.flip(self.random.choices(files[0], [os.path.getsize(path) for path in files[0]])[0])

    def flip_other(self, files):
        self.flip(self.random.choice(files[1]))

    def empty_other(self, files):
        os.truncate(self.random.choice(files[1]), 0)

    def remove(self, files):
        os.remove(self.random.choice(files[0]))

    def load_damaged(self, damage, trials):
        self.saved = self.saved or self.saved_folder()
        for _ in range(self.count(trials)):
            folder = self.damaged(self.saved, 2, damage)
            found = self.load(folder, 2)
            yield ("loads, equal" if found[0] == EQUAL else WRONG if found[0] == OTHER else
                   found[0])
            shutil.rmtree(folder)

    def restart_from_damaged(self):
        self.saved = self.saved or self.saved_folder()
        for damage in (self.cut, self.flip_weight, self.remove, self.empty_other):
            for _ in range(self.count(4)):
                folder = self.damaged(self.saved, 2, damage)
                yield self.restart(folder, 2)
                shutil.rmtree(folder)

    @contextlib.contextmanager
    def mounted(self, part):
        """A file system with step 1 and room for this part of step 2, or None."""
        self.saved = self.saved or self.saved_folder()
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
                raise RuntimeError(f"a save failed with room for it: {outcome}, {self.messages}")
            yield folder
        finally:
            self.drop(self.library.mode)
            subprocess.run(["umount", "--lazy", folder], check=True)

    def disk_full(self):
        for _ in range(self.count(4)):
            with self.mounted(self.random.uniform(0.1, 0.99)) as folder:
                yield NOT_RUN if folder is None else self.save_and_restart(folder)

    def read_only(self):
        with self.mounted(3) as folder:
            if folder is not None:
                self.drop(self.library.mode)
                subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            yield NOT_RUN if folder is None else self.save_and_restart(folder)

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
            answers = job.wait(LIMIT, LIMIT, others)
            seconds = time.monotonic() - begin
            self.note(answers)
            self.drop(mode)
            how = ("an error" if all(answer.startswith("error") for answer in answers) else
                   "the process ends" if all(answer == "died" for answer in answers) else
                   "saved" if all(answer == "saved" for answer in answers) else "no answer")
            yield (f"rank {victim} dies: {how} after {seconds:.0f} s; "
                   f"restart: {self.restart(folder, 2, mode)}")


# Title, how it is done, and the method with its arguments.
SCENARIOS = [
    ("killed in a save", "SIGKILL to all ranks, a third of the times in the first tenth of a "
     "save's time, a third in the middle, a third about its end; then a restart, whose next save "
     "must work", "killed", "sync"),
    ("killed in an asynchronous save", "the same", "killed", "async"),
    ("killed in a second save of a step", "the step is there already, with other values; then it "
     "is loaded", "saved_again"),
    ("truncated shard", "a file with weights ends at a random offset; then the step is loaded",
     "load_damaged", "cut", 8),
    ("flipped byte in a weight", "one byte, anywhere in the files with weights, inverted",
     "load_damaged", "flip_weight", 30),
    ("flipped byte in metadata", f"one byte of a random one of the other files (below "
     f"{DATA_BYTES >> 10} KiB), inverted", "load_damaged", "flip_other", 20),
    ("missing file of a rank", "a file with weights is removed", "load_damaged", "remove", 4),
    ("damaged newest", "step 1 is whole, step 2 has a truncated shard, a flipped byte in a weight, "
     "a missing file, an empty metadata file (in this order, equally many); a restart without a "
     "step", "restart_from_damaged"),
    ("read-only folder", "the file system is mounted read-only after the first checkpoint; then a "
     "restart", "read_only"),
    ("disk full", "a tmpfs with room for 10 to 99 % of the second checkpoint; then a restart",
     "disk_full"),
    ("two writers", "two jobs save the same step, with other values, at once; then it is loaded; "
     "in brackets: what a job answers that does not save it", "two_writers"),
    ("a rank dies while the others save", f"it is killed before it begins, no launcher ends the "
     f"others; they have {LIMIT} s; then a restart", "rank_dies", "sync"),
    ("a rank dies while the others save asynchronously", "the same", "rank_dies", "async"),
]


def run(library, options, results):
    """Adds to `results` the scenarios that it does not have yet."""
    faults = Faults(library, options)
    rows = results.setdefault(library.name, {"rows": {}})["rows"]
    results[library.name]["versions"] = library.versions()
    for title, _, method, *arguments in SCENARIOS:
        if options.only not in title or title in rows:
            continue
        arguments = [getattr(faults, argument) if method == "load_damaged" and
                     isinstance(argument, str) else argument for argument in arguments]
        begin = time.monotonic()
        rows[title] = collections.Counter(getattr(faults, method)(*arguments))
        say(f"{library.title}: {title} ({time.monotonic() - begin:.0f} s): {dict(rows[title])}")
        if options.results:
            with open(options.results, "w", encoding="utf-8") as file:
                json.dump(results, file, indent=1)
    for mode in list(faults.jobs):
        faults.drop(mode)
    shutil.rmtree(faults.root)
    for message, times in faults.messages.most_common(40):
        say(f"  {times} x {message}")


def cell(outcomes):
    ordered = sorted(outcomes.items(), key=lambda item: -item[1])
    return "<br>".join(f"{times} × {outcome}" for outcome, times in ordered)


def print_table(libraries, results, options):
    shown = [library for library in libraries if library.name in results]
    print("| scenario | " + " | ".join(library.title for library in shown) + " |")
    print("| --- |" + " --- |" * len(shown))
    for title, *_ in SCENARIOS:
        cells = [cell(results[library.name]["rows"].get(title, {})) for library in shown]
        print(f"| {title} | " + " | ".join(cells) + " |")
    linux = platform.release().split("-")[0]
    paragraph = (f"{options.ranks} ranks on {os.cpu_count()} cores, Linux {linux}, "
                 f"Python {platform.python_version()}. The state is {TENSORS} matrices of 4 MiB, "
                 "split by rows, and a vector that each rank has. A save or load has "
                 f"{LIMIT} s; once a library has not answered in it, {LATER_LIMIT} s. A rank that "
                 f"fails ends, and the others then have {LIMIT} s, later {LATER_GRACE} s.")
    print("\n" + textwrap.fill(paragraph, 100) + "\n")
    items = [f"{title}: {how}." for title, how, *_ in SCENARIOS]
    items += [f"{library.title} ({results[library.name]['versions']}): {library.note}"
              for library in shown]
    for item in items:
        print(textwrap.fill(f"- {item}", 100, subsequent_indent="  ", break_long_words=False,
                            break_on_hyphens=False))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tessera_rank")
    parser.add_argument("--libraries", default="dcp,orbax,tessera")
    parser.add_argument("--scale", type=float, default=1, help="of the numbers of trials")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="scenarios whose title has this in it")
    parser.add_argument("--results", help="a JSON file of what is done")
    parser.add_argument("--scratch", default=os.environ.get("TEST_TMPDIR"))
    options = parser.parse_args()
    libraries = [jobs.Dcp("dcp"), jobs.Orbax("orbax"), jobs.Tessera(options.tessera_rank)]
    results = {}
    if options.results and os.path.exists(options.results):
        with open(options.results, encoding="utf-8") as file:
            results = json.load(file)
    for library in libraries:
        if library.name in options.libraries.split(","):
            run(library, options, results)
    print_table(libraries, results, options)
    broken = [outcome for row in results.get("tessera", {"rows": {}})["rows"].values()
              for outcome in row if any(phrase in outcome for phrase in BROKEN)]
    sys.exit(f"Tessera: {broken}" if broken else 0)


if __name__ == "__main__":
    main()
