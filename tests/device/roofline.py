"""A model of a micro-batch on a GPU, kernel by kernel, beside what was measured.

roofline.py OBJECT...: objects of kernels, as nvcc wrote them.

Instructions and products of attention are counted along the longest path through the loops of the
compiled kernels; bytes and the products of cuBLASLt follow from shapes. A kernel takes as long as
the scarcest of what it needs: issue slots, tensor cores or one of the memories, at shares of their
rates that were measured on an H200 (`measured/`); on an A100 they are assumptions. What is outside
of attention's loops takes nothing. Prints tables for docs/gpus.md.
"""

import dataclasses
import json
import pathlib
import re
import sys

import machine_code

BF16, FP32 = 2, 4
HELD_LOGITS = 96 * 1024 // BF16  # by a block of cross-entropy
SCANNED_IDS, SORTED_ROWS, ADDED_ROWS = 8192, 1024, 8  # of a step of the embedding's gradient
# Assumed: what the most frequent id has of all tokens, and the time of a step. With these, 1.4 ms
# are what the measured kernels took, in steps of 1024 ids, 64 rows and one row.
FREQUENT, STEP = 1 / 40, 0.53e-6
# Assumed: the time between launches that are queued. How much longer kernels take in a run than one
# at a time is then what GPT-2 124M took beyond its kernels.
RUN_FACTOR, GAP = 1.091, 1.5e-6
PRODUCT_FLOPS = 2 * 16 * 8 * 16
STEP_TOKENS = 512 * 1024  # of the configs of these models


@dataclasses.dataclass
class Gpu:
    architecture: str
    multiprocessors: int
    clock: float  # Hz
    flops: float  # dense bf16
    bandwidth: float  # bytes/s
    cache: float  # bytes/s of the L2 cache, that kernels reach: an assumption
    mma_share: float  # of `flops`, that mma.sync reaches
    product_share: float  # of `flops`, that cuBLASLt reaches in layers
    head_share: float  # and in the head, whose products are larger
    # Of four instructions a cycle and multiprocessor, where every tile takes the longest path, as
    # only those with masks do.
    issue_share: float = 0.42
    bandwidth_share: float = 0.77
    product_rate: float = 0  # that large products were measured to have; 0: not measured


GPUS = {
    "H200": Gpu(
        "sm_90", 132, 1.83e9, 989e12, 4.8e12, 5.5e12, 0.55, 0.70, 0.80, product_rate=796e12
    ),
    "A100": Gpu("sm_80", 108, 1.41e9, 312e12, 2.04e12, 4e12, 0.80, 0.80, 0.80),
}


@dataclasses.dataclass
class Shape:
    layers: int
    channels: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    vocabulary: int
    sequence: int
    batch: int
    micro_batches: int  # of a step that is measured
    gated: bool  # Llama's MLP and positions

    def tokens(self):
        return self.batch * self.sequence

    def launches(self):
        return 34 * self.layers + 65  # as many as of GPT-2 124M were measured

    def flops(self):
        """As `train` counts them for the share of the rate of products."""
        weights = self.layers * self.layer_weights() + self.vocabulary * self.channels
        scores = self.layers * self.heads * self.head_size * (self.sequence + 1)
        return 6 * self.tokens() * (weights + scores)

    def layer_weights(self):
        kv = self.kv_heads * self.head_size
        mlp = (3 if self.gated else 2) * self.channels * self.hidden
        return 2 * self.channels * (self.channels + kv) + mlp


MODELS = {
    "GPT-2 124M": Shape(12, 768, 12, 12, 64, 3072, 50304, 1024, 64, 2, False),
    "GPT-2 1558M": Shape(48, 1600, 25, 25, 64, 6400, 50304, 1024, 16, 2, False),
    "Llama-3 1B": Shape(16, 2048, 32, 8, 64, 8192, 128256, 2048, 8, 2, True),
}


