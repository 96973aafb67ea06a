"""What the campaign trains, and on which topologies."""

import dataclasses
import itertools
import struct

SHARDS = 4  # exact_tp_shards
MOST_RANKS = 8
EVAL_INTERVAL = 3


@dataclasses.dataclass(frozen=True)
class Topology:
    dp: int
    zero: int
    tp: int
    pp: int
    vpp: int
    sp: bool
    auto: bool = False  # chosen by the trainer from the number of ranks

    @property
    def ranks(self):
        return self.dp * self.tp * self.pp

    def __str__(self):
        if self.auto:
            return f"auto({self.ranks})"
        parts = [f"{name}{value}" for name, value, unsaid in (
            ("dp", self.dp, 1), ("zero", self.zero, 0), ("tp", self.tp, 1), ("pp", self.pp, 1),
            ("vpp", self.vpp, 1)) if value != unsaid]
        return "_".join(parts + ["sp"] * self.sp) or "single"

    def flags(self):
        if self.auto:
            return ["--topology=auto"]
        return [f"--data-parallel-size={self.dp}", f"--zero-stage={self.zero}",
                f"--tensor-model-parallel-size={self.tp}",
                f"--pipeline-model-parallel-size={self.pp}",
                f"--num-virtual-stages-per-pipeline-rank={self.vpp}",
                f"--sequence-parallel={'true' if self.sp else 'false'}"]


SINGLE = Topology(1, 0, 1, 1, 1, False)


@dataclasses.dataclass(frozen=True)
class Model:
    """A model and its batches: all that a run's numbers depend on."""
    name: str
    layers: int
    global_batch: int
    seed: int
    steps: int
    flags: tuple

    def topologies(self):
        """Every legal one of at most MOST_RANKS ranks."""
        found = []
        for dp, zero, tp, pp, vpp, sp in itertools.product(
                range(1, MOST_RANKS + 1), (0, 1, 2), (1, 2, 4), range(1, self.layers + 1),
                range(1, self.layers + 1), (False, True)):
            topology = Topology(dp, zero, tp, pp, vpp, sp)
            if topology.ranks <= MOST_RANKS and self.allows(topology):
                found.append(topology)
        return found

    def allows(self, topology):
        """The rules of compute/parallel, for micro-batches of one sample."""
        if topology.pp * topology.vpp > self.layers or self.global_batch % topology.dp != 0:
            return False
        if topology.vpp > 1 and topology.pp == 1 or topology.sp and topology.tp == 1:
            return False
        if topology.zero > 0 and topology.dp == 1:
            return False  # valid, but equivalent to the run without it
        local = self.global_batch // topology.dp
        if topology.vpp > 1 and local % topology.pp != 0:
            return False
        summed = topology.dp if topology.zero == 2 else local
        return topology.dp == 1 or local == 1 or is_power_of_two(summed)

    def command_flags(self, data):
        return [*self.flags, f"--num-layers={self.layers}", "--micro-batch-size=1",
                f"--global-batch-size={self.global_batch}", "--seq-length=16", "--threads=1",
                f"--seed={self.seed}", f"--train-iters={self.steps}", "--lr=3e-3",
                "--lr-warmup-iters=3", "--lr-decay-style=cosine", f"--train-data-path={data}",
                f"--valid-data-path={data}", f"--eval-interval={EVAL_INTERVAL}", "--eval-iters=1",
                "--numerics=exact", f"--exact-tp-shards={SHARDS}"]


def is_power_of_two(number):
    return number & (number - 1) == 0


def pick_model(generation, steps, bf16, random):
    """GPT-2 and Llama-3 in turn, with layers that do not divide evenly and a padded vocabulary."""
    if generation % 2 == 0:
        name = "gpt2"
        layers = 5
        flags = ["--size=gpt2-tiny", "--hidden-size=32", "--num-attention-heads=4",
                 "--hidden-dropout=0.1", "--attention-dropout=0.1"]
    else:
        name = "llama3"
        layers = 4
        tied = random.choice(("true", "false"))
        flags = ["--size=llama3-tiny", "--hidden-size=64", "--num-attention-heads=8",
                 "--num-query-groups=4", "--attention-dropout=0.1",
                 f"--untie-embeddings-and-output-weights={tied}"]
    flags += ["--vocab-size=101"]
    if bf16 and random.random() < 0.3:
        name += "-bf16"
        flags += ["--bf16"]
    return Model(name=name, layers=layers, global_batch=random.choice((8, 12)),
                 seed=random.randrange(1, 1 << 31), steps=steps, flags=tuple(flags))


def write_tokens(path, random):
    """A token file as llm.c writes it for GPT-2."""
    tokens = [random.randrange(101) for _ in range(20000)]
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))
