"""Kills training at random moments and starts it again on other topologies; nothing may be lost.

  campaign.py --train TRAIN --ckpt CKPT --s3-server SERVER [--rounds 200] [--seed N] [--steps 60]
              [--place local|s3|ext4|xfs|btrfs] [--folder DIR]

A generation is one model with its data and batches, trained in EXACT numerics: first undisturbed on
one process, then in rounds. A round starts it on a random legal topology of at most eight ranks,
with random ways of saving, from whatever the rounds before have left; sends SIGKILL to a rank, to
all ranks, to mpirun or to all of them, or asks the run to end by a signal or a stop file, during
start-up, between steps or during a save; waits until everything has ended; and compares all that
was recorded and saved with the undisturbed run, bit for bit. When the last step is reached, the
next generation begins. With --place=s3 the killed runs save to an object store that answers some
requests late, torn or not at all. With --place=ext4, xfs or btrfs, all that a killed run writes is
on such a file system, and instead of the kills the machine loses power: see disk.py. What is random
comes from the seed, but not what the machine makes of it: the moments of the kills.

Exit code 1 at the first promise that is not kept, with all that is needed to see it again.
"""

import argparse
import collections
import dataclasses
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time

import disk
import history
import processes
import settings
import store

# However busy the machine is, a run completes a step or a save, and a kill has taken effect, within
# this many seconds.
PATIENCE = 120
STEP_LINE = re.compile(r"^step (\d+)/", re.MULTILINE)
SAVED_LINE = re.compile(r"^saved step (\d+)", re.MULTILINE)
MOMENTS = ("start-up", "step", "save")


def say(text):
    print(text, flush=True)


@dataclasses.dataclass
class Plan:
    """One round, as the seed has it."""
    topology: settings.Topology
    saving: list
    victim: str
    rank: int
    moment: str
    count: int  # of steps or saves before the kill
    delay: float  # seconds after that; for a kill during start-up: in start-ups

    def asks(self):
        """Whether the run is asked to end, rather than killed."""
        return self.victim in ("signal", "stop file")

    def aim(self):
        who = f"rank {self.rank}" if self.victim == "rank" else self.victim
        if self.moment == "start-up":
            return f"{who} after {self.delay:.2f} of a start-up"
        return f"{who} {1000 * self.delay:.0f} ms after {self.moment} {self.count}"

    def saving_text(self):
        names = {"async-save": "async", "async-save-skip": "skip", "async-save-memory": "memory",
                 "save-interval": "every", "max-checkpoint-keep": "keep",
                 "ddp-bucket-size": "bucket", "verify-load": "verify",
                 "non-persistent-save-interval": "rolling", "save-retain-interval": "retain",
                 "save-top-k": "top", "async-upload": "upload"}
        parts = [flag.removeprefix("--").partition("=") for flag in self.saving]
        return " ".join(names[name] + (f"={value}" if value else "") for name, _, value in parts)


def pick_saving(random_):
    flags = [f"--save-interval={random_.choice((1, 1, 2, 3, 10))}"]
    if random_.random() < 0.5:
        flags.append(f"--non-persistent-save-interval={random_.choice((0, 1, 2))}")
    if random_.random() < 0.6:
        # The flags below need --async-save, by its own name.
        flags.append("--async-save")
        if random_.random() < 0.3:
            flags.append("--async-upload")
        if random_.random() < 0.25:
            flags.append("--async-save-skip")
        if random_.random() < 0.25:
            flags.append("--async-save-memory=20000")
    if random_.random() < 0.5:
        flags.append(f"--max-checkpoint-keep={random_.choice((1, 2, 3))}")
        if random_.random() < 0.3:
            flags.append("--save-retain-interval=4")
        if random_.random() < 0.3:
            flags.append("--save-top-k=2")
    if random_.random() < 0.5:
        flags.append("--ddp-bucket-size=3000")
    if random_.random() < 0.3:
        flags.append("--verify-load")
    return flags