@dataclasses.dataclass
class Work:
    """Of all launches of a kernel for one micro-batch."""

    name: str
    instructions: dict = dataclasses.field(default_factory=dict)  # of warps, by architecture
    mma: int = 0
    matrices: int = 0  # that warps load from shared memory, four at a time
    bytes: float = 0
    cached: float = 0  # bytes that multiprocessors exchange with the L2 cache
    flops: float = 0  # by cuBLASLt
    waits: float = 0  # seconds of steps that wait for each other, on any GPU
    instead: bool = False  # of other kernels, so that it is in no sum
    by_warpgroups: bool = False  # reaches the share of tensor cores that cuBLASLt does

    def seconds(self, gpu):
        slots = 4 * gpu.multiprocessors * gpu.clock * gpu.issue_share
        mma_share = gpu.product_share if self.by_warpgroups else gpu.mma_share
        product_share = gpu.head_share if "head" in self.name else gpu.product_share
        return self.waits + max(
            self.instructions.get(gpu.architecture, 0) / slots,
            self.mma * PRODUCT_FLOPS / (gpu.flops * mma_share),
            self.matrices * 4 / (gpu.multiprocessors * gpu.clock * gpu.bandwidth_share),
            self.flops / (gpu.flops * product_share),
            self.bytes / (gpu.bandwidth * gpu.bandwidth_share),
            self.cached / gpu.cache,
        )


@dataclasses.dataclass
class Pass:
    name: str
    products: int  # of a loop for each 8 x 16 of scores
    tensors: tuple  # that it reads and writes, of query heads and of key heads
    own_rows: int = 64  # of a block
    rows_of_warp: int = 16
    sums: bool = False  # adds to d_q in fp32, which is read and written for each tile
    warpgroups: dict = None  # of 64 own rows, that share tiles of the other side; by head
    instead: bool = False


ATTENTION = {
    0: Pass("attention", 2, (2, 2)),
    1: Pass("attention's d_q", 3, (3, 2)),
    2: Pass("attention's d_k, d_v", 4, (2, 4)),
    3: Pass("d_q, d_k and d_v at once", 5, (3, 4), 128, 32, sums=True, instead=True),
    4: Pass("attention by warpgroups", 2, (2, 2), warpgroups={64: 2, 128: 2}, instead=True),
    5: Pass("d_q by warpgroups", 3, (3, 2), warpgroups={64: 2, 128: 3}, instead=True),
    6: Pass("d_k, d_v by warpgroups", 4, (2, 4), warpgroups={64: 3, 128: 2}, instead=True),
}
KIND = re.compile(r"AttentionKind<\(AttentionPass\)(\d), (\d+), false, BFloat16>")
WARPGROUPS = re.compile(r"WarpgroupKind<\(AttentionPass\)(\d), (\d+)>")
FIRST_BY_WARPGROUPS = 4
BY_WARPGROUPS = {ATTENTION[i].name for i in range(3)}  # which they replace


def attention_loops(objects):
    """{(pass, padded head): {architecture: (instructions, products, loads) of the loop}}"""
    loops = {}
    for path in objects:
        for kernel in machine_code.kernels(path.read_bytes()):
            by_warpgroups = WARPGROUPS.search(kernel.name)
            match = by_warpgroups or KIND.search(kernel.name)
            if kernel.loop and match:
                number = int(match[1]) + (FIRST_BY_WARPGROUPS if by_warpgroups else 0)
                counts = loops.setdefault((number, int(match[2])), {})
                loads = kernel.loop.count(machine_code.LOAD_MATRICES)
                counts[kernel.architecture] = len(kernel.loop), kernel.products, loads
    return loops


