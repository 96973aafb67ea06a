"""An Accelerator whose state is saved twice into one folder, and loaded at other numbers of
processes.

  accelerate_check.py
"""

import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import types
from unittest import mock

import accelerate
import numpy as np
import tessera_ckpt
import torch
from tessera_ckpt._torch_state import random_states, set_random_states
from tessera_ckpt.accelerate import load_state, save_state


class Counter:
    def __init__(self):
        self.seen = 0

    def state_dict(self):
        return {"seen": self.seen, "names": ("a", "b")}

    def load_state_dict(self, state):
        self.seen = state["seen"]
        assert state["names"] == ("a", "b")


def prepared(kind):
    """An accelerator, and what it has prepared."""
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="size_based_wrap") if kind == "fsdp2" else None
    accelerator = accelerate.Accelerator(  # split_batches: each step is one of the scheduler
        cpu=True, fsdp_plugin=plugin,
        dataloader_config=accelerate.DataLoaderConfiguration(split_batches=True))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    return accelerator, model, optimizer, scheduler, counter


def train(prepared_parts, steps):
    """Every process has the same data, so that their number does not matter."""
    accelerator, model, optimizer, scheduler, counter = prepared_parts
    losses = []
    for _ in range(steps):
        data = torch.linspace(-1, 1, 32).reshape(4, 8) + counter.seen / 100
        loss = model(data).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        counter.seen += 1
        losses.append(loss.item())
    return losses


def draws():
    return [random.random(), np.random.random(), torch.rand(1).item()]


def rank(kind, phase, folder):
    """What each process does."""
    parts = prepared(kind)
    accelerator, *_, scheduler, counter = parts
    random.seed(10 + accelerator.process_index)
    np.random.seed(20 + accelerator.process_index)
    torch.manual_seed(30 + accelerator.process_index)
    if phase == "save":
        for step in (4, 8):
            train(parts, 4)
            report = save_state(accelerator, folder, step)
        assert report.step == 8
        if accelerator.is_main_process:  # which deletes the one before
            assert len(tessera_ckpt.list_checkpoints(folder)) == 1
        golden = [draws(), train(parts, 4)]
        everyone = accelerate.utils.gather_object([golden])
        if accelerator.is_main_process:
            torch.save(everyone, f"{folder}.golden")
            pathlib.Path(folder, "note.txt").write_text("files of others stay", encoding="utf-8")
        return
    if phase == "refuse":  # what the program does not want, whatever the number of processes
        counter.state_dict = lambda: {"seen": 0}
        before = [weight.clone() for weight in parts[1].parameters()]
        try:
            load_state(accelerator, folder)
        except tessera_ckpt.MismatchError as error:
            assert "objects.0.names" in str(error), error
            assert all(map(torch.equal, before, parts[1].parameters())), "a part was loaded"
            return
        raise AssertionError("objects.0.names was left out")
    everyone = torch.load(f"{folder}.golden")
    load_state(accelerator, folder)
    assert counter.seen == 8 and abs(scheduler.get_last_lr()[0] - 1e-4) < 1e-9
    if len(everyone) == accelerator.num_processes:
        assert draws() == everyone[accelerator.process_index][0]
    found, expected = train(parts, 4), everyone[0][1]
    if len(everyone) == accelerator.num_processes:
        assert found == everyone[accelerator.process_index][1]  # bit for bit
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    if accelerator.is_main_process:
        print(f"{kind}: {len(everyone)} processes saved, {accelerator.num_processes} loaded",
              flush=True)


def run(size, kind, phase, folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1",
                  WORLD_SIZE=str(size), ACCELERATE_USE_CPU="true", LOCAL_WORLD_SIZE=str(size))
    if size == 1:
        for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            common.pop(name)
    processes = [subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, kind, phase, folder],
        env=common if size == 1 else dict(common, RANK=str(i), LOCAL_RANK=str(i)))
        for i in range(size)]
    codes = [process.wait(timeout=300) for process in processes]
    assert codes == [0] * size, (kind, phase, codes)


def check_generators():
    """Generators of an accelerator other than CUDA, whose module a simple one stands in for."""
    held = [torch.tensor([1])]
    module = types.SimpleNamespace(get_rng_state_all=lambda: list(held),
                                   set_rng_state_all=lambda states: held.extend(states))
    with mock.patch.object(torch, "xpu", module), \
            mock.patch.object(torch.cuda, "is_available", lambda: False), \
            mock.patch.object(torch.accelerator, "is_available", lambda: True), \
            mock.patch.object(torch.accelerator, "current_accelerator",
                              lambda: torch.device("xpu")):
        states = random_states()
        held.clear()
        set_random_states(states)
    assert states["xpu"] == held == [torch.tensor([1])], states
    with mock.patch.object(torch, "xpu", None):
        set_random_states(states)  # of a machine with accelerators that this one does not have


def main():
    check_generators()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        run(2, "ddp", "save", f"{folder}/a")
        run(2, "ddp", "load", f"{folder}/a")
        run(1, "single", "load", f"{folder}/a")
        run(1, "single", "refuse", f"{folder}/a")
        run(2, "fsdp2", "load", f"{folder}/a")
        run(2, "fsdp2", "save", f"{folder}/b")
        run(2, "fsdp2", "load", f"{folder}/b")
        run(1, "single", "load", f"{folder}/b")
        assert tessera_ckpt.verify(f"{folder}/b", digests=True)
    print(f"accelerate {accelerate.__version__}, torch {torch.__version__}: all good")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        rank(*sys.argv[1:])
    else:
        main()