def pick_plan(model, random_):
    """Sizes first, so that topologies that use an axis are likely, however few they are."""
    topologies = model.topologies()
    ranks = random_.choice((1, 2, 3, 4, 4, 6, 8, 8, 8))
    topologies = [t for t in topologies if t.ranks == ranks] or [settings.SINGLE]
    for axis in random_.sample(("dp", "tp", "pp", "vpp", "zero"), 5):
        value = random_.choice(sorted({getattr(t, axis) for t in topologies}))
        topologies = [t for t in topologies if getattr(t, axis) == value]
    topology = random_.choice(topologies)
    if random_.random() < 0.15:
        topology = dataclasses.replace(topology, auto=True)
    moment = random_.choices(MOMENTS, weights=(25, 35, 40))[0]
    # Most saves take a few milliseconds, some a hundred.
    most = random_.choice((0.003, 0.05))
    return Plan(topology=topology, saving=pick_saving(random_),
                victim=random_.choices(("rank", "ranks", "mpirun", "all", "signal", "stop file"),
                                       weights=(40, 15, 15, 10, 10, 10))[0],
                rank=random_.randrange(topology.ranks), moment=moment,
                count=random_.randint(1, 12 if moment == "step" else 8),
                delay=random_.uniform(0, 1.2 if moment == "start-up" else most))


class Watch:
    """What a run under way has come to: on disk, because mpirun passes its output on late."""

    def __init__(self, generation):
        self.run_dir = generation.run_dir
        self.checkpoints = generation.checkpoints
        self.before = generation.newest
        self.old_metrics = history.metrics_inode(self.run_dir)
        self.start = time.monotonic()
        self.started_after = None  # seconds until its first step
        self.steps = 0
        self.saves = set()  # incomplete directories that were seen
        self.left_over = history.half_written(self.checkpoints)
        self.saving = False
        self.last_change = self.start

    def look(self):
        known = (self.steps, len(self.saves))
        self.look_at_disk()
        if known != (self.steps, len(self.saves)):
            self.last_change = time.monotonic()

    def look_at_disk(self):
        new = history.half_written(self.checkpoints) - self.left_over
        self.saving = bool(new)
        self.saves |= new
        # A starting run replaces the file.
        if history.metrics_inode(self.run_dir) == self.old_metrics:
            return
        self.steps = history.last_step(history.read_records(self.run_dir)) - self.before
        if self.steps > 0 and self.started_after is None:
            self.started_after = time.monotonic() - self.start

    def moment(self):
        if self.saving:
            return "save"
        return "step" if self.steps > 0 else "start-up"

    def left_behind(self):
        """By the kill: a save that it interrupted."""
        new = history.half_written(self.checkpoints) - self.left_over
        return history.describe_half_written([path for path, _ in new])

    def reached(self, plan, startup):
        if plan.moment == "start-up":
            return time.monotonic() - self.start >= plan.delay * startup
        seen = self.steps if plan.moment == "step" else len(self.saves)
        if seen < plan.count:
            return False
        time.sleep(plan.delay)
        return True


class Generation:
    """One model, its undisturbed run, and the run that is killed again and again."""

    def __init__(self, campaign, number):
        random_ = random.Random(f"{campaign.seed} generation {number}")
        self.campaign = campaign
        self.number = number
        self.model = settings.pick_model(number, campaign.steps, campaign.bf16, random_)
        self.folder = os.path.join(campaign.folder, f"generation-{number:03d}")
        self.machine = os.path.join(self.folder, "machine")  # the disk of the killed runs
        self.run_dir = os.path.join(self.machine, "killed")
        self.store = campaign.open_store(self)
        os.makedirs(self.run_dir, exist_ok=True)
        self.checkpoints = self.store.path
        data = os.path.join(self.folder, "tokens.bin")
        settings.write_tokens(data, random_)
        self.flags = [campaign.train, *self.model.command_flags(data)]
        self.stop_file = os.path.join(self.folder, "stop")
        self.rounds = 0
        self.newest = 0
        self.reference = self.undisturbed()

    def undisturbed(self):
        run_dir = os.path.join(self.folder, "undisturbed")
        os.makedirs(run_dir)
        command = [*self.flags, f"--run-dir={run_dir}", f"--save={run_dir}/checkpoints",
                   "--save-interval=1"]
        job = processes.Job(1, command, self.folder, self.campaign.scratch)
        self.campaign.job = job
        if not job.wait_for_end(PATIENCE) or job.process.returncode != 0:
            raise history.Violation(f"the undisturbed run failed: {shlex.join(command)}\n"
                                    f"{job.errors()}")
        return history.Reference(run_dir, self.model.steps, settings.EVAL_INTERVAL)

    def command(self, plan):
        return [*self.flags, *plan.topology.flags(), *plan.saving, f"--run-dir={self.run_dir}",
                f"--save={self.store.name()}", *self.store.flags(),
                f"--stop-file-path={self.stop_file}",
                *(f"{flag}-tmp-folder={self.machine}/nearby" for flag in plan.saving
                  if flag == "--async-upload")]

    def check(self):
        """All promises about what is on disk; returns the recorded and the newest saved steps."""
        records = history.read_records(self.run_dir)
        self.reference.check_records(records)
        damaged = history.quarantined(self.checkpoints)
        if damaged:
            raise history.Violation(f"a run has found committed checkpoints damaged: {damaged}")
        saved = history.committed(self.checkpoints)
        newest = saved[-1][0] if saved else 0
        self.reference.check_complete(records, newest)
        if newest < self.newest:
            raise history.Violation(f"the checkpoint of step {self.newest} was committed, and the "
                                    f"newest is that of {newest}")
        # A kill can only harm the newest one.
        for step, directory in saved if self.store.loses_power else saved[-1:]:
            self.check_checkpoint(directory, step)
        return history.last_step(records), newest

    def check_end(self):
        """Reached the last step: every checkpoint that is kept."""
        for step, directory in history.committed(self.checkpoints):
            self.check_checkpoint(directory, step)

    def check_checkpoint(self, directory, step):
        self.campaign.checked += 1
        self.reference.check_checkpoint(self.campaign.ckpt, self.store.name(directory), step)


