#!/usr/bin/env python3
"""Saves and loads of one state by torch.save, PyTorch DCP, safetensors and Tessera, as a table.

  speed.py [--rounds=5] [--scale=1] [--into=FILE] [--scratch=DIR]

Needs a Python with torch and safetensors, which TESSERA_PYTHON names; where it has none, nothing is
measured, and the exit code is 0. Each round measures all of them, in another order, and the disk
beside each. Every load is compared with what was saved, bit for bit. The table is printed; with
--into, it replaces that of the file.
"""

import argparse
import concurrent.futures
import mmap
import os
import platform
import shutil
import statistics
import sys
import tempfile
import textwrap
import time
import warnings

BEGIN, END = "<!-- tests/peers:speed -->\n", "<!-- end of tests/peers:speed -->\n"
BLOCK = 4 << 20  # of the raw disk
HEAD = ("", "the program continues after, s", "durable after, s", "GB/s", "of raw disk",
        "load, GB/s", "of raw disk")


def sync(path):
    """Makes a file, or the files of a folder, durable, with their names."""
    for folder, _, names in os.walk(path):
        for name in [*(os.path.join(folder, name) for name in names), folder]:
            sync_one(name)
    if not os.path.isdir(path):
        sync_one(path)
    sync_one(os.path.dirname(path))