def attention(loops, number, shape):
    kind = ATTENTION[number]
    head = next(size for size in (32, 64, 128) if shape.head_size <= size)
    rows_of_warp = min(kind.rows_of_warp, 2048 // head)
    blocks = -(-shape.sequence // kind.own_rows)
    work = Work(kind.name, instead=kind.instead)
    of_heads = shape.layers * shape.batch * shape.heads
    warps = kind.own_rows // rows_of_warp * of_heads
    for architecture, (instructions, mma, loads) in loops[number, head].items():
        # Of a tile of the other side.
        rows = mma * 128 * 16 // (head * kind.products * rows_of_warp)
        # Of all blocks: block i of queries sees keys up to its own end, and the reverse.
        tiles = sum(-(-(i + 1) * kind.own_rows // rows) for i in range(blocks))
        work.instructions[architecture] = warps * tiles * instructions
        work.mma, work.matrices = warps * tiles * mma, warps * tiles * loads
        work.cached = of_heads * tiles * rows * head * (2 * BF16 + kind.sums * 2 * FP32)
        if kind.warpgroups:
            work.cached /= kind.warpgroups[head]
            # A product of 16 inner indices reads its matrices once for the four warps: both for
            # scores and products of gradients and values, one for what is summed. Warpgroups
            # share the copies of a tile. A load of matrices has 512 bytes.
            by_rows = (kind.products + 1) // 2
            read = by_rows * head // 16 * (64 + rows) * 16 * BF16
            read += (kind.products - by_rows) * rows * head * BF16
            copied = 2 * rows * head * BF16 / kind.warpgroups[head]
            work.matrices = of_heads * tiles * (read + copied) / 512
            work.by_warpgroups = True
    elements = kind.tensors[0] * shape.heads + kind.tensors[1] * shape.kv_heads
    elements += kind.sums * shape.heads * FP32 // BF16  # leaves the cache once
    work.bytes = BF16 * elements * shape.head_size * shape.tokens() * shape.layers
    return work


def embedding_waits(shape):
    """Of the gradient: ids are counted up, a pass over all rows makes the list of each frequent id,
    and its rows are added a few at a time."""
    steps = shape.vocabulary / SCANNED_IDS
    steps += shape.tokens() * (1 / SORTED_ROWS + FREQUENT / ADDED_ROWS)
    return steps * STEP


def works(loops, shape):
    tokens, c, f = shape.tokens(), shape.channels, shape.hidden
    rows = BF16 * tokens * shape.layers  # bytes of one element a token in each layer
    kv = shape.kv_heads * shape.head_size
    weights = shape.layers * shape.layer_weights()
    head = shape.vocabulary * c
    yield Work("products of layers", flops=6 * tokens * weights, bytes=2 * FP32 * weights)
    yield Work("products of the head", flops=6 * tokens * head, bytes=2 * FP32 * head)
    for number in ATTENTION:
        yield attention(loops, number, shape)
    # The outputs and their gradients are read, 8 bytes a query and head written.
    statistics = shape.heads * (2 * BF16 * shape.head_size + 8)
    yield Work("attention's statistics", bytes=tokens * shape.layers * statistics)
    yield Work("norms, with residuals", bytes=rows * 16 * c)
    if shape.gated:
        yield Work("SwiGLU", bytes=rows * 8 * f)
        yield Work("RoPE", bytes=rows * 4 * (c + kv))
    else:
        yield Work("sums for biases", bytes=rows * (5 * c + f))
    # Logits are read, and gradients written; what shared memory does not hold is read twice.
    again = max(0, shape.vocabulary - HELD_LOGITS)
    yield Work("cross-entropy", bytes=BF16 * tokens * (2 * shape.vocabulary + again))
    yield Work("embedding", bytes=BF16 * tokens * 6 * c, waits=embedding_waits(shape))
    step = (weights + head) * (7 * FP32 + BF16)
    yield Work(f"AdamW, 1/{shape.micro_batches} of a step", bytes=step / shape.micro_batches)


def measurement(title):
    """What was measured of a model, or None."""
    for path in sorted((pathlib.Path(__file__).parent / "measured").glob("*.json")):
        measured = json.loads(path.read_text())
        if measured["model"] == title:
            return measured
    return None


def measured_ms(measured, work, shape):
    if work.name.startswith("AdamW"):
        return measured["kernels"]["AdamW"]["ms"] / shape.micro_batches
    return measured["kernels"][work.name]["ms"]


def table(title, loops, shape):
    measured = measurement(title)
    names = [f"{gpu} ms" for gpu in GPUS]
    if measured:
        names.append(f"{measured['gpu']} measured")
    columns = "1e9 instructions | 1e9 mma | TFLOP | GB | " + " | ".join(names)
    lines = [
        f"{title}, {shape.batch}x{shape.sequence}:",
        "",
        f"| kernel | {columns} |",
        "| --- " * (5 + len(names)) + "|",
    ]
    sums = dict.fromkeys(names, 0.0)
    by_warpgroups = 0.0  # what kernels by warpgroups take beyond those that they replace
    update = 0.0  # AdamW's part

    def figure(x):
        return f"{x:.2f}" if x else ""

    for work in works(loops, shape):
        milliseconds = {
            f"{name} ms": 1e3 * work.seconds(gpu)
            for name, gpu in GPUS.items()
            if not work.by_warpgroups or gpu.architecture in work.instructions
        }
        if measured and not work.instead:
            milliseconds[names[-1]] = measured_ms(measured, work, shape)
        for name, value in milliseconds.items():
            sums[name] += 0 if work.instead else value
        if work.by_warpgroups:
            by_warpgroups += milliseconds["H200 ms"]
        elif work.name in BY_WARPGROUPS:
            by_warpgroups -= milliseconds["H200 ms"]
        elif work.name.startswith("AdamW"):
            update = milliseconds["H200 ms"]
        cells = [
            work.name + " (instead)" * work.instead,
            figure(work.instructions.get("sm_90", 0) / 1e9),
            figure(work.mma / 1e9),
            figure(work.flops / 1e12),
            figure(work.bytes / 1e9),
            *(f"{milliseconds[name]:.1f}" if name in milliseconds else "" for name in names),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    # Beyond what kernels take one at a time.
    rest = {name: (RUN_FACTOR - 1) * sums[name] + 1e3 * GAP * shape.launches() for name in names}
    if measured:
        rest[names[-1]] = measured["micro_batch_ms"] - sums[names[-1]]
    cells = " | ".join(f"{rest[name]:.1f}" for name in names)
    lines.append(f"| in a run, between launches | | | | | {cells} |")
    for name in names:
        sums[name] += rest[name]
    rates = [f"{shape.tokens() / sums[name]:.0f}" for name in names]
    lines.append("| all | | | | | " + " | ".join(f"{sums[name]:.1f}" for name in names) + " |")
    lines.append("| thousands of tokens a second | | | | | " + " | ".join(rates) + " |")
    gpu = GPUS["H200"]
    by_warpgroups = sums["H200 ms"] + RUN_FACTOR * by_warpgroups
    many = STEP_TOKENS // shape.tokens()
    in_config = by_warpgroups - RUN_FACTOR * update * (1 - shape.micro_batches / many)
    for what, time in (
        ("share of the rate of products", sums["H200 ms"]),
        (f"the same in {by_warpgroups:.1f} ms, attention by warpgroups", by_warpgroups),
        (f"and in {in_config:.1f} ms, {many} micro-batches in a step, as in the config", in_config),
    ):
        share = shape.flops() / gpu.product_rate / time * 1e3
        lines.append(f"| {what} | | | | | {share:.2f} |" + " |" * (len(names) - 1))
    return "\n".join(lines)


def main():
    loops = attention_loops([pathlib.Path(name) for name in sys.argv[1:]])
    print("\n\n".join(table(title, loops, shape) for title, shape in MODELS.items()))


if __name__ == "__main__":
    main()
