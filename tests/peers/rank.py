"""Ranks of jobs of PyTorch's or Orbax's, which save and load as they are told.

  rank.py dcp|orbax

For each line of its input, "SCRATCH MODE TENSORS RANK RANKS PORT", it forks a rank, whose output
goes to SCRATCH/log. Commands arrive in SCRATCH/RANK.in and answers leave by SCRATCH/RANK.out, a
line each:

  save FOLDER STEP VARIANT     begun; then "saved" or "error WHAT"
  load FOLDER STEP|newest      "loaded STEP EQUAL_TO_0 EQUAL_TO_1 ELEMENTS", "none" or "error WHAT"

After an error the rank ends, as a program does that does not catch it.

The state is TENSORS matrices, split by rows over the ranks, and a vector that each rank has. What
an element is follows from its tensor, its index, the step and the variant: tessera_rank.cc computes
the same.
"""

import importlib
import os
import re
import signal
import sys
import tempfile

import numpy as np

ROWS, COLUMNS, REPLICATED = 1024, 1024, 1000


def values(tensor, step, variant, first, count):
    """Elements [first, first + count) of a tensor: multiples of 2**-24 from -0.5 to 0.5."""
    salt = (tensor * 1000003 + step * 10007 + variant * 101 + 1) * 0x9E3779B9 & 0xFFFFFFFF
    bits = np.arange(first, first + count, dtype=np.uint32) * np.uint32(2654435761)
    bits ^= np.uint32(salt)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = (bits ^ (bits >> np.uint32(shift))) * np.uint32(factor)
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2**-24) - np.float32(0.5)


class Parts:
    """The parts of the state that a rank has, by the names of their tensors."""

    def __init__(self, tensors, rank, ranks):
        self.first_row = rank * ROWS // ranks
        self.rows = (rank + 1) * ROWS // ranks - self.first_row
        self.names = [f"layers.{i}.weight" for i in range(tensors)]

    def matrix(self, index, step, variant):
        count = self.rows * COLUMNS
        return values(index, step, variant, self.first_row * COLUMNS, count).reshape(-1, COLUMNS)

    def vector(self, step, variant):
        return values(len(self.names), step, variant, 0, REPLICATED)

    def expected(self, step, variant):
        return [*(self.matrix(i, step, variant) for i in range(len(self.names))),
                self.vector(step, variant)]


class Dcp:
    """torch.distributed.checkpoint over gloo, a folder a step, as torchtitan uses it."""
    modules = ("torch.distributed.checkpoint", "torch.distributed.tensor", "torch._dynamo")

    def __init__(self, parts, mode, rank, ranks, port):
        import torch
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed.tensor import DTensor, Shard, init_device_mesh
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                                world_size=ranks)
        self.torch, self.dcp, self.parts = torch, dcp, parts
        self.background = dist.new_group(backend="gloo") if mode == "async" else None
        mesh = init_device_mesh("cpu", (ranks,))
        self.sharded = lambda local: DTensor.from_local(local, mesh, [Shard(0)])

    def state(self, arrays):
        *matrices, vector = [self.torch.from_numpy(array) for array in arrays]
        return {**dict(zip(self.parts.names, map(self.sharded, matrices))), "norm": vector}

    def save(self, folder, step, state):
        path = os.path.join(folder, f"step-{step}")
        if self.background is None:
            self.dcp.save(state, checkpoint_id=path)
        else:
            self.dcp.async_save(state, checkpoint_id=path, process_group=self.background).result()

    def newest(self, folder):
        """The last step whose folder has .metadata."""
        steps = [re.fullmatch(r"step-(\d+)", name) for name in os.listdir(folder)]
        return max((int(step[1]) for step in steps
                    if step and os.path.isfile(os.path.join(folder, step[0], ".metadata"))),
                   default=None)

    def load(self, folder, step):
        step = self.newest(folder) if step is None else step
        if step is None:
            return None, None
        arrays = [np.full_like(array, np.nan) for array in self.parts.expected(step, 0)]
        self.dcp.load(self.state(arrays), checkpoint_id=os.path.join(folder, f"step-{step}"))
        return step, arrays


