"""The experiment by which resuming is usually demonstrated, with equality in place of resemblance.

GPT-2 (from scratch, and from an llm.c file) and Llama-3 are trained in fp32 and bf16, on one
process and at dp2_tp2_pp2, in EXACT numerics, on the text of a system package: once without
checkpoints, once saving, and once more from a checkpoint in the middle. Of the checkpoints, the
newest are kept (--keep). compare_runs compares every loss, gradient norm and learning rate, bit for
bit: resumed with undisturbed, eight processes with one, an llm.c file's run with that from scratch.

  bazel run //tests/resume:experiment -- --size=full --out=/runs/experiment   # an hour and more
  bazel run //tests/resume:experiment -- --size=tiny                          # minutes
  bazel run //tests/resume:experiment -- --size=full --weights=gpt2_124M.bin --tokens=text.bin

--weights begins with a pretrained model in place of the one that the run from scratch begins with,
and --tokens reads a token file of its vocabulary. --data=pattern: generated tokens.

Writes report.md, plots and the runs below --out; a run's checkpoints are deleted once they have
been compared (--keep-checkpoints: they stay). Exit code 1 where anything differs.
"""

import json
import math
import os
import random
import subprocess
import sys

import runs

TOPOLOGIES = ("single", "dp2_tp2_pp2")
PRECISIONS = ("fp32", "bf16")