def sync_one(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def forget(path):
    """Takes files out of the page cache, from which a restarted job has nothing."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    for name in paths or [path]:
        descriptor = os.open(name, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


class RawDisk:
    """A file, written and read with direct I/O by some threads, and nothing else. From and to huge
    pages: with small ones, the same disk reads at a third of its rate."""

    def __init__(self, folder, size):
        self.path, self.size = os.path.join(folder, "raw"), -(-size // BLOCK) * BLOCK
        self.fill = os.urandom(BLOCK)
        self.seconds(2, True)  # reserves the space
        # As many threads as are fastest.
        self.threads = {write: min((2, 4, 8), key=lambda count: self.seconds(count, write))
                        for write in (True, False)}

    def seconds(self, threads, write):
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)

        def work(thread):
            with mmap.mmap(-1, 4 * BLOCK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages, \
                    memoryview(pages)[:BLOCK] as block:
                pages.madvise(mmap.MADV_HUGEPAGE)
                block[:] = self.fill
                for at in range(thread * BLOCK, self.size, threads * BLOCK):
                    if write:
                        os.pwrite(descriptor, block, at)
                    else:
                        os.preadv(descriptor, [block], at)

        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
        if write:
            os.fdatasync(descriptor)
        elapsed = time.monotonic() - start
        os.close(descriptor)
        return elapsed

    def rate(self, write):
        return self.size / self.seconds(self.threads[write], write)


class Library:
    """save() returns two times: when the program may go on and change the state, and when the
    library says that it is done. load() fills the tensors of the state."""
    background = False

    def __init__(self, scratch):
        self.path = os.path.join(scratch, type(self).__name__)

    def clear(self):
        for remove in (shutil.rmtree, os.remove):
            if os.path.exists(self.path):
                try:
                    remove(self.path)
                except NotADirectoryError:
                    pass

    def close(self):
        pass


class TorchSave(Library):
    title, durable = "`torch.save`, `torch.load`", False

    def save(self, state):
        torch.save(state, self.path)
        return [time.monotonic()] * 2

    def load(self, state):
        found = torch.load(self.path, weights_only=True)
        for name, tensor in state.items():
            tensor.copy_(found[name])


class Safetensors(Library):
    title, durable = "safetensors", False

    def save(self, state):
        safetensors.torch.save_file(state, self.path)
        return [time.monotonic()] * 2

    def load(self, state):
        found = safetensors.torch.load_file(self.path)
        for name, tensor in state.items():
            tensor.copy_(found[name])


class Dcp(Library):
    title, durable = "DCP", True

    def save(self, state):
        dcp.save(state, checkpoint_id=self.path)
        return [time.monotonic()] * 2

    def load(self, state):
        dcp.load(state, checkpoint_id=self.path)


class DcpAsync(Dcp):
    title, background = "DCP, `async_save`", True

    def save(self, state):
        saving = dcp.async_save(state, checkpoint_id=self.path)
        free = time.monotonic()
        saving.result()
        return free, time.monotonic()


class Tessera(Library):
    title, durable = "Tessera", True

    def save(self, state):
        tessera_ckpt.save(self.path, 1, state)
        return [time.monotonic()] * 2

    def load(self, state):
        tessera_ckpt.load(self.path, state)


class TesseraAsync(Tessera):
    title, background = "Tessera, `AsyncSaver`", True

    def __init__(self, scratch):
        super().__init__(scratch)
        os.mkdir(self.path)
        self.saver, self.step = tessera_ckpt.AsyncSaver(self.path, lazy_copy=True), 0

    def save(self, state):
        self.step += 1
        self.saver.save(self.step, state)
        self.saver.wait_copied()
        free = time.monotonic()
        for outcome in self.saver.finish():
            outcome.result()
        return free, time.monotonic()

    def clear(self):
        for name in os.listdir(self.path):
            if name.startswith("step-"):
                shutil.rmtree(os.path.join(self.path, name))

    def close(self):
        self.saver.close()


LIBRARIES = (TorchSave, Safetensors, Dcp, DcpAsync, Tessera, TesseraAsync)


def gpt2_shapes(scale):
    layers, width = max(int(12 * scale), 1), 768
    yield "wte.weight", (50257, width)
    yield "wpe.weight", (1024, width)
    for layer in range(layers):
        for name, shape in (("ln_1.weight", (width,)), ("ln_1.bias", (width,)),
                            ("attn.c_attn.weight", (width, 3 * width)),
                            ("attn.c_attn.bias", (3 * width,)),
                            ("attn.c_proj.weight", (width, width)), ("attn.c_proj.bias", (width,)),
                            ("ln_2.weight", (width,)), ("ln_2.bias", (width,)),
                            ("mlp.c_fc.weight", (width, 4 * width)),
                            ("mlp.c_fc.bias", (4 * width,)),
                            ("mlp.c_proj.weight", (4 * width, width)),
                            ("mlp.c_proj.bias", (width,))):
            yield f"h.{layer}.{name}", shape
    yield "ln_f.weight", (width,)
    yield "ln_f.bias", (width,)


def training_state(dtype, scale):
    """The weights with two moments in fp32; bf16 weights also have a master copy in fp32."""
    generator = torch.Generator().manual_seed(1)
    master = ("master",) if dtype == torch.bfloat16 else ()
    state = {}
    for name, shape in gpt2_shapes(scale):
        state[f"model.{name}"] = torch.randn(shape, generator=generator).to(dtype)
        for kind in (*master, "exp_avg", "exp_avg_sq"):
            state[f"optimizer.{kind}.{name}"] = torch.randn(shape, generator=generator)
    return state


def measure(dtype, options, scratch):
    """Rows of the table."""
    state = training_state(dtype, options.scale)
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    live = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    disk = RawDisk(scratch, size)
    libraries = [library(scratch) for library in LIBRARIES]
    results = {library: [] for library in libraries}
    for number in range(options.rounds):
        turn = number % len(libraries)
        for library in libraries[turn:] + libraries[:turn]:
            raw_write, raw_read = disk.rate(True), disk.rate(False)
            start = time.monotonic()
            free, done = library.save(state)
            if not library.durable:
                sync(library.path)
                done = time.monotonic()
            forget(library.path)
            begin = time.monotonic()
            library.load(live)
            load = time.monotonic() - begin
            for name, tensor in state.items():
                if not torch.equal(tensor.view(torch.uint8), live[name].view(torch.uint8)):
                    sys.exit(f"{library.title} loads other values of {name}")
                live[name].zero_()
            library.clear()
            results[library].append((free - start, done - start, size / (done - start) / raw_write,
                                     size / load, size / load / raw_read))
            print(f"{library.title}: {results[library][-1]}", file=sys.stderr, flush=True)
    rows = []
    for library in libraries:
        library.close()
        free, done, ratio, load, load_ratio = map(statistics.median, zip(*results[library]))
        first = f" (first: {results[library][0][0]:.2f})" if library.background else ""
        then = "" if library.durable else ", then `fsync`"
        rows.append((library.title + then, f"{free:.2f}{first}", f"{done:.2f}",
                     f"{size / done / 1e9:.2f}", f"{ratio:.2f}", f"{load / 1e9:.2f}",
                     f"{load_ratio:.2f}"))
    os.remove(disk.path)
    return size, rows


def table(options, scratch):
    load = os.getloadavg()[0]
    lines, sizes = [], []
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        size, rows = measure(dtype, options, tempfile.mkdtemp(dir=scratch))
        sizes.append(f"{size / 1e9:.2f} GB in {name}")
        head = (name, *HEAD[1:])
        lines += [f"| {' | '.join(row)} |" for row in (head, ("---", *["---:"] * 6), *rows)] + [""]
    paragraph = (
        f"{' and '.join(sizes)}; medians; rounds: {options.rounds}; torch {torch.__version__}, "
        f"safetensors {safetensors.__version__}, Python {platform.python_version()}, Linux "
        f"{platform.release().split('-')[0]}, {os.cpu_count()} cores, on which {load:.0f} threads "
        "of other programs ran at the beginning.")
    return "\n".join([*lines, textwrap.fill(paragraph, 100)]) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1, help="of the number of layers")
    parser.add_argument("--into", help="a file in which the table is replaced")
    parser.add_argument("--scratch", help="where to write about 6 GB; default: in /tmp")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory(prefix="tessera-speed-", dir=options.scratch) as scratch:
        dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=0, world_size=1)
        text = table(options, scratch)
        dist.destroy_process_group()
    print(text)
    if options.into:
        with open(options.into, "r+", encoding="utf-8") as file:
            before, _, rest = file.read().partition(BEGIN)
            file.seek(0)
            file.truncate()
            file.write(before + BEGIN + text + END + rest.partition(END)[2])


if __name__ == "__main__":
    wanted = os.environ.pop("TESSERA_PYTHON", "")
    if wanted:
        os.execv(wanted, [wanted, "-B", *sys.argv])
    try:
        import safetensors.torch
        import torch
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
    except ImportError as missing:
        print(f"Nothing is measured: {sys.executable} has no {missing.name}. Set TESSERA_PYTHON "
              "to a Python with torch and safetensors.")
        sys.exit(0)
    import tessera_ckpt
    main()
