"""The experiment by which resuming is usually demonstrated, with equality in place of resemblance.

GPT-2 (from scratch, and from an llm.c file) and Llama-3 are trained in fp32 and bf16, on one
process and at dp2_tp2_pp2, in EXACT numerics: once without checkpoints, once saving, and once more
from a checkpoint in the middle. compare_runs compares every loss, gradient norm and learning rate,
bit for bit: resumed with undisturbed, eight processes with one, an llm.c file's run with that from
scratch.

  bazel run //tests/resume:experiment -- --size=full --out=/runs/experiment   # an hour and more
  bazel run //tests/resume:experiment -- --size=tiny                          # minutes

Writes report.md, plots and the runs below --out; a run's checkpoints are deleted once they have
been compared (--keep-checkpoints: they stay). Exit code 1 where anything differs.
"""

import argparse
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys

TOPOLOGIES = ("single", "dp2_tp2_pp2")
PRECISIONS = ("fp32", "bf16")

# Flags of each model by size. "full" is GPT-2 124M and a Llama-3 with layers of the 1B model's
# shape, but fewer of them, and a smaller vocabulary: it fits where the 1B model does not.
MODELS = {
    "tiny": {
        "gpt2": ["--size=gpt2-tiny", "--vocab-size=256"],
        "llama3": ["--size=llama3-tiny", "--vocab-size=256"],
    },
    "full": {
        "gpt2": ["--size=gpt2-124m"],
        "llama3": ["--size=llama3-1b", "--num-layers=2", "--vocab-size=16000"],
    },
}
BATCHES = {
    "tiny": ["--micro-batch-size=1", "--global-batch-size=4", "--seq-length=32"],
    "full": ["--micro-batch-size=1", "--global-batch-size=4", "--seq-length=32"],
}
VOCABULARY = {"tiny": 256, "full": 16000}
TOKEN_FILE_HEADER = (20240520, 1)  # llm.c's magic number and version of GPT-2 tokens


def write_tokens(path, vocabulary, count):
    """A token file with a learnable pattern: three of four tokens follow from the one before."""
    generator = random.Random(7)
    tokens, last = bytearray(), 1
    for _ in range(count):
        if generator.randrange(4):
            last = (last * 31 + 17) % vocabulary
        else:
            last = generator.randrange(vocabulary)
        tokens += last.to_bytes(2, "little")
    header = list(TOKEN_FILE_HEADER) + [count] + [0] * 253
    with open(path, "wb") as file:
        file.write(b"".join(word.to_bytes(4, "little") for word in header) + tokens)