class Campaign:

    def __init__(self, options):
        self.seed = options.seed
        self.rounds = options.rounds
        self.steps = options.steps
        self.train = os.path.abspath(options.train)
        self.ckpt = history.Ckpt(os.path.abspath(options.ckpt))
        self.place = options.place
        self.s3_server = os.path.abspath(options.s3_server)
        self.store = store.Folder("")  # of the current generation
        self.bf16 = options.bf16
        self.folder = os.path.abspath(options.folder or tempfile.mkdtemp(prefix="tessera_crash_"))
        os.makedirs(self.folder, exist_ok=True)
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.scratch = tempfile.mkdtemp(prefix="tessera_crash_", dir=memory)
        self.job = None
        self.start = time.monotonic()
        self.done = 0  # rounds
        self.slowest_end = 0.0  # seconds from a kill to the death of the last process
        self.startup = 2.0  # seconds, of the runs so far
        self.counts = {name: collections.Counter() for name in
                       ("topology", "ranks", "moment", "victim", "moment and victim",
                        "what the killed save left", "saving")}
        self.finished = 0
        self.checked = 0  # checkpoints
        self.reproduction = ""

    def open_store(self, generation):
        self.store.close()
        if self.place == "s3":
            self.store = store.ObjectStore(self.s3_server, generation.folder)
            return self.store
        path = os.path.join(generation.run_dir, "checkpoints")
        if self.place == "local":
            self.store = store.Folder(path)
        else:
            self.store = disk.Disk(self.place, os.path.join(generation.folder, "disk"),
                                   generation.machine, path,
                                   random.Random(f"{self.seed} power {generation.number}"))
        return self.store

    def run(self):
        """Exit code."""
        generation = None
        say(f"crash campaign: {self.rounds} rounds, seed {self.seed}, place {self.place}, in "
            f"{self.folder}")
        number = 0
        try:
            for number in range(1, self.rounds + 1):
                if generation is None:
                    self.reproduction = ""
                    generation = Generation(self, self.finished)
                if self.round(generation, number):
                    generation = self.finish(generation)
            if generation is not None:
                self.last_run(generation)
                self.finish(generation)
        except history.Violation as violation:
            self.tell(violation, number)
            return 1
        return 0

    def round(self, generation, number):
        """Returns whether the last step was reached."""
        random_ = random.Random(f"{self.seed} round {number}")
        plan = pick_plan(generation.model, random_)
        if generation.store.loses_power and not plan.asks():
            plan.victim = "power"
        begin = time.monotonic()
        before = generation.newest
        moment, victim, watch = self.start_and_kill(generation, plan)
        recorded, generation.newest = generation.check()
        check_progress(self.job.output(), before, generation.newest,
                       None if victim == "power" else recorded)
        done = generation.newest == generation.model.steps
        if moment == "ended" and not done:
            raise history.Violation("the run ended well, but the newest checkpoint is that of "
                                    f"step {generation.newest}")
        left = watch.left_behind()
        self.count(plan, moment, victim, left)
        self.done = number
        say(f"round {number:3d} {generation.model.name:11} {str(plan.topology):20} "
            f"{plan.saving_text():42} | {victim:6} {moment:8} | "
            f"{progress(before, generation.newest, recorded, moment)} | left {left} | "
            f"{time.monotonic() - begin:.1f} s")
        return done

    def start_and_kill(self, generation, plan):
        command = generation.command(plan)
        watch = Watch(generation)
        job = processes.Job(plan.topology.ranks, command, generation.folder, self.scratch)
        self.job = job
        self.reproduction = f"{shlex.join(job.command)}\n  SIGKILL: {plan.aim()}"
        while not job.ended():
            watch.look()
            job.find(plan.topology.ranks)
            if watch.reached(plan, self.startup):
                break
            if time.monotonic() - watch.last_change > PATIENCE:
                raise history.Violation(f"nothing has happened for {PATIENCE} seconds, after "
                                        f"{watch.steps} steps and {len(watch.saves)} saves")
            time.sleep(0.002)
        if watch.started_after is not None:
            self.startup += 0.3 * (watch.started_after - self.startup)
        if job.ended():
            self.check_good_end(job)
            watch.look()
            return "ended", "no process", watch
        watch.look()
        moment = watch.moment()
        if plan.asks():
            return self.ask_to_end(generation, plan, watch, job)
        if plan.victim == "power":
            generation.store.power_off()
            job.kill("ranks", plan.rank)  # mpirun still passes on what they have printed
            victim = "power"
        else:
            victim = job.kill(plan.victim, plan.rank)
        killed = time.monotonic()
        if not job.wait_for_end(PATIENCE):
            raise history.Violation(f"{PATIENCE} seconds after the death of {plan.aim()} there are "
                                    f"processes: {job.members()}")
        self.slowest_end = max(self.slowest_end, time.monotonic() - killed)
        if victim == "power":
            generation.store.recover()
        watch.look()
        return moment, victim, watch

    def ask_to_end(self, generation, plan, watch, job):
        """By a signal, which mpirun passes on, or by the stop file: no step is lost."""
        if plan.victim == "signal":
            job.process.send_signal(signal.SIGUSR1)
        else:
            ahead = generation.newest + watch.steps + plan.count % 3
            with open(generation.stop_file, "w", encoding="utf-8") as file:
                file.write(f"{max(ahead, 1)}\n")
        if not job.wait_for_end(PATIENCE):
            raise history.Violation(f"{PATIENCE} seconds after the {plan.victim} there are "
                                    f"processes: {job.members()}")
        # A signal before the first step finds no handler yet.
        if watch.steps > 0:
            recorded = history.last_step(history.read_records(generation.run_dir))
            saved = history.committed(generation.checkpoints)
            if not saved or saved[-1][0] != recorded:
                raise history.Violation(f"a run that was asked to end by a {plan.victim} has "
                                        f"recorded step {recorded}, and saved "
                                        f"{[step for step, _ in saved]}")
        watch.look()
        return "asked", plan.victim, watch

    def check_good_end(self, job):
        if not job.wait_for_end(PATIENCE):
            raise history.Violation(f"mpirun has ended, but not its ranks: {job.members()}")
        if job.process.returncode != 0:
            raise history.Violation(f"no process was killed, and the run ended with exit code "
                                    f"{job.process.returncode}")

    def last_run(self, generation):
        """Lets the generation that the last round has left unfinished come to its end."""
        random_ = random.Random(f"{self.seed} last run")
        plan = dataclasses.replace(pick_plan(generation.model, random_), moment="step",
                                   count=generation.model.steps + 1)
        moment, _, _ = self.start_and_kill(generation, plan)
        recorded, generation.newest = generation.check()
        if moment != "ended" or generation.newest != generation.model.steps:
            raise history.Violation(f"the last run has come to step {recorded} and its checkpoint "
                                    f"to {generation.newest}")

    def finish(self, generation):
        generation.check_end()
        say(f"generation {generation.number} ({generation.model.name}, global batch "
            f"{generation.model.global_batch}): {generation.model.steps} losses, every evaluation "
            "and the last checkpoint are the undisturbed run's")
        self.finished += 1
        self.store.close()
        shutil.rmtree(generation.folder)
        return None

    def count(self, plan, moment, victim, left):
        counts = self.counts
        counts["topology"][str(plan.topology)] += 1
        counts["ranks"][plan.topology.ranks] += 1
        counts["moment"][moment] += 1
        counts["victim"][victim] += 1
        counts["moment and victim"][f"{moment}/{victim}"] += 1
        counts["what the killed save left"][left] += 1
        ways = [way for way in ("async-upload", "async-save") if f"--{way}" in plan.saving]
        counts["saving"][ways[0] if ways else "sync"] += 1

    def summary(self):
        say(f"\n{self.done} rounds in {time.monotonic() - self.start:.0f} s; {self.finished} runs "
            "reached their last step, all as if nothing had happened; a kill ended everything "
            f"after at most {self.slowest_end:.1f} s; {self.checked} checkpoints were checked")
        for name, counter in self.counts.items():
            entries = (f"{key} {count}" for key, count in sorted(counter.items(),
                                                                 key=lambda entry: -entry[1]))
            say(f"  by {name}: {', '.join(entries)}")

    def tell(self, violation, number):
        say(f"\nVIOLATION in round {number}: {violation}")
        if self.job is not None:
            say(f"stderr:\n{self.job.errors()[-4000:]}")
            say(f"end of stdout:\n{self.job.output()[-2000:]}")
        say(f"again: bazel run //tests/crash:campaign -- --seed={self.seed} --rounds={number} "
            f"--steps={self.steps} --place={self.place}{' --bf16' if self.bf16 else ''}")
        say(f"this start alone, on what is left in {self.folder}"
            f"{self.store.hint()}:\n  {self.reproduction}")

    def close(self, keep):
        """Leaves nothing behind but, after a violation, the folder."""
        if self.job is not None:
            self.job.clean_up()
        self.store.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.summary()