# Flags of each model by size. "full" is GPT-2 124M and a Llama-3 with layers of the 1B model's
# shape, but fewer of them, and a smaller vocabulary: it fits where the 1B model does not.
MODELS = {
    "tiny": {
        "gpt2": ["--size=gpt2-tiny", "--vocab-size=2048"],
        "llama3": ["--size=llama3-tiny", "--vocab-size=2048"],
    },
    "full": {
        "gpt2": ["--size=gpt2-124m"],
        "llama3": ["--size=llama3-1b", "--num-layers=2", "--vocab-size=16000"],
    },
}
VOCABULARY = {"tiny": 2048, "full": 16000}
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
        self.prepare("training { micro_batch_size: 1 global_batch_size: 4 seq_length: 32 }\n"
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

    def three_runs(self, name, flags):
        """Without saves, with saves, and resumed from one of them: returns the table's row."""
        o = self.options
        flags = [*flags, f"--train-iters={o.steps}"]
        plain, saving, resumed = (f"{name}_{kind}" for kind in ("plain", "saving", "resumed"))
        self.train(plain, *flags)
        self.train(saving, *flags, f"--save={self.checkpoints(saving)}",
                   f"--save-interval={o.save_interval}", f"--max-checkpoint-keep={o.keep}")
        kept = self.check_kept(saving)
        self.train(resumed, *flags, f"--load={self.checkpoints(saving)}",
                   f"--ckpt-step={o.resume_at}")
        undisturbed = self.compare(plain, saving)
        after = self.compare(saving, resumed, f"--first-step={o.resume_at + 1}",
                             svg=f"{resumed}.svg")
        return (f"| {name} | {undisturbed} | {after} | {kept} | "
                f"{self.tokens_per_second(plain):,.0f} | {self.tokens_per_second(saving):,.0f} | "
                f"{self.seconds(saving, 'saved'):.2f} |")

    def size_row(self, name, bf16):
        """The same state in torch's file: written where torch is, else the tensors alone."""
        weights = self.weights(f"{name}_saving")
        parameters = sum(math.prod(shape) for shape in weights.values())
        ours = self.checkpoint_bytes(f"{name}_saving", self.options.steps)
        written = self.torch_bytes(weights, bf16)
        fp32_state = 3 * 4  # weight or master weight, and two moments
        theirs = written or parameters * (fp32_state + (2 if bf16 else 0))
        how = "written" if written else "computed"
        return f"| {name} | {parameters:,} | {ours:,} | {theirs:,} ({how}) | {ours / theirs:.4f} |"

    def pair(self, one, other):
        svg = f"{one}_{other}.svg"
        found = self.compare(f"{one}_plain", f"{other}_plain", svg=svg)
        return f"| {one} | {other} | {found} |"

    def run_model(self, model, rows, sizes, pairs):
        for precision in PRECISIONS:
            bf16 = ["--bf16"] if precision == "bf16" else []
            for topology in TOPOLOGIES:
                name = f"{model}_{precision}_{topology}"
                flags = [*MODELS[self.options.size][model], *bf16, f"--topology={topology}"]
                rows.append(self.three_runs(name, flags))
            one, many = (f"{model}_{precision}_{topology}" for topology in TOPOLOGIES)
            pairs.append(self.pair(one, many))
            sizes.append(self.size_row(one, bool(bf16)))
            self.delete_checkpoints(f"{one}_saving")
            self.delete_checkpoints(f"{many}_saving")

    def run_from_file(self, rows, pairs):
        """A file that is given is another model. Otherwise the file holds the initial weights that
        the run from scratch begins with."""
        if self.options.weights:
            weights = os.path.abspath(self.options.weights)
        else:
            weights = self.dir("gpt2.bin")
            self.train("gpt2_export", *MODELS[self.options.size]["gpt2"], "--train-iters=0",
                       f"--export-llmc={weights}")
        rows.append(self.three_runs("gpt2_file_fp32_single", [f"--llmc-filepath={weights}"]))
        self.delete_checkpoints("gpt2_file_fp32_single_saving")
        if not self.options.weights:
            pairs.append(self.pair("gpt2_fp32_single", "gpt2_file_fp32_single"))

    def run(self):
        o = self.options
        self.prepare_all()
        rows, sizes, pairs = [], [], []
        for model in MODELS[o.size]:
            self.run_model(model, rows, sizes, pairs)
        self.run_from_file(rows, pairs)
        return self.finish([
            f"# Resuming: size {o.size}, {o.steps} steps, saved every {o.save_interval}, "
            f"the newest {o.keep} kept, resumed at {o.resume_at}", "",
            "| run | saving against not saving | resumed against undisturbed | kept | tokens/s | "
            "tokens/s between the saves of the other | seconds per save |",
            "| --- | --- | --- | --- | ---: | ---: | ---: |", *rows, "",
            "| one run | another | bits |", "| --- | --- | --- |", *pairs, "",
            "Bytes of a checkpoint, and of the file that torch.save() writes for the same model "
            "and AdamW state (computed: its tensors alone, 12 bytes a parameter, 14 with bf16 "
            "weights). Megatron's distributed optimizer stores the same tensors, and the fp32 "
            "parameters again beside fp32 weights.", "",
            "| run | parameters | checkpoint | theirs | ratio |",
            "| --- | ---: | ---: | ---: | ---: |", *sizes])


def main():
    parser = runs.parser(__doc__, "runs/resume_experiment")
    parser.add_argument("--size", choices=sorted(MODELS), default="tiny")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-interval", type=int, default=20)
    parser.add_argument("--resume-at", type=int, default=40)
    parser.add_argument("--keep", type=int, default=4, help="the newest checkpoints, by number")
    parser.add_argument("--data", choices=["text", "pattern"], default="text")
    parser.add_argument("--tokens", help="a token file or a pattern of such, in place of --data")
    parser.add_argument("--weights", help="an llm.c file of a pretrained GPT-2 to begin with")
    parser.add_argument("--torch-python", help="a Python with torch, to compare file sizes with")
    options = parser.parse_args()
    if not 0 < options.resume_at < options.steps or options.resume_at % options.save_interval or \
            options.steps % options.save_interval:
        parser.error("--resume-at and --steps are multiples of --save-interval, in this order")
    kept_steps = options.keep * options.save_interval
    if options.keep < 1 or options.steps - options.resume_at >= kept_steps:
        parser.error("--keep does not keep the checkpoint of --resume-at")
    runs.start(Experiment, options)


main()
