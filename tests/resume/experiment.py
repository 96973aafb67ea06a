"""The experiment by which resuming is usually demonstrated, with equality in place of resemblance.

GPT-2 (from scratch, and from an llm.c file) and Llama-3 are trained in fp32 and bf16, on one
process and at dp2_tp2_pp2, in EXACT numerics, on the text of a system package: once without
checkpoints, once saving, once saving in the background, and once more from a checkpoint in the
middle. Of the checkpoints, the newest are kept (--keep). compare_runs compares every loss, gradient
norm and learning rate, bit for bit: saving with not saving, resumed with undisturbed, eight
processes with one, an llm.c file's run with that from scratch.

  bazel run //tests/resume:experiment -- --size=full --out=/runs/experiment   # an hour and more
  bazel run //tests/resume:experiment -- --size=whole                 # half an hour, 60 GB
  bazel run //tests/resume:experiment -- --size=tiny                          # minutes
  bazel run //tests/resume:experiment -- --size=full --weights=gpt2_124M.bin --tokens=text.bin

--weights begins with a pretrained model in place of the one that the run from scratch begins with,
and --tokens reads a token file of its vocabulary. --data=pattern: generated tokens. --into=FILE
replaces the tables in a document.

Writes report.md, plots and the runs below --out; a run's checkpoints are deleted once they have
been compared (--keep-checkpoints: they stay). Exit code 1 where anything differs.
"""

import json
import math
import os
import random
import re
import subprocess
import sys
import textwrap

import runs

TOPOLOGIES = ("single", "dp2_tp2_pp2")
PRECISIONS = ("fp32", "bf16")

# Flags of each model by size. "full" is GPT-2 124M and a Llama-3 with layers of the 1B model's
# shape, but fewer of them, and a smaller vocabulary. "whole" has all of its layers: 17 GiB in
# training, with one micro-batch a step, since the gradients of several take 4 GiB more.
MODELS = {
    "tiny": {
        "gpt2": ["--size=gpt2-tiny", "--vocab-size=2048"],
        "llama3": ["--size=llama3-tiny", "--vocab-size=2048"],
    },
    "full": {
        "gpt2": ["--size=gpt2-124m"],
        "llama3": ["--size=llama3-1b", "--num-layers=2", "--vocab-size=16000"],
    },
    "whole": {
        "gpt2": ["--size=gpt2-124m"],
        "llama3": ["--size=llama3-1b", "--vocab-size=16000", "--micro-batch-size=4"],
    },
}
# Topologies by precision; of the models that do not have all of them, the ones that they have.
EVERYTHING = {precision: TOPOLOGIES for precision in PRECISIONS}
COMBINATIONS = {("whole", "gpt2"): {"fp32": TOPOLOGIES[:1], "bf16": TOPOLOGIES},
                ("whole", "llama3"): {"bf16": TOPOLOGIES[:1]}}
VOCABULARY = {"tiny": 2048, "full": 16000, "whole": 16000}
# Steps, the interval of saves, the step of the resume, and how many checkpoints are kept.
STEPS = {"tiny": (100, 20, 40, 4), "full": (100, 20, 40, 4), "whole": (20, 5, 10, 3)}
BEGIN = "<!-- tests/resume:experiment -->\n"
END = "<!-- end of tests/resume:experiment -->\n"
BATCH, SEQUENCE = 4, 32
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


