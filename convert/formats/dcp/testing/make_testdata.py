"""Writes testdata/: checkpoints of torch.distributed.checkpoint (DCP), each with its tensors in a
safetensors file.

  make_testdata.py FOLDER

NAME/ is read by read_test; NAME.safetensors holds the whole tensors under the names that the reader
gives them. Needs numpy, torch and safetensors; starts processes that talk over gloo.
"""

import os
import pathlib
import pickle
import shutil
import socket
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


def numbers(*shape, dtype=torch.float32):
    count = 1
    for extent in shape:
        count *= extent
    return (torch.arange(count, dtype=torch.float32) * 0.25).reshape(shape).to(dtype)


def flatten(value, name=""):
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value.copy())
    if isinstance(value, torch.Tensor):
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        yield name, whole.detach().contiguous().clone()
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in items:
            yield from flatten(child, f"{name}.{key}" if name else str(key))


def save(state, folder, name, **writer_options):
    """By every rank; rank 0 writes the twin."""
    path = folder / name
    writer = dcp.FileSystemWriter(path, single_file_per_rank=True, **writer_options)
    dcp.save(state, storage_writer=writer)
    tensors = dict(flatten(state))  # a collective operation
    if not dist.is_initialized() or dist.get_rank() == 0:
        save_file(tensors, folder / f"{name}.safetensors")


def one_process(folder):
    save(
        {
            "model": {"a.weight": numbers(4, 3), "b": numbers(5, dtype=torch.bfloat16)},
            "views": {"transposed": numbers(3, 4).t(), "columns": numbers(4, 6)[:, 1:3]},
            "empty": torch.zeros(0, 2),
            "scalar": torch.tensor(2.5, dtype=torch.float64),
            "bytes": torch.arange(7, dtype=torch.uint8),
            "step": 3,
            "args": {"lr": 1e-3},
        },
        folder,
        "one",
    )
    state = np.random.RandomState(0).get_state()
    save({"w": numbers(2), "rng": state, "ema": (numbers(3), 0.5), "loss": np.float64(2.5)},
         folder, "objects")
    save(
        {"a": numbers(4, 3), "b": numbers(5, dtype=torch.bfloat16), "s": torch.tensor(1.0)},
        folder,
        "blobs_of_safetensors",
        serialization_format=SerializationFormat.SAFETENSORS,
    )


def four_processes(rank, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=4)
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    save(
        {
            "rows": distribute_tensor(numbers(8, 3), line, [Shard(0)]),
            "columns": distribute_tensor(numbers(3, 10), line, [Shard(1)]),  # 3, 3, 3 and 1
            "few": distribute_tensor(numbers(2, 2), line, [Shard(0)]),  # none on two ranks
            "both": distribute_tensor(numbers(6, 5), grid, [Shard(0), Shard(1)]),
            "twice": distribute_tensor(numbers(9, 2), grid, [Shard(0), Shard(0)]),
            "replicated": distribute_tensor(numbers(4), grid, [Replicate(), Replicate()]),
            "half": distribute_tensor(numbers(4, 4), grid, [Replicate(), Shard(1)]),
            "plain": numbers(3),
            "rank_independent": "text",
        },
        folder,
        "sharded",
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3, bias=False))
    for layer in model:
        fully_shard(layer, mesh=line)
    fully_shard(model, mesh=line)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 6)).square().mean().backward()
        optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    save({"model": model_state, "optim": optimizer_state, "step": 2}, folder, "fsdp")
    dist.destroy_process_group()


def change_metadata(folder, name, change):
    """Other metadata for the data of the checkpoint "one"."""
    metadata = pickle.loads((folder / "one" / ".metadata").read_bytes())
    change(metadata)
    (folder / f"{name}.metadata").write_bytes(pickle.dumps(metadata))


def hostile(folder):
    def infos(metadata):
        return {index.fqn: info for index, info in metadata.storage_data.items()}

    def outside(metadata):
        infos(metadata)["scalar"].relative_path = "../one/__0_0.distcp"

    def absolute(metadata):
        infos(metadata)["scalar"].relative_path = "/etc/passwd"

    def beyond(metadata):
        infos(metadata)["scalar"].length = 2**62

    def elsewhere(metadata):  # another tensor's chunk
        info = infos(metadata)
        info["scalar"].offset = info["model.b"].offset
        info["scalar"].length = info["model.b"].length

    def not_stored(metadata):
        for index in list(metadata.storage_data):
            if index.fqn == "scalar":
                del metadata.storage_data[index]

    def overlapping(metadata):
        metadata.state_dict_metadata["model.b"].size = torch.Size([6])

    def too_large(metadata):
        metadata.state_dict_metadata["model.b"].size = torch.Size([2**62, 2**62])

    def transformed(metadata):
        infos(metadata)["scalar"].transform_descriptors = ["zstd"]

    for change in (outside, absolute, beyond, elsewhere, not_stored, overlapping, too_large):
        change_metadata(folder, f"bad_{change.__name__}", change)
    change_metadata(folder, "bad_transformed", transformed)


def properties_as_dict(folder):
    """As torch before 2.2 wrote it: the state of TensorProperties is a dict."""
    def change(metadata):
        for value in metadata.state_dict_metadata.values():
            if hasattr(value, "properties"):
                value.properties.__class__ = DictProperties

    change_metadata(folder, "old_properties", change)
    path = folder / "old_properties.metadata"
    data = path.read_bytes()
    ours = b"\x8c\x08__main__\x94\x8c\x0eDictProperties"
    name = b"\x8c\x25torch.distributed.checkpoint.metadata\x94\x8c\x10TensorProperties"
    assert data.count(ours) == 1 and data[2:3] == pickle.FRAME
    data = data.replace(ours, name)
    path.write_bytes(data[:3] + (len(data) - 11).to_bytes(8, "little") + data[11:])


class DictProperties:
    def __getstate__(self):
        return {"dtype": self.dtype, "requires_grad": False, "pin_memory": False}


def main():
    folder = pathlib.Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    one_process(folder)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    mp.spawn(four_processes, (port, folder), nprocs=4)
    hostile(folder)
    properties_as_dict(folder)


if __name__ == "__main__":
    main()