def tokens_per_second(run_dir):
    """The median of the run's steps, the first one left out."""
    with open(os.path.join(run_dir, "metrics.jsonl"), encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return statistics.median(r["tokens_per_second"] for r in records[1:] if r["kind"] == "step")


def seconds_per_save(run_dir):
    """The median of the saves that the run's log reports."""
    with open(os.path.join(run_dir, "log.txt"), encoding="utf-8") as file:
        saves = re.findall(r"^saved step .* in ([0-9.]+) s$", file.read(), re.MULTILINE)
    return statistics.median(float(seconds) for seconds in saves)


class Experiment:
    def __init__(self, options):
        self.options = options
        self.out = os.path.abspath(options.out)
        self.tokens = os.path.join(self.out, "tokens.bin")
        self.config = os.path.join(self.out, "common.textproto")
        self.lines = []
        self.differences = 0

    def dir(self, name):
        return os.path.join(self.out, name)

    def checkpoints(self, name):
        return os.path.join(self.dir(name), "checkpoints")

    def prepare(self):
        shutil.rmtree(self.out, ignore_errors=True)
        os.makedirs(self.out)
        write_tokens(self.tokens, VOCABULARY[self.options.size], 400000)
        with open(self.config, "w", encoding="utf-8") as file:
            file.write("optimizer { lr: 6e-4 min_lr: 6e-5 lr_decay_style: COSINE "
                       f"lr_warmup_iters: {max(1, self.options.steps // 10)} weight_decay: 0.1 }}\n"
                       "parallel { numerics: EXACT exact_tp_shards: 2 }\n")

    def train(self, name, *flags, steps=None):
        """One run, in a folder of its own; its log is in log.txt there."""
        os.makedirs(self.dir(name))
        command = [sys.executable, self.options.launcher, self.options.train,
                   self.options.prepare_data, self.config, f"--train-data-path={self.tokens}",
                   f"--train-iters={self.options.steps if steps is None else steps}",
                   f"--run-dir={self.dir(name)}", *BATCHES[self.options.size], *flags]
        print(f"{name} ...", flush=True)
        with open(os.path.join(self.dir(name), "log.txt"), "w", encoding="utf-8") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT,
                                  check=False).returncode
        if code != 0:
            sys.exit(f"experiment: {name} ended with exit code {code}: see {log.name}")

    def delete_checkpoints(self, name):
        if not self.options.keep_checkpoints:
            shutil.rmtree(self.checkpoints(f"{name}_saving"))

    def compare(self, one, other, *flags):
        """Returns a cell of the table. The plot is named after both runs."""
        svg = f"{one}_{other}.svg"
        result = subprocess.run(
            [self.options.compare_runs, self.dir(one), self.dir(other), "--exact", "--json",
             f"--svg={os.path.join(self.out, svg)}", *flags],
            stdout=subprocess.PIPE, check=False)
        if result.returncode > 1:
            sys.exit(f"experiment: {one} and {other} cannot be compared")
        loss = json.loads(result.stdout)["quantities"]["loss"]
        if result.returncode == 0:
            return f"[equal]({svg}) ({loss['compared']} steps)"
        self.differences += 1
        return f"[DIFFERENT]({svg}), largest {loss['largest_difference']}"

    def checkpoint_bytes(self, name):
        folder = os.path.join(self.checkpoints(name), f"step-{self.options.steps:08d}")
        return sum(os.path.getsize(os.path.join(folder, file)) for file in os.listdir(folder))

    def weights(self, name):
        """From the checkpoint's manifest: shapes of all weights, aliases once."""
        report = subprocess.run([self.options.ckpt, "inspect", "--json", self.checkpoints(name)],
                                stdout=subprocess.PIPE, check=True)
        return {tensor["name"]: tensor["shape"] for tensor in json.loads(report.stdout)["tensors"]
                if tensor["role"] == "WEIGHT" and "alias_of" not in tensor}

    def torch_bytes(self, weights, bf16):
        """The size of the file that torch.save() writes for that state; None without torch."""
        if not self.options.torch_python:
            return None
        file = os.path.join(self.out, "state.pt")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_state.py")
        subprocess.run([self.options.torch_python, script, file, *(["--bf16"] if bf16 else [])],
                       input=json.dumps(weights).encode(), check=True)
        size = os.path.getsize(file)
        os.remove(file)
        return size

    def three_runs(self, name, flags):
        """Without saves, with saves, and resumed from one of them: returns the table's row."""
        self.train(f"{name}_plain", *flags)
        self.train(f"{name}_saving", *flags, f"--save={self.checkpoints(f'{name}_saving')}",
                   f"--save-interval={self.options.save_interval}")
        self.train(f"{name}_resumed", *flags, f"--load={self.checkpoints(f'{name}_saving')}",
                   f"--ckpt-step={self.options.resume_at}")
        undisturbed = self.compare(f"{name}_plain", f"{name}_saving")
        resumed = self.compare(f"{name}_saving", f"{name}_resumed",
                               f"--first-step={self.options.resume_at + 1}")
        plain, saving = (tokens_per_second(self.dir(f"{name}_{kind}"))
                         for kind in ("plain", "saving"))
        seconds = seconds_per_save(self.dir(f"{name}_saving"))
        return (f"| {name} | {undisturbed} | {resumed} | {plain:,.0f} | {saving:,.0f} | "
                f"{seconds:.2f} |")

    def size_row(self, name, bf16):
        """The same state in torch's file: written where torch is, else the tensors alone."""
        weights = self.weights(f"{name}_saving")
        parameters = sum(math.prod(shape) for shape in weights.values())
        ours = self.checkpoint_bytes(f"{name}_saving")
        written = self.torch_bytes(weights, bf16)
        fp32_state = 3 * 4  # weight or master weight, and two moments
        theirs = written or parameters * (fp32_state + (2 if bf16 else 0))
        how = "written" if written else "computed"
        return f"| {name} | {parameters:,} | {ours:,} | {theirs:,} ({how}) | {ours / theirs:.4f} |"

    def run_model(self, model, rows, sizes, pairs):
        for precision in PRECISIONS:
            bf16 = ["--bf16"] if precision == "bf16" else []
            for topology in TOPOLOGIES:
                name = f"{model}_{precision}_{topology}"
                flags = [*MODELS[self.options.size][model], *bf16, f"--topology={topology}"]
                rows.append(self.three_runs(name, flags))
            one, many = (f"{model}_{precision}_{topology}" for topology in TOPOLOGIES)
            pairs.append(f"| {one} | {many} | "
                         f"{self.compare(f'{one}_plain', f'{many}_plain')} |")
            sizes.append(self.size_row(one, bool(bf16)))
            self.delete_checkpoints(one)
            self.delete_checkpoints(many)

    def run_from_file(self, rows, pairs):
        """The llm.c file holds the initial weights that the run from scratch begins with."""
        weights = os.path.join(self.out, "gpt2.bin")
        self.train("gpt2_export", *MODELS[self.options.size]["gpt2"], f"--export-llmc={weights}",
                   steps=0)
        rows.append(self.three_runs("gpt2_file_fp32_single", [f"--llmc-filepath={weights}"]))
        self.delete_checkpoints("gpt2_file_fp32_single")
        pairs.append("| gpt2_fp32_single | gpt2_file_fp32_single | "
                     f"{self.compare('gpt2_fp32_single_plain', 'gpt2_file_fp32_single_plain')} |")

    def report(self, rows, sizes, pairs):
        o = self.options
        lines = [
            f"# Resuming: size {o.size}, {o.steps} steps, saved every {o.save_interval}, "
            f"resumed at {o.resume_at}", "",
            "| run | saving against not saving | resumed against undisturbed | tokens/s | "
            "tokens/s between the saves of the other | seconds per save |",
            "| --- | --- | --- | ---: | ---: | ---: |", *rows, "",
            "| one run | another | bits |", "| --- | --- | --- |", *pairs, "",
            "Bytes of a checkpoint, and of the file that torch.save() writes for the same model "
            "and AdamW state (computed: its tensors alone, 12 bytes a parameter, 14 with bf16 "
            "weights). Megatron's distributed optimizer stores the same tensors, and the fp32 "
            "parameters again beside fp32 weights.", "",
            "| run | parameters | checkpoint | theirs | ratio |",
            "| --- | ---: | ---: | ---: | ---: |", *sizes, ""]
        with open(os.path.join(self.out, "report.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        print("\n".join(lines))

    def run(self):
        self.prepare()
        rows, sizes, pairs = [], [], []
        for model in MODELS[self.options.size]:
            self.run_model(model, rows, sizes, pairs)
        self.run_from_file(rows, pairs)
        self.report(rows, sizes, pairs)
        print(f"{self.differences} comparisons differ; report: {self.out}/report.md")
        return 1 if self.differences else 0


def main():
    parser = argparse.ArgumentParser()
    for tool in ("train", "prepare_data", "ckpt", "compare_runs", "launcher"):
        parser.add_argument(f"--{tool}", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=sorted(MODELS), default="tiny")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-interval", type=int, default=20)
    parser.add_argument("--resume-at", type=int, default=40)
    parser.add_argument("--keep-checkpoints", action="store_true")
    parser.add_argument("--torch-python", help="a Python with torch, to compare file sizes with")
    parser.add_argument("--out", default="runs/resume_experiment")
    options = parser.parse_args()
    if not 0 < options.resume_at < options.steps or options.resume_at % options.save_interval:
        parser.error("--resume-at is a multiple of --save-interval before --steps")
    workspace = os.environ.get("BUILD_WORKING_DIRECTORY")
    if workspace:
        os.chdir(workspace)
    sys.exit(Experiment(options).run())


main()