class Experiment(runs.Runs):
    def prepare_all(self):
        o = self.options
        self.rows, self.figures, self.pairs = [], [], []
        self.load = os.getloadavg()[0]
        self.prepare(f"training {{ micro_batch_size: 1 global_batch_size: {BATCH} "
                     f"seq_length: {SEQUENCE} }}\n"
                     "optimizer { lr: 6e-4 min_lr: 6e-5 lr_decay_style: COSINE "
                     f"lr_warmup_iters: {max(1, o.steps // 10)} weight_decay: 0.1 }}\n"
                     "parallel { numerics: EXACT exact_tp_shards: 2 }\n")
        if o.tokens:
            self.tokens = os.path.abspath(o.tokens)
        elif o.data == "text":
            self.prepare_text("sentencepiece", VOCABULARY[o.size])
        else:
            self.tokens = self.dir("tokens.bin")
            write_tokens(self.tokens, VOCABULARY[o.size], 400000)

    def torch_bytes(self, weights, bf16):
        """The size of the file that torch.save() writes for that state; None without torch."""
        if not self.options.torch_python:
            return None
        file = self.dir("state.pt")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_state.py")
        subprocess.run([self.options.torch_python, script, file, *(["--bf16"] if bf16 else [])],
                       input=json.dumps(weights).encode(), check=True)
        size = os.path.getsize(file)
        os.remove(file)
        return size

    def check_kept(self, name):
        """Of the permanent checkpoints, the newest are there and no others."""
        o = self.options
        expected = [step for step in range(o.save_interval, o.steps + 1, o.save_interval)]
        kept = self.steps_kept(name)
        if kept != expected[-o.keep:]:
            sys.exit(f"experiment: {name} kept the steps {kept}, expected {expected[-o.keep:]}")
        return f"{len(kept)} of {len(expected)}"

    def lost_to_a_save(self, plain, saving):
        """By how many seconds a run took longer for each save before its last step."""
        def seconds(name):
            records = self.records(name)
            return sum(sum(records[step]["time"].values()) for step in sorted(records)[1:])
        o = self.options
        return (seconds(saving) - seconds(plain)) / (o.steps // o.save_interval - 1)

    def four_runs(self, name, flags, bf16):
        """Without saves, saving in the background, saving, and resumed: adds a row to each table.
        """
        o = self.options
        flags = [*flags, f"--train-iters={o.steps}", *(["--bf16"] if bf16 else [])]
        plain, background, saving, resumed = (
            f"{name}_{kind}" for kind in ("plain", "background", "saving", "resumed"))
        saves = [f"--save-interval={o.save_interval}", f"--max-checkpoint-keep={o.keep}",
                 "--non-persistent-save-interval=0"]
        self.train(plain, *flags)
        self.train(background, *flags, f"--save={self.checkpoints(background)}", "--async-save",
                   *saves)
        self.delete_checkpoints(background)
        self.train(saving, *flags, f"--save={self.checkpoints(saving)}", *saves)
        kept = self.check_kept(saving)
        self.train(resumed, *flags, f"--load={self.checkpoints(saving)}",
                   f"--ckpt-step={o.resume_at}")
        after = self.compare(saving, resumed, f"--first-step={o.resume_at + 1}",
                             svg=f"{resumed}.svg")
        self.rows.append(f"| {name} | {self.compare(plain, saving)} | "
                         f"{self.compare(plain, background)} | {after} | {kept} |")
        seconds = [self.median_of_steps(plain, "step_seconds"), self.seconds(saving, "saved"),
                   self.lost_to_a_save(plain, saving), self.lost_to_a_save(plain, background),
                   self.seconds(resumed, "loaded")]
        self.figures.append(f"| {name} | {self.size_cells(saving, bf16)} | " +
                            " | ".join(f"{value:.2f}" for value in seconds) + " |")
        self.delete_checkpoints(saving)

    def size_cells(self, name, bf16):
        """The same state in torch's file: written where torch is, else the tensors alone."""
        weights = self.weights(name)
        parameters = sum(math.prod(shape) for shape in weights.values())
        ours = self.checkpoint_bytes(name, self.options.steps)
        fp32_state = 3 * 4  # weight or master weight, and two moments
        theirs = self.torch_bytes(weights, bf16) or parameters * (fp32_state + (2 if bf16 else 0))
        return f"{parameters:,} | {ours:,} | {ours / theirs:.4f}"

    def pair(self, one, other):
        svg = f"{one}_{other}.svg"
        found = self.compare(f"{one}_plain", f"{other}_plain", svg=svg)
        return f"| {one} | {other} | {found} |"

    def run_model(self, model):
        size = self.options.size
        for precision, topologies in COMBINATIONS.get((size, model), EVERYTHING).items():
            names = [f"{model}_{precision}_{topology}" for topology in topologies]
            for name, topology in zip(names, topologies):
                self.four_runs(name, [*MODELS[size][model], f"--topology={topology}"],
                               precision == "bf16")
            if len(names) > 1:
                self.pairs.append(self.pair(*names))

    def run_from_file(self):
        """A file that is given is another model. Otherwise the file holds the initial weights that
        the run from scratch begins with."""
        if self.options.weights:
            weights = os.path.abspath(self.options.weights)
        else:
            weights = self.dir("gpt2.bin")
            self.train("gpt2_export", *MODELS[self.options.size]["gpt2"], "--train-iters=0",
                       f"--export-llmc={weights}")
        self.four_runs("gpt2_file_fp32_single", [f"--llmc-filepath={weights}"], False)
        if not self.options.weights:
            self.pairs.append(self.pair("gpt2_fp32_single", "gpt2_file_fp32_single"))

    def run(self):
        o = self.options
        self.prepare_all()
        for model in MODELS[o.size]:
            self.run_model(model)
        self.run_from_file()
        theirs = "torch's file" if o.torch_python else "its tensors"
        tables = [
            "| run | saving against not saving | saving in the background | resumed against "
            "undisturbed | kept |",
            "| --- | --- | --- | --- | --- |", *self.rows, "",
            "| one run | another | bits |", "| --- | --- | --- |", *self.pairs, "",
            f"| run | parameters | bytes of a checkpoint | ratio to {theirs} | step, s | save, s | "
            "lost to a save, s | to one in the background, s | load, s |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            *self.figures, "",
            *textwrap.wrap(
                f"Size {o.size}: {o.steps} steps of {BATCH} sequences of {SEQUENCE} tokens, saved "
                f"every {o.save_interval}, the newest {o.keep} kept, resumed at {o.resume_at}. "
                f"{os.cpu_count()} cores, with a load of {self.load:.1f} from other programs at "
                "the beginning.", 100)]
        if o.into:
            self.replace_tables(tables)
        return self.finish(["# Resuming", "", *tables])

    def replace_tables(self, tables):
        """In a document, which does not have the plots."""
        text = re.sub(r"\[(\w+)\]\(\w+\.svg\)", r"\1", "\n".join(tables)) + "\n"
        with open(self.options.into, "r+", encoding="utf-8") as file:
            before, _, rest = file.read().partition(BEGIN)
            file.seek(0)
            file.truncate()
            file.write(before + BEGIN + text + END + rest.partition(END)[2])


def main():
    parser = runs.parser(__doc__, "runs/resume_experiment")
    parser.add_argument("--size", choices=sorted(MODELS), default="tiny")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--save-interval", type=int)
    parser.add_argument("--resume-at", type=int)
    parser.add_argument("--keep", type=int, help="the newest checkpoints, by number")
    parser.add_argument("--data", choices=["text", "pattern"], default="text")
    parser.add_argument("--tokens", help="a token file or a pattern of such, in place of --data")
    parser.add_argument("--weights", help="an llm.c file of a pretrained GPT-2 to begin with")
    parser.add_argument("--torch-python", help="a Python with torch, to compare file sizes with")
    parser.add_argument("--into", help="a document in which the tables are replaced")
    options = parser.parse_args()
    for name, value in zip(("steps", "save_interval", "resume_at", "keep"), STEPS[options.size]):
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.into:
        options.into = os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", ""), options.into)
    if not 0 < options.resume_at < options.steps or options.resume_at % options.save_interval or \
            options.steps % options.save_interval:
        parser.error("--resume-at and --steps are multiples of --save-interval, in this order")
    kept_steps = options.keep * options.save_interval
    if options.keep < 1 or options.steps - options.resume_at >= kept_steps:
        parser.error("--keep does not keep the checkpoint of --resume-at")
    runs.start(Experiment, options)


main()
