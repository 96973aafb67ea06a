"""What replicas cost and what they save, in figures: a job on four simulated machines is killed,
loses the memory of one of them, and restarts on another topology; then the same from the store.

  bazel run //tests/resume:replica_times -- --out=/tmp/replicas
  bazel run //tests/resume:replica_times -- --out=/tmp/replicas --model='--size=gpt2-124m'

Prints, of each restart, the steps that were lost, the seconds of the search and of the load, and
those from the start to the first step; and the seconds of a step without replicas, with one every
--interval steps, and with one at every step (medians; rounds of the three alternate).
"""

import glob
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import time

import runs

STEPS = 40
FIRST = ["--data-parallel-size=2", "--tensor-model-parallel-size=2", "--zero-stage=1"]
SECOND = ["--data-parallel-size=2", "--pipeline-model-parallel-size=2", "--zero-stage=1"]


class ReplicaTimes(runs.Runs):
    def run(self):
        self.prepare("training { micro_batch_size: 1 global_batch_size: 4 seq_length: 64 }\n"
                     "optimizer { lr: 1e-3 lr_warmup_iters: 2 }\n")
        self.tokens = self.dir("tokens.bin")
        tokens = [(i * i + i // 7) % 2000 for i in range(50000)]
        with open(self.tokens, "wb") as file:  # llm.c's format
            for word in [20240520, 1, len(tokens)] + [0] * 253:
                file.write(word.to_bytes(4, "little"))
            file.write(b"".join(token.to_bytes(2, "little") for token in tokens))
        self.memory = os.path.join(self.options.memory, "replica_times")
        shutil.rmtree(self.memory, ignore_errors=True)
        os.makedirs(self.memory)
        lines = ["| restart | lost steps | search s | load s | to the first step s |",
                 "| --- | --- | --- | --- | --- |"]
        for name, lost in (("memory", ["node1"]), ("store", ["node0", "node1", "node2", "node3"])):
            lines.append(self.restart(name, lost))
        lines += ["", "| replicas | step s | replica s |", "| --- | --- | --- |"] + self.costs()
        shutil.rmtree(self.memory)
        return self.finish(lines)

    def flags(self, topology, interval):
        replicas = [] if interval == 0 else [
            "--replicate-to-peers", f"--replicate-interval={interval}",
            "--replicate-ranks-per-node=1", f"--replicate-folder={self.memory}"]
        return [*topology, *replicas, *self.options.model.split(), f"--train-iters={STEPS}"]

    def restart(self, name, lost):
        """Kills a job between two checkpoints, and starts it again without some memories."""
        flags = ["--save-interval=20", "--non-persistent-save-interval=0"]
        self.start_and_kill(name, self.flags(FIRST, self.options.interval) + flags)
        for node in lost:
            for folder in glob.glob(os.path.join(self.memory, f"*-{node}")):
                shutil.rmtree(folder)
        before = time.time()
        log = self.job(name, self.flags(SECOND, self.options.interval) + flags)
        resume = [event for event in self.events(name) if event["event"] == "resume"][-1]
        search = re.search(r"intact, found in ([0-9.]+) s", log)
        load = re.search(r"^loaded .* in ([0-9.]+) s", log, re.MULTILINE)
        return (f"| {name} | {resume['lost_steps']:.0f} | {search.group(1) if search else '-'} | "
                f"{load.group(1)} | {resume['time'] - before:.2f} |")

    def job(self, name, flags):
        result = subprocess.run(self.command(name, *flags), stdout=subprocess.PIPE, text=True,
                                check=False)
        if result.returncode != 0:
            raise SystemExit(f"{name} ended with exit code {result.returncode}")
        return result.stdout

    def start_and_kill(self, name, flags):
        with subprocess.Popen(self.command(name, *flags), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, start_new_session=True) as job:
            while max(self.steps(name), default=0) < 33:
                time.sleep(0.005)
            # The launcher last: ranks that outlive it save once more.
            for pid in reversed(descendants(job.pid)):
                os.kill(pid, signal.SIGKILL)
            job.kill()
        time.sleep(2)

    def steps(self, name):
        begun = os.path.exists(os.path.join(self.dir(name), "metrics.jsonl"))
        return self.records(name) if begun else {}

    def events(self, name):
        with open(os.path.join(self.dir(name), "events.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def costs(self):
        seconds = {}
        replica = {}
        for turn in range(self.options.rounds):
            for interval in (0, self.options.interval, 1):
                name = f"cost-{interval}-{turn}"
                log = self.job(name, self.flags(FIRST, interval) + ["--save-interval=1000"])
                events = {event["event"]: event for event in self.events(name)}
                trained = (events["saved"]["time"] - events["saved"]["seconds"] -
                           events["start"]["time"])
                seconds.setdefault(interval, []).append(trained / STEPS)
                found = re.search(r"is in memory: .* in ([0-9.]+) s", log)
                if found:
                    replica.setdefault(interval, []).append(float(found.group(1)))
                shutil.rmtree(self.dir(name))
        names = {0: "none", 1: "at every step"}
        return [f"| {names.get(i, f'every {i} steps')} | {statistics.median(times):.3f} | "
                f"{statistics.median(replica[i]) if i in replica else '-'} |"
                for i, times in seconds.items()]


def descendants(pid):
    """The processes that `pid` has started, and those that they have, parents first."""
    children = [int(child) for path in glob.glob(f"/proc/{pid}/task/*/children")
                for child in pathlib.Path(path).read_text(encoding="utf-8").split()]
    return children + [below for child in children for below in descendants(child)]


def main():
    parser = runs.parser(__doc__, "replica_times")
    parser.add_argument("--model", default="--size=gpt2-tiny --hidden-size=512 "
                        "--num-attention-heads=8 --ffn-hidden-size=2048 --vocab-size=30000")
    parser.add_argument("--memory", default="/dev/shm")
    parser.add_argument("--interval", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    runs.start(ReplicaTimes, parser.parse_args())


if __name__ == "__main__":
    main()
