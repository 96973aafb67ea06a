"""What each process of python_check.py does.

  python_ranks.py SCENARIO MESH FOLDER [ARGUMENT]    with torchrun's environment variables
"""

import os
import pickle
import signal
import sys
import time

import tessera_ckpt
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tessera_ckpt import fsdp1
from tessera_ckpt.dcp import Reader, Writer
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_state_dict,
                                                     set_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 36)
        self.down = nn.Linear(36, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """With a vocabulary that no number of ranks divides."""

    def __init__(self, width=16, blocks=3):
        super().__init__()
        self.embedding = nn.Embedding(53, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 53, bias=False)
        self.register_buffer("seen", torch.arange(7))

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(mesh_name):
    """The model and its optimizer on a mesh: fsdp2_tp2, fsdp4, tp4, hsdp2x2, single, fsdp1."""
    torch.manual_seed(0)
    model = Model()
    size = dist.get_world_size()
    if mesh_name == "fsdp2_tp2":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
        shard_tensors(model, mesh["tp"])
        shard(model, mesh["dp"])
    elif mesh_name.startswith("fsdp") and mesh_name != "fsdp1":
        shard(model, init_device_mesh("cpu", (size,), mesh_dim_names=("dp",)))
    elif mesh_name.startswith("tp"):
        shard_tensors(model, init_device_mesh("cpu", (size,), mesh_dim_names=("tp",)))
    elif mesh_name == "hsdp2x2":
        shard(model, init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    elif mesh_name == "fsdp1":
        model = FullyShardedDataParallel(model, use_orig_params=True,
                                         device_id=torch.device("cpu"))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def shard_tensors(model, mesh):
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def train(model, optimizer, steps=2):
    for step in range(steps):
        ids = torch.arange(22).reshape(2, 11) + step
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(ids).reshape(22, -1), ids.reshape(-1))
        loss.backward()
        optimizer.step()


def state_of(model, optimizer, step):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": step, "data": {"epoch": (1, 2.5)}}


def whole(state, prefix=""):
    """Every leaf by its name, tensors in whole. Collective."""
    found = {}
    items = state.items() if isinstance(state, dict) else enumerate(state)
    for key, value in items:
        name = f"{prefix}{key}"
        if isinstance(value, DTensor):
            found[name] = value.full_tensor()
        elif isinstance(value, dict) or (isinstance(value, list) and name.endswith("groups")):
            found.update(whole(value, name + "."))
        else:
            found[name] = value.clone() if isinstance(value, torch.Tensor) else value
    return found


def spoil(state):
    """So that what is right afterwards has been loaded."""
    items = state.items() if isinstance(state, dict) else enumerate(state)
    for key, value in items:
        if isinstance(value, DTensor):
            value.to_local().fill_(77)
        elif isinstance(value, torch.Tensor):
            value.fill_(77)
        elif isinstance(value, dict):
            spoil(value)
        elif key in ("step", "epoch"):
            state[key] = 99


def check(found, golden, what):
    expected = torch.load(golden, weights_only=False)
    assert found.keys() == expected.keys(), (what, found.keys() ^ expected.keys())
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype, (what, name)
            assert torch.equal(found[name], value), (what, name, found[name], value)
        else:
            assert found[name] == value, (what, name, found[name], value)
    if dist.get_rank() == 0:
        tensors = sum(isinstance(v, torch.Tensor) for v in expected.values())
        print(f"{what}: {tensors} tensors and {len(expected) - tensors} values equal", flush=True)


def save(mesh, folder, how):
    """Trains, saves, and writes what is right beside it."""
    model, optimizer = build(mesh)
    train(model, optimizer)
    state = state_of(model, optimizer, 5)
    golden = whole(state)
    if dist.get_rank() == 0:
        torch.save(golden, folder + ".golden")
    if how == "dcp":
        dcp.save(state, storage_writer=Writer(folder, step=5))
    elif how == "dcp_async":
        dcp.async_save(state, storage_writer=Writer(f"{folder}/step-00000005"),
                       process_group=dist.new_group(backend="gloo")).result()
    elif how == "async":
        with tessera_ckpt.AsyncSaver(folder) as saver:
            saver.save(5, state)
            saver.wait_copied()
            spoil(state)
    else:
        tessera_ckpt.save(folder, 5, state)


def load(mesh, folder, how):
    model, optimizer = build(mesh)
    train(model, optimizer, 1)  # other moments
    state = state_of(model, optimizer, 0)
    spoil(state)
    if how == "dcp":
        dcp.load(state, storage_reader=Reader(folder))
    else:
        report = tessera_ckpt.load(folder, state, verify_digests=True)
        assert report.step == 5
    # What the model and the optimizer take over is right, too.
    set_state_dict(model, optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optimizer"])
    taken = state_of(model, optimizer, state["step"])
    taken["data"] = state["data"]
    check(whole(taken), folder + ".golden", f"{how}, loaded on {mesh} of {dist.get_world_size()}")


def stages(_, folder, phase):
    """Each rank has the layers of a stage of a pipeline. The settings of its optimizer are named
    after their parameters."""
    torch.manual_seed(phase == "load")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = Model()
    model.blocks = nn.ModuleDict({str(number): block for number, block in enumerate(model.blocks)
                                  if number * size // 3 == rank})
    if rank > 0:
        del model.embedding
    if rank < size - 1:
        del model.head
    small = [each for each in model.parameters() if each.ndim == 1]
    optimizer = torch.optim.AdamW([
        {"params": [each for each in model.parameters() if each.ndim > 1], "lr": 1e-2},
        {"params": small, "lr": 1e-3, "weight_decay": 0.0}])
    for _ in range(2):
        optimizer.zero_grad()
        sum(each.square().sum() for each in model.parameters()).backward()
        optimizer.step()
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    weights, moments = get_state_dict(model, optimizer, options=options)
    state = {"model": weights, "optimizer": moments, "step": 2}
    if phase == "save":
        tessera_ckpt.save(folder, 2, state)
    else:
        spoil(state)
        tessera_ckpt.load(folder, state)
        set_state_dict(model, optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"], options=options)
        state["model"], state["optimizer"] = get_state_dict(model, optimizer, options=options)
    each_stage = [None] * size
    dist.all_gather_object(each_stage, whole(state))
    everything = {name: value for stage in each_stage for name, value in stage.items()}
    if phase == "load":
        check(everything, folder + ".golden", f"{size} pipeline stages")
    elif rank == 0:
        torch.save(everything, folder + ".golden")


def flat_state(model, optimizer):
    return {"model": fsdp1.model_state(model),
            "optimizer": fsdp1.optimizer_state(model, optimizer)}


def assembled(parts):
    """Tensors of which each rank has flat parts. Collective."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, [(name, part) for name, part in parts.items()])
    found = {}
    for name, part in (pair for parts_of_rank in gathered for pair in parts_of_rank):
        if not isinstance(part, tessera_ckpt.FlatShard):
            found[name] = part
            continue
        tensor = found.setdefault(name, torch.full(part.shape, float("nan")))
        tensor.view(-1)[part.begin:part.begin + part.data.numel()] = part.data
    return found


def flat_parts(state):
    parts = {f"model.{name}": part for name, part in state["model"].items()}
    for name, moments in state["optimizer"]["state"].items():
        parts.update({f"optimizer.state.{name}.{key}": part for key, part in moments.items()})
    return parts


def flat_save(_, folder, __):
    model, optimizer = build("fsdp1")
    train(model, optimizer)
    state = flat_state(model, optimizer)
    tessera_ckpt.save(folder, 5, state)
    golden = assembled(flat_parts(state))
    with FullyShardedDataParallel.summon_full_params(model):  # as FSDP itself has them
        for name, value in model.named_parameters():
            name = name.replace("_fsdp_wrapped_module.", "")
            assert torch.equal(golden[f"model.{name}"], value), name
    if dist.get_rank() == 0:
        torch.save(golden, folder + ".flat")


def flat_load(mesh, folder, _):
    """Into FSDP1 of another size, or into a model without it."""
    golden = torch.load(folder + ".flat", weights_only=False)
    model, optimizer = build(mesh)
    train(model, optimizer, 1)
    if mesh == "fsdp1":
        state = flat_state(model, optimizer)
        tessera_ckpt.load(folder, state, verify_digests=True)
        found = assembled(flat_parts(flat_state(model, optimizer)))
    else:
        weights, moments = get_state_dict(model, optimizer)
        for group in moments["param_groups"]:
            del group["params"]
        tessera_ckpt.load(folder, {"model": weights, "optimizer": moments})
        found = whole({"model": weights, "optimizer": moments})
    for name, value in golden.items():
        assert torch.equal(found[name], value), name
    if dist.get_rank() == 0:
        print(f"flat parameters, loaded on {mesh} of {dist.get_world_size()}: "
              f"{len(golden)} tensors equal", flush=True)


def flat_rest(_, folder, phase):
    """What is no flat tensor: the groups' numbers, those of the state, and ignored modules."""
    torch.manual_seed(phase == "load")
    model = Model()
    model = FullyShardedDataParallel(model, use_orig_params=True, ignored_modules=[model.head],
                                     device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4 if phase == "save" else 0.0)
    train(model, optimizer, 3 if phase == "save" else 1)
    for state in optimizer.state.values():
        state["count"] = 3 if phase == "save" else 1
    if phase == "save":
        tessera_ckpt.save(folder, 5, flat_state(model, optimizer))
        if dist.get_rank() == 0:
            torch.save(optimizer.state[model.module.head.weight], folder + ".head")
        return
    report = tessera_ckpt.load(folder, flat_state(model, optimizer))
    assert report.missing == report.unexpected == []
    assert optimizer.param_groups[0]["lr"] == 1e-4, optimizer.param_groups[0]["lr"]
    assert all(state["count"] == 3 for state in optimizer.state.values())
    head = optimizer.state[model.module.head.weight]
    for key, value in torch.load(folder + ".head").items():
        assert head[key] == value if key == "count" else torch.equal(head[key], value), key
    stray = nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [stray]})
    optimizer.state[stray]["exp_avg"] = torch.ones(3)
    for call, error, words in (
            (lambda: fsdp1.optimizer_state(model, optimizer), tessera_ckpt.InvalidArgumentError,
             "a parameter of shape (3,) that the model does not have"),
            (lambda: fsdp1.model_state(model), tessera_ckpt.UnimplementedError,
             "blocks.0.norm")):
        model.module.blocks[0].norm.__class__ = Scaled
        try:
            call()
        except error as found:
            assert words in str(found), found
        else:
            raise AssertionError(words)
    assert "blocks.0.norm.weight" in fsdp1.model_state(model, leave_out_extra_state=True)
    if dist.get_rank() == 0:
        print("flat parameters: groups, numbers and ignored modules are loaded", flush=True)


class Scaled(nn.LayerNorm):
    """With state of its own, as FP8's scales are."""

    def get_extra_state(self):
        return {"scale": 2.0}

    def set_extra_state(self, state):
        pass


def endless(mesh, folder, _):
    """Saves until it is killed."""
    model, optimizer = build(mesh)
    big = nn.Parameter(torch.zeros(3_000_000))
    for step in range(1, 10_000):
        state = state_of(model, optimizer, step)
        state["big"] = big.data.fill_(step)
        tessera_ckpt.save(folder, step, state, timeout_seconds=60)
        if dist.get_rank() == 0:
            print(step, flush=True)


def survivors(_, folder, __):
    """One rank dies before a save: the others are told, and nothing is committed."""
    if dist.get_rank() == 1:
        os._exit(0)
    try:
        tessera_ckpt.save(folder, 1, {"w": torch.ones(3)}, timeout_seconds=20)
    except tessera_ckpt.TesseraError as error:
        print(f"rank {dist.get_rank()}: {type(error).__name__}: {str(error)[:100]}", flush=True)
        os._exit(0)
    os._exit(1)


def interrupted(_, folder, __):
    """SIGINT ends a save of which rank 0 still writes its part while rank 1 waits for the end. The
    next save of the program succeeds."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job may ignore it
    state = {f"w{dist.get_rank()}": torch.ones(1 << 20)}
    slow = [dist.get_rank() == 0]

    def progress(*_):
        if slow.pop() if slow else False:
            print("writes", flush=True)
            time.sleep(5)

    try:
        tessera_ckpt.save(folder, 1, state, progress=progress, timeout_seconds=100)
    except KeyboardInterrupt:
        tessera_ckpt.save(folder, 2, state, timeout_seconds=100)
        os._exit(0)
    os._exit(1)


def refused(_, folder, __):
    """A tensor that cannot be saved, on one rank, ends the save of all at once."""
    rank = dist.get_rank()
    state = {f"w{rank}": torch.ones(3, dtype=torch.cfloat if rank == 1 else torch.float32)}
    writer = Writer(folder, step=1)
    for refusal, call in (
            ("use_collectives=False",
             lambda: dcp.save({}, storage_writer=writer, use_collectives=False)),
            ("AsyncCheckpointerType.THREAD", lambda: pickle.dumps(writer))):  # to another process
        try:
            call()
        except tessera_ckpt.TesseraError as error:
            assert refusal in str(error), error
        else:
            raise AssertionError(f"no refusal that names {refusal}")
    began = time.monotonic()
    try:
        dcp.save(state, storage_writer=Writer(folder, step=1))
    except CheckpointException as error:
        assert "w1: elements of dtype complex64 are not supported" in str(error), error
        assert time.monotonic() - began < 60
        return
    raise AssertionError("it was saved")


def titan(phase, folder, async_mode):
    """torchtitan's manager, as a configuration names it: two saves, one load elsewhere."""
    from tessera_ckpt.torchtitan import CheckpointManager
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
    from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict, StateDictOptions

    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    model, optimizer = build("fsdp4" if phase == "load" else "fsdp2_tp2")

    class Optimizers:
        """As torchtitan's container."""

        def state_dict(self):
            return get_optimizer_state_dict(model, optimizer, options=flat)

        def load_state_dict(self, state):
            set_optimizer_state_dict(model, optimizer, state, options=flat)

    class Counter:
        def __init__(self, value):
            self.value = value

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            self.value = state["value"]

    counters = [Counter(value if phase == "save" else 0) for value in (3, 4, 5)]
    config = CheckpointManager.Config(enable=True, folder="checkpoint", interval=2,
                                      async_mode=async_mode, keep_latest_k=2,
                                      last_save_model_only=False)
    manager = config.build(dataloader=counters[0], model_parts=[model], optimizers=Optimizers(),
                           lr_schedulers=counters[1], states={"train_state": counters[2]},
                           sd_adapter=None, base_folder=folder)
    assert type(manager) is CheckpointManager
    if phase == "save":
        for step in range(1, 9):
            train(model, optimizer, 1)
            manager.save(step, last_step=step == 8)
            manager.maybe_wait_for_saving()
        golden = whole(state_of(model, optimizer, 5))
        if dist.get_rank() == 0:
            torch.save(golden, folder + ".golden")
            steps = [c.step for c in tessera_ckpt.list_checkpoints(folder + "/checkpoint")]
            # The last save deletes nothing, and one in the background does not count before it is
            # complete.
            assert steps == [4, 6, 8] or async_mode == "async" and steps == [2, 4, 6, 8], steps
    else:
        train(model, optimizer, 1)
        assert manager.load()
        assert [c.value for c in counters] == [3, 4, 5]
        check(whole(state_of(model, optimizer, 5)), folder + ".golden",
              f"torchtitan's manager, {async_mode}, loaded on {dist.get_world_size()}")
    manager.close()


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[name](*arguments)
    dist.destroy_process_group()
