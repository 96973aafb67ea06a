"""The experiment by which resharding is usually demonstrated, with equality for resemblance.

GPT-2 and Llama-3 are trained at dp4_zero2_tp2_pp2, which is sixteen processes, on the text of a
system package, saved at step 100 and trained on. From that checkpoint a run continues under each of
a dozen other topologies, on as many processes as they have, and compare_runs compares every later
loss, gradient norm, learning rate and evaluation with those of the uninterrupted run, `ckpt diff`
the state at the end: in EXACT numerics bit for bit. FAST numerics (--numerics=fast): reports the
largest relative difference of a loss. All curves of a model and a batch are in one plot.

  bazel run //tests/reshard:experiment                        # a quarter of an hour
  bazel run //tests/reshard:experiment -- --model=gpt2 --numerics=fast

Writes report.md, the plots and the runs below --out. Exit code 1 where anything differs in EXACT
numerics.
"""

import math

import runs

FROM = "dp4_zero2_tp2_pp2"
# By the global batch, of micro-batches of one sequence: in EXACT numerics each data rank has a
# power of two of them.
TOPOLOGIES = {
    16: ["single", "dp2", "tp2", "pp2", "tp4", "pp4", "dp8_zero1", "dp16_zero2", "dp2_zero1_tp2_sp",
         "pp2_vpp2", "dp2_tp4", "dp2_zero2_tp2_pp2_vpp2_sp", "dp4_pp4", FROM],
    12: ["dp3", "dp3_tp2_pp2", "dp6_zero1", "dp12_zero2"],
}
MODELS = {
    "gpt2": ["--size=gpt2-tiny", "--num-layers=4", "--num-attention-heads=4",
             "--vocab-size=2048", "--hidden-dropout=0.1"],
    "llama3": ["--size=llama3-tiny", "--num-layers=4", "--num-attention-heads=8",
               "--num-query-groups=4", "--vocab-size=2048"],
}
SETTINGS = """
training { micro_batch_size: 1 seq_length: 64 }
optimizer { lr: 3e-3 min_lr: 3e-4 lr_decay_style: COSINE lr_warmup_iters: 10 weight_decay: 0.1
            adam_beta2: 0.95 }
"""
EXACT = "parallel { numerics: EXACT exact_tp_shards: 4 }\n"


def processes(topology):
    sizes = [int(part[2:]) for part in topology.split("_") if part[:2] in ("dp", "tp", "pp")]
    return math.prod(sizes)


class Experiment(runs.Runs):
    @property
    def exact(self):
        return self.options.numerics == "exact"

    def resume(self, model, uninterrupted, topology, flags):
        """A run from the checkpoint; returns its name and its row of the table."""
        save = self.options.save_step
        name = f"{uninterrupted}_{topology}"
        self.train(name, *flags, f"--topology={topology}", f"--save={self.checkpoints(name)}",
                   f"--load={self.checkpoints(uninterrupted)}", f"--ckpt-step={save}")
        first = f"--first-step={save + 1}"
        if self.exact:
            found = self.compare(uninterrupted, name, first)
            found += ", " + self.compare_state(uninterrupted, name, self.options.last_step)
        else:
            _, compared = self.compare_runs(self.dir(uninterrupted), self.dir(name), first)
            found = f"{compared['quantities']['loss']['largest_difference']:.1e}"
        self.delete_checkpoints(name)
        losses = self.records(name)
        last = losses[self.options.last_step]["loss"]
        return name, (f"| {topology} | {processes(topology)} | {losses[save + 1]['loss']:.6f} | "
                      f"{last:.6f} | {found} | {self.seconds(name, 'loaded'):.2f} |")

    def one_batch(self, model, batch):
        """The uninterrupted run and those that continue from its checkpoint: returns a section."""
        o = self.options
        uninterrupted = f"{model}_batch{batch}"
        flags = [*MODELS[model], f"--global-batch-size={batch}", f"--train-iters={o.last_step}"]
        flags += [f"--valid-data-path={self.dir('data')}/val_*.bin", "--eval-iters=2",
                  f"--eval-interval={o.last_step - o.save_step}"]
        self.train(uninterrupted, *flags, f"--topology={FROM}",
                   f"--save={self.checkpoints(uninterrupted)}", f"--save-interval={o.save_step}",
                   "--non-persistent-save-interval=0")
        size = self.checkpoint_bytes(uninterrupted, o.save_step)
        parameters = sum(math.prod(shape) for shape in self.weights(uninterrupted).values())
        rows, names = [], []
        for topology in TOPOLOGIES[batch]:
            name, row = self.resume(model, uninterrupted, topology, flags)
            names.append(name)
            rows.append(row)
        svg = f"{uninterrupted}.svg"
        self.compare_runs(*map(self.dir, [uninterrupted, *names]), f"--svg={self.dir(svg)}",
                          f"--first-step={o.save_step + 1}")
        losses = self.records(uninterrupted)
        saved = self.seconds(uninterrupted, "saved")
        self.delete_checkpoints(uninterrupted)
        bits = "bits" if self.exact else "largest rel. diff."
        return ["", f"## {model}, global batch {batch}", "",
                f"{parameters:,} parameters; a checkpoint of {size:,} bytes, saved in {saved:.2f} "
                f"s; [all curves in one plot]({svg}).", "",
                f"| topology | processes | loss at step {o.save_step + 1} | loss at step "
                f"{o.last_step} | {bits} | load, s |", "| --- | ---: | ---: | ---: | --- | ---: |",
                f"| {FROM}, uninterrupted | {processes(FROM)} | "
                f"{losses[o.save_step + 1]['loss']:.6f} | {losses[o.last_step]['loss']:.6f} | | |",
                *rows]

    def run(self):
        o = self.options
        self.prepare(SETTINGS + (EXACT if self.exact else ""))
        self.prepare_text("sentencepiece", 2048)
        lines = [f"# Resharding: trained at {FROM} to step {o.save_step}, resumed to step "
                 f"{o.last_step}, {o.numerics.upper()} numerics"]
        for model in MODELS if o.model == "all" else [o.model]:
            for batch in TOPOLOGIES:
                lines += self.one_batch(model, batch)
        return self.finish(lines)


def main():
    parser = runs.parser(__doc__, "runs/reshard_experiment")
    parser.add_argument("--model", choices=["all", *MODELS], default="all")
    parser.add_argument("--numerics", choices=["exact", "fast"], default="exact")
    parser.add_argument("--save-step", type=int, default=100)
    parser.add_argument("--last-step", type=int, default=150)
    options = parser.parse_args()
    if not 0 < options.save_step < options.last_step:
        parser.error("--save-step comes before --last-step")
    runs.start(Experiment, options)


main()