def check_progress(output, before, newest, recorded):
    """It went on from the newest checkpoint, the saves that it reported are there, and its output
    is on record, but for the last step. `recorded` is None where the records need not be there."""
    saved = max(map(int, SAVED_LINE.findall(output)), default=0)
    if saved > newest:
        raise history.Violation(f"the run reported that it saved step {saved}, and the newest "
                                f"checkpoint is that of step {newest}")
    said = [int(step) for step in STEP_LINE.findall(output)]
    if not said:
        return
    if said[0] != before + 1:
        raise history.Violation(f"the newest checkpoint is that of step {before}, and the run "
                                f"began with step {said[0]}")
    if recorded is not None and recorded < said[-1] - 1:
        raise history.Violation(f"the run printed step {said[-1]}, but metrics.jsonl ends "
                                f"with step {recorded}")


def progress(before, newest, recorded, moment):
    text = f"saved {before:2d} -> {newest:2d}, {recorded:2d} losses equal"
    if newest > before:
        return text
    return f"{text} ({'no step yet' if moment == 'start-up' else 'no save yet'})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--s3-server", required=True)
    parser.add_argument("--place", choices=("local", "s3", *disk.KINDS), default="local",
                        help="where the killed runs save")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--steps", type=int, default=60, help="of a run")
    parser.add_argument("--folder", help="to work in; must be empty or absent")
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True,
                        help="some runs in bf16")
    options = parser.parse_args()
    if options.folder and os.path.exists(options.folder) and os.listdir(options.folder):
        parser.error(f"--folder={options.folder} is not empty")
    if options.place in disk.KINDS:
        reason = disk.why_not(options.place)
        if reason:
            parser.error(f"--place={options.place}: {reason}")
        disk.hide_mounts()
    processes.adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda which, _: sys.exit(128 + which))
    campaign = Campaign(options)
    keep = True
    try:
        code = campaign.run()
        keep = code != 0
    except (KeyboardInterrupt, SystemExit) as end:
        # Interrupted: reports what was done so far.
        code = end.code if isinstance(end, SystemExit) else 128 + signal.SIGINT
        keep = False
    finally:
        campaign.close(keep)
    sys.exit(code)


if __name__ == "__main__":
    main()
