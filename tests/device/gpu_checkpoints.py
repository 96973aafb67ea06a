#!/usr/bin/env python3
"""Saves and loads of tensors on a GPU by tessera_ckpt, torch.save and PyTorch DCP: what they take,
beside the bus and the disk of the same minutes, and whether every bit is right. Prints a table of
each state.

  gpu_checkpoints.py [--device=cuda] [--rounds=3] [--scale=1] [--scratch=DIR] [--json=FILE]

Needs a Python with torch, and the wheel of tessera_ckpt or, as tests have it,
TESSERA_CHECKPOINT_LIBRARY and PYTHONPATH=python. Takes 3 minutes, and 8 GB of the disk. `--device`
is any of torch's: "cuda" (ROCm, too), "xpu", "mps"; "cpu" and "fake", which is that of
python/tests/fake_device.py, try the program without a GPU. The exit status is 0 only if all that
was loaded has the bits that were saved, and 2 where there is no such device.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/peers"), str(ROOT / "python/tests")]

if os.environ.get("TESSERA_PYTHON"):
    os.execv(os.environ["TESSERA_PYTHON"], [os.environ.pop("TESSERA_PYTHON"), "-B", *sys.argv])

import tessera_ckpt  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from speed import RawDisk, forget, sync  # noqa: E402
from tessera_ckpt import _copy_stream, _host_memory  # noqa: E402

SMALL = 5000  # tensors of the state of small ones


class Device:
    """A device of torch, or what stands for one."""

    def __init__(self, name):
        self.name, self.fake = name, None
        self.of_tensors = "cpu" if name in ("cpu", "fake") else name
        torch.empty(1, device=self.of_tensors)  # raises where there is none
        if name == "fake":
            from fake_device import FakeDevice
            self.fake = FakeDevice().__enter__()
        self.module = None if self.of_tensors == "cpu" else getattr(torch, name.partition(":")[0])
        self.pins = self.module is not None and _host_memory._locks_pages()

    def put(self, tensor):
        tensor = tensor.to(self.of_tensors)
        return tensor if self.fake is None else self.fake.put(tensor)

    def run(self, body):
        """Enqueues work on the current stream."""
        body() if self.fake is None else self.fake.kernel(body)

    def synchronize(self):
        if self.module is not None:
            self.module.synchronize()
        elif self.fake is not None:
            self.fake.synchronize()

    def delay(self):
        """Enqueues work that takes a while."""
        if self.module is None:
            return
        size = 8192 if self.name.startswith("cuda") else 2048
        product = torch.ones(size, size, device=self.of_tensors)
        for _ in range(30):
            product = product @ product * 1e-6


def gpt2_state(device, scale):
    """GPT-2 124M with AdamW: for each of 49 parameters the weights in bf16, and master weights and
    two moments in fp32: 1.73 GB in 196 tensors."""
    width, layers = 768, max(int(12 * scale), 1)
    shapes = {"wte": (50257, width)} if scale >= 1 else {"wte": (5000, width)}
    for layer in range(layers):
        shapes.update({f"h.{layer}.qkv": (width, 3 * width), f"h.{layer}.proj": (width, width),
                       f"h.{layer}.fc": (width, 4 * width), f"h.{layer}.down": (4 * width, width)})
    generator = torch.Generator().manual_seed(1)
    state = {}
    for name, shape in shapes.items():
        weights = torch.randn(shape, generator=generator)
        state[f"model.{name}"] = device.put(weights.to(torch.bfloat16))
        for factor, kind in enumerate(("master", "exp_avg", "exp_avg_sq"), 1):
            state[f"optimizer.{kind}.{name}"] = device.put(weights * factor)
    return state


def small_state(device, scale):
    generator = torch.Generator().manual_seed(2)
    return {f"t{n}": device.put(torch.randn(1 + n * 7 % 2048, generator=generator))
            for n in range(int(SMALL * min(scale, 1)))}


def size_of(state):
    return sum(tensor.nbytes for tensor in state.values())


def differing(one, other):
    return [name for name in one if not torch.equal(
        one[name].contiguous().view(-1).view(torch.uint8),
        other[name].contiguous().view(-1).view(torch.uint8))]


class Measurement:
    def __init__(self, device, options, scratch):
        self.device, self.options, self.scratch = device, options, scratch
        self.seconds = {}  # by what is measured
        self.wrong = []

    def time(self, name, call):
        self.device.synchronize()
        begin = time.perf_counter()
        result = call()
        self.device.synchronize()
        self.seconds.setdefault(name, []).append(time.perf_counter() - begin)
        return result

    def check(self, what, names):
        if names:
            self.wrong.append(f"{what}: {len(names)} tensors have other bits, such as {names[0]}")
            print(self.wrong[-1], file=sys.stderr, flush=True)

    def bus(self, state):
        """One copy of all to page-locked memory, and back."""
        size = size_of(state)
        host = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=self.device.pins)
        views, begin = [], 0
        for tensor in state.values():
            views.append((host[begin:begin + tensor.nbytes], tensor.view(-1).view(torch.uint8)))
            begin += tensor.nbytes

        def copy(to_host):
            for pinned, tensor in views:
                source, target = (tensor, pinned) if to_host else (pinned, tensor)
                target.copy_(source, non_blocking=True)

        for _ in range(4):
            self.time("one pinned copy to the host", lambda: copy(True))
            self.time("one pinned copy to the device", lambda: copy(False))

    def programs(self, state, live):
        """Every program in turn."""
        on_host = {name: tensor.cpu().clone() for name, tensor in state.items()} if (
            self.device.fake is None) else {n: t.clone() for n, t in state.items()}
        live_on_host = {name: torch.zeros_like(tensor) for name, tensor in on_host.items()}
        path = os.path.join(self.scratch, "checkpoint")

        def torch_save():
            with open(path, "wb") as file:
                torch.save(state, file)
            sync(path)

        def torch_load():
            for name, tensor in torch.load(path, weights_only=True,
                                           map_location=self.device.of_tensors).items():
                live[name].copy_(tensor)

        calls = {
            "tessera_ckpt": (live, lambda: tessera_ckpt.save(path, 1, state),
                             lambda: tessera_ckpt.load(path, live)),
            "tessera_ckpt, CPU tensors": (live_on_host,
                                          lambda: tessera_ckpt.save(path, 1, on_host),
                                          lambda: tessera_ckpt.load(path, live_on_host)),
            "torch.save, fsync; torch.load": (live, torch_save, torch_load),
            "dcp.save, dcp.load": (
                live, lambda: dcp.save(state, checkpoint_id=path, no_dist=True),
                lambda: dcp.load(live, checkpoint_id=path, no_dist=True)),
        }
        for number in range(self.options.rounds):
            order = list(calls.items())
            for name, (target, save, load) in order[number % 4:] + order[:number % 4]:
                self.time(f"{name}: save", save)
                forget(path)
                self.time(f"{name}: load", load)
                self.time(f"{name}: load, cached", load)
                self.check(name, differing(on_host, {n: t.cpu() for n, t in target.items()}))
                for tensor in target.values():
                    tensor.zero_()
                shutil.rmtree(path, ignore_errors=True)
                pathlib.Path(path).unlink(missing_ok=True)

    def background(self, state, live):
        """AsyncSaver: how long a program waits, and that the state of that moment is saved,
        whatever the stream does before and after."""
        for lazy in (False, True):
            kind = "lazy_copy=True" if lazy else "AsyncSaver"
            folder = os.path.join(self.scratch, kind)
            with tessera_ckpt.AsyncSaver(folder, lazy_copy=lazy, keep=1) as saver:
                for number in range(self.options.rounds + 1):
                    self.one_in_background(f"{kind}: {'first' if number == 0 else 'next'}", saver,
                                           number, lazy, state, live, folder)
            shutil.rmtree(folder)

    def one_in_background(self, kind, saver, step, lazy, state, live, folder):
        device = self.device
        device.synchronize()
        expected = {name: tensor.clone() for name, tensor in state.items()}
        for tensor in expected.values():  # as the late work below leaves them
            tensor.view(-1)[:1] = step
        device.synchronize()
        device.delay()
        for tensor in state.values():
            device.run(lambda tensor=tensor: tensor.view(-1)[:1].fill_(step))
        begin = time.perf_counter()
        saver.save(step, state)
        self.seconds.setdefault(f"{kind} save() blocks", []).append(time.perf_counter() - begin)
        if lazy:
            begin = time.perf_counter()
            for tensor in state.values():
                saver.wait_copied(tensor)
            saver.wait_copied()
            self.seconds.setdefault(f"{kind} wait_copied() of each and of all blocks", []).append(
                time.perf_counter() - begin)
        for tensor in state.values():
            device.run(lambda tensor=tensor: tensor.neg_())
        outcome, = saver.finish()
        report = outcome.result()
        self.seconds.setdefault(f"{kind} is saved", []).append(report.seconds)
        device.synchronize()
        tessera_ckpt.load(folder, live)
        self.check(kind, differing(expected, live))

    def copies_behind_a_save(self, state):
        """From a save to the end of work that the stream gets behind it."""
        folder = os.path.join(self.scratch, "behind")
        first = next(iter(state.values())).view(-1)[:1]
        with tessera_ckpt.AsyncSaver(folder, keep=1) as saver:
            for step in range(self.options.rounds + 1):
                def save(step=step):
                    saver.save(step, state)
                    self.device.run(lambda: first.add_(0))

                name = "first" if step == 0 else "next"
                self.time(f"AsyncSaver: {name} save() until the stream goes on", save)
                for outcome in saver.finish():
                    outcome.result()
        shutil.rmtree(folder)

    def run(self):
        results = {}
        for title, make in (("GPT-2", gpt2_state), ("small tensors", small_state)):
            self.seconds = {}
            state = make(self.device, self.options.scale)
            live = {name: self.device.put(torch.zeros_like(each)) for name, each in state.items()}
            size = size_of(state)
            self.bus(state)
            disk = RawDisk(self.scratch, max(size, 256 << 20))
            for _ in range(self.options.rounds):
                for what, write in (("disk: write", True), ("disk: read", False)):
                    self.seconds.setdefault(what, []).append(size / disk.rate(write))
            os.remove(disk.path)
            self.programs(state, live)
            self.background(state, live)
            self.copies_behind_a_save(state)
            results[title] = {"bytes": size, "tensors": len(state), "seconds": self.seconds}
            table(title, results[title])
        return results


def table(title, found):
    """Each time, and how many times as long it is as the bus, or the disk, takes for the bytes."""
    best = {name: min(each) for name, each in found["seconds"].items()}
    gigabytes = found["bytes"] / 1e9
    print(f"\n| {title}: {gigabytes:.2f} GB in {found['tensors']} tensors | s (best) "
          "| median | GB/s | x bus | x disk |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, seconds in best.items():
        is_load = "load" in name or "to the device" in name
        bus = best[f"one pinned copy to the {'device' if is_load else 'host'}"]
        disk = best["disk: read" if is_load else "disk: write"]
        median = statistics.median(found["seconds"][name])
        print(f"| {name} | {seconds:.4f} | {median:.4f} | {gigabytes / seconds:.2f} "
              f"| {seconds / bus:.2f} | {seconds / disk:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    accelerator = getattr(torch, "accelerator", None)
    found = accelerator.current_accelerator() if (
        accelerator is not None and accelerator.is_available()) else None
    parser.add_argument("--device", default="cuda" if found is None else found.type)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1, help="of the number of layers")
    parser.add_argument("--scratch", help="where to write; default: in /tmp")
    parser.add_argument("--json", help="a file for all times")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    try:
        device = Device(options.device)
    except (AssertionError, RuntimeError) as error:  # torch's
        parser.error(f"--device={options.device}: {str(error).splitlines()[0]}")
    with tempfile.TemporaryDirectory(prefix="tessera-gpu-", dir=options.scratch) as scratch:
        measurement = Measurement(device, options, scratch)
        results = measurement.run()
    about = {"device": options.device, "torch": torch.__version__, "cores": os.cpu_count(),
             "tessera_ckpt": tessera_ckpt.__version__, "page-locked": measurement.device.pins,
             "streams": any(_copy_stream._streams.values()), "wrong": measurement.wrong}
    print(f"\n{about}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({**about, "results": results}, indent=1),
                                              encoding="utf-8")
    sys.exit(1 if measurement.wrong else 0)


if __name__ == "__main__":
    main()
