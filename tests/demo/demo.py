"""The main job, end to end.

Real text -> tokens -> training -> SIGKILL -> resume -> proof -> sampled text -> many processes.
Trains a small GPT-2 twice on the text of a system package. The first run is left alone; the second
is killed between two checkpoints and resumed. Every loss and the final checkpoints must agree to
the last bit. Then the same command three times: a stop file ends it, its newest checkpoint is
damaged and passed over for a rolling one, and it comes to its end. Last a few steps in EXACT
numerics, on one process and on eight: again every loss and every tensor.
"""

import argparse
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time

STEPS = 200
SAVE_INTERVAL = 50
KILL_AFTER = 130  # after the rolling checkpoint of step 125
SHORT_STEPS = 20
STOP_STEP = 14  # after the rolling checkpoint of step 12
EXACT_STEPS = 20
EIGHT_PROCESSES = ("--data-parallel-size=2", "--zero-stage=2", "--tensor-model-parallel-size=2",
                   "--pipeline-model-parallel-size=2")


def say(text):
    print(f"\n\033[1m== {text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def fail(text):
    sys.exit(f"demo: FAILED: {text}")


def run(*command):
    """Runs a step of the demo; its output is the user's to see."""
    if subprocess.run(command, check=False).returncode != 0:
        fail(" ".join(command))


def metrics(run_dir):
    """Training records of a run by step. A killed run may leave half a line at the end."""
    records = {}
    try:
        with open(os.path.join(run_dir, "metrics.jsonl"), encoding="utf-8") as file:
            for line in file:
                if not line.endswith("\n"):
                    break
                record = json.loads(line)
                if "loss_bits" in record:
                    records[record["step"]] = record
    except FileNotFoundError:
        pass
    return records


class Demo:
    def __init__(self, tools):
        self.tools = tools
        workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY", os.getcwd())
        self.root = os.environ.get("TESSERA_DEMO_DIR", os.path.join(workspace, "runs", "demo"))
        self.data = os.path.join(self.root, "data")

    def run_dir(self, name):
        return os.path.join(self.root, name)

    def checkpoints(self, name):
        return os.path.join(self.run_dir(name), "checkpoints")

    def clear(self):
        """Removes an earlier demo's files alone: the folder may be the user's."""
        for run_name in ("undisturbed", "killed", "short", "managed", "one_process",
                         "eight_processes"):
            shutil.rmtree(self.run_dir(run_name), ignore_errors=True)
        shutil.rmtree(self.data, ignore_errors=True)
        os.makedirs(self.root, exist_ok=True)

    def prepare_data(self):
        say("Tokenize the text of Debian's perl-doc")
        run(self.tools.prepare_data, f"--output_dir={self.data}", "--tokenizer=sentencepiece",
            "--vocab_size=2048")
        with open(os.path.join(self.data, "dataset.json"), encoding="utf-8") as file:
            self.dataset = json.load(file)

    def settings(self, *extra):
        return [
            f"--train-data-path={self.data}/train_*.bin",
            f"--valid-data-path={self.data}/val_*.bin",
            f"--tokenizer-model={self.data}/tokenizer.model",
            f"--train-iters={STEPS}", *extra
        ]

    def train_command(self, *extra):
        return [self.tools.train, f"--config={self.tools.config}", *self.settings(*extra)]

    def saving(self, name):
        return (f"--run-dir={self.run_dir(name)}", f"--save={self.checkpoints(name)}",
                f"--save-interval={SAVE_INTERVAL}")

    def train_undisturbed(self):
        say(f"Train {STEPS} steps, undisturbed")
        run(*self.train_command(*self.saving("undisturbed")))

    def train_and_kill(self):
        say(f"Train again, and kill the process (SIGKILL) after step {KILL_AFTER}")
        process = subprocess.Popen(self.train_command(*self.saving("killed")))
        while process.poll() is None:
            if max(metrics(self.run_dir("killed")), default=0) >= KILL_AFTER:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.02)
        if process.wait() != -signal.SIGKILL:
            fail(f"training ended before it could be killed, exit code {process.returncode}")
        print(f"\nkilled after step {max(metrics(self.run_dir('killed')))}")
        run(self.tools.ckpt, "ls", self.checkpoints("killed"))

    def resume(self):
        say("Resume from the newest checkpoint: the same command again")
        run(*self.train_command(*self.saving("killed")))

    def compare(self, one_name, one_title, other_name, other_title, steps):
        say("Losses side by side")
        one, other = metrics(self.run_dir(one_name)), metrics(self.run_dir(other_name))
        if sorted(one) != list(range(1, steps + 1)) or sorted(other) != sorted(one):
            fail("a run did not record every step exactly once")
        print(f"{'step':>6} {one_title:>24} {other_title:>24}")
        for step in sorted(one):
            same = one[step]["loss_bits"] == other[step]["loss_bits"]
            if step % 10 == 0 or not same:
                print(f"{step:>6} {one[step]['loss']:>24.17g} {other[step]['loss']:>24.17g}"
                      f"{'' if same else '   DIFFERENT'}")
        different = [step for step in one if one[step]["loss_bits"] != other[step]["loss_bits"]]
        if different:
            fail(f"losses differ at steps {different}")
        print(f"all {len(one)} losses are equal to the last bit")
        return one

    def compare_with_unigram(self, losses):
        unigram = self.dataset["unigram_nats_per_token"]
        last = sum(losses[step]["loss"] for step in range(STEPS - 9, STEPS + 1)) / 10
        print(
            f"loss of the last 10 steps {last:.3f}; "
            f"a unigram model of this text has {unigram:.3f}"
        )
        if last > unigram - 1:
            fail("the model has not learned more than word frequencies")

    def prove(self, names, steps):
        say("Verify the last checkpoint, and compare both runs' by digest")
        last = [os.path.join(self.checkpoints(name), f"step-{steps:08d}") for name in names]
        run(self.tools.ckpt, "verify", "--digests", last[1])
        run(self.tools.ckpt, "diff", *last)

    def sample(self):
        say("Text from the trained model")
        run(*self.train_command(f"--load={self.checkpoints('killed')}",
                                "--prompt=The function returns",
                                "--num-tokens-to-generate=100"))

    def manage(self):
        stop_file = os.path.join(self.root, "stop")

        def command(name):
            return self.train_command(*self.saving(name), f"--train-iters={SHORT_STEPS}",
                                      "--lr-warmup-iters=5", "--save-interval=10",
                                      "--non-persistent-save-interval=3",
                                      f"--stop-file-path={stop_file}")

        if os.path.exists(stop_file):
            os.remove(stop_file)
        say(f"Train {SHORT_STEPS} steps, undisturbed")
        run(*command("short"))
        say(f"The same, with {STOP_STEP} in the stop file")
        with open(stop_file, "w", encoding="utf-8") as file:
            file.write(f"{STOP_STEP}\n")
        run(*command("managed"))
        newest = os.path.join(self.checkpoints("managed"), f"step-{STOP_STEP:08d}")
        if not os.path.exists(os.path.join(newest, "manifest.pb")):
            fail(f"no checkpoint in {newest}")
        say("One bit of the newest checkpoint flips; the same command again")
        with open(glob.glob(os.path.join(newest, "model-*"))[0], "r+b") as file:
            file.seek(-1000, os.SEEK_END)
            byte = file.read(1)[0]
            file.seek(-1000, os.SEEK_END)
            file.write(bytes([byte ^ 1]))
        # The run begins again before the step that the file asks for.
        os.remove(stop_file)
        run(*command("managed"))
        if not os.path.exists(newest + ".damaged"):
            fail(f"{newest} was not set aside")

    def train_on_many(self):
        exact = (f"--train-iters={EXACT_STEPS}", "--numerics=exact", "--exact-tp-shards=2",
                 "--micro-batch-size=4", "--hidden-dropout=0.1", "--lr-warmup-iters=5",
                 f"--save-interval={EXACT_STEPS}")
        for name, title, topology in (("one_process", "one process", ()),
                                      ("eight_processes", "eight processes", EIGHT_PROCESSES)):
            say(f"Train {EXACT_STEPS} steps in EXACT numerics, on {title}")
            run(sys.executable, self.tools.launcher, self.tools.train, self.tools.prepare_data,
                self.tools.config, *self.settings(*self.saving(name), *exact, *topology))


def main():
    parser = argparse.ArgumentParser()
    for tool in ("train", "prepare_data", "ckpt", "config", "launcher"):
        parser.add_argument(f"--{tool}", required=True)
    demo = Demo(parser.parse_args())
    start = time.monotonic()
    demo.clear()
    demo.prepare_data()
    demo.train_undisturbed()
    demo.train_and_kill()
    demo.resume()
    losses = demo.compare("undisturbed", "undisturbed", "killed", "killed and resumed", STEPS)
    demo.compare_with_unigram(losses)
    demo.prove(("undisturbed", "killed"), STEPS)
    demo.sample()
    demo.manage()
    demo.compare("short", "undisturbed", "managed", "stopped and damaged", SHORT_STEPS)
    demo.prove(("short", "managed"), SHORT_STEPS)
    demo.train_on_many()
    demo.compare("one_process", "one process", "eight_processes", "eight processes", EXACT_STEPS)
    demo.prove(("one_process", "eight_processes"), EXACT_STEPS)
    say(f"Done in {time.monotonic() - start:.0f} s. Everything is in {demo.root}")


if __name__ == "__main__":
    main()