class Orbax:
    """orbax.checkpoint.CheckpointManager over jax.distributed, with its default options."""
    modules = ("jax", "orbax.checkpoint")

    def __init__(self, parts, mode, rank, ranks, port):
        import jax
        import orbax.checkpoint as ocp
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", ranks, rank)
        self.jax, self.ocp, self.parts, self.mode = jax, ocp, parts, mode
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("ranks",))
        self.by_rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("ranks"))
        self.replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        self.managers = {}

    def array(self, shape, sharding, local):
        return self.jax.make_array_from_process_local_data(sharding, local, shape)

    def state(self, arrays):
        *matrices, vector = arrays
        state = {name: self.array((ROWS, COLUMNS), self.by_rows, matrix)
                 for name, matrix in zip(self.parts.names, matrices)}
        return {**state, "norm": self.array((REPLICATED,), self.replicated, vector)}

    def manager(self, folder):
        options = {} if self.mode == "async" else {"enable_async_checkpointing": False}
        return self.ocp.CheckpointManager(folder,
                                          options=self.ocp.CheckpointManagerOptions(**options))

    def save(self, folder, step, state):
        if folder not in self.managers:
            self.managers[folder] = self.manager(folder)
        saved = self.managers[folder].save(step, args=self.ocp.args.StandardSave(state))
        self.managers[folder].wait_until_finished()
        if not saved:
            raise RuntimeError("save() returned False")

    def load(self, folder, step):
        manager = self.manager(folder)
        step = manager.latest_step() if step is None else step
        if step is None:
            return None, None
        abstract = self.jax.tree.map(self.ocp.utils.to_shape_dtype_struct,
                                     self.state(self.parts.expected(step, 0)))
        loaded = manager.restore(step, args=self.ocp.args.StandardRestore(abstract))
        ordered = [loaded[name] for name in (*self.parts.names, "norm")]
        return step, [np.asarray(array.addressable_data(0)) for array in ordered]


def serve(library, parts, commands, say):
    for line in commands:
        verb, folder, step, *variant = line.split()
        try:
            if verb == "save":
                state = library.state(parts.expected(int(step), int(variant[0])))
                say("begun")
                library.save(folder, int(step), state)
                say("saved")
                continue
            step, arrays = library.load(folder, None if step == "newest" else int(step))
            if step is None:
                say("none")
                continue
            equal = [sum(int((a == b).sum()) for a, b in zip(arrays, parts.expected(step, variant)))
                     for variant in (0, 1)]
            say(f"loaded {step} {equal[0]} {equal[1]} {sum(array.size for array in arrays)}")
        except BaseException as error:  # DCP's CheckpointException is no Exception.
            say("error " + " ".join(f"{type(error).__name__}: {error}".split())[:500])
            raise


def be_rank(library, scratch, mode, tensors, rank, ranks, port):
    log = os.open(os.path.join(scratch, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(log, standard)
    tempfile.tempdir = os.environ["TMPDIR"] = scratch
    parts = Parts(int(tensors), int(rank), int(ranks))
    with (open(os.path.join(scratch, f"{rank}.in"), encoding="utf-8") as commands,
          open(os.path.join(scratch, f"{rank}.out"), "w", encoding="utf-8") as answers):
        say = lambda text: print(text, file=answers, flush=True)
        ready = library(parts, mode, int(rank), int(ranks), int(port))
        say(f"ready {os.getpid()}")
        serve(ready, parts, commands, say)


def main():
    library = {"dcp": Dcp, "orbax": Orbax}[sys.argv[1]]
    for module in library.modules:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the ranks
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            be_rank(library, *line.split())
            return


if __name__ == "__main__":
    main()
