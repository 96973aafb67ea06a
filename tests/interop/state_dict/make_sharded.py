"""Writes the fixture titan_sharded of layouts_test: the state of the fixture titan as torchtitan
saves it where several ranks have parts of each tensor.

  make_sharded.py PYTORCH_FIXTURES FOLDER

Needs torch, transformers and safetensors; FOLDER has titan.logical.safetensors. Three ranks, so
that parts differ in size, train on the CPU over gloo, with torch's fully_shard().
"""

import os
import pathlib
import sys

import make_fixtures as fixtures
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from transformers import AutoModelForCausalLM

RANKS = 3


def train(module, steps):
    """The updates of make_fixtures.train()."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in module.parameters():
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = distribute_tensor(
                gradient, parameter.device_mesh, parameter.placements
            )
        optimizer.step()
    return optimizer


def check(module, optimizer, config, expected):
    live = dict(module.named_parameters())
    for name in [n for n in expected if not n.endswith((".exp_avg", ".exp_avg_sq"))]:
        parameter = live[fixtures.meta_name(name)]
        heads = fixtures.heads_of(name, config)
        for end, part in (
            ("", parameter.detach()),
            (".exp_avg", optimizer.state[parameter]["exp_avg"]),
            (".exp_avg_sq", optimizer.state[parameter]["exp_avg_sq"]),
        ):
            tensor = part.full_tensor()
            tensor = fixtures.deinterleave(tensor, heads) if heads else tensor
            assert torch.equal(tensor, expected[name + end]), name + end


def run_rank(rank, source, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29641")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))
    llama = AutoModelForCausalLM.from_pretrained(source / "llama3_untied.hf", dtype=torch.float32)
    module = fixtures.Tree(fixtures.to_meta(llama.state_dict(), llama.config))
    for layer in module.layers.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    optimizer = train(module, 3)
    check(module, optimizer, llama.config, load_file(folder / "titan.logical.safetensors"))
    model_state, optimizer_state = get_state_dict(module, optimizer)
    dcp.save(
        {"model": model_state, "optimizer": optimizer_state},
        storage_writer=dcp.FileSystemWriter(folder / "titan_sharded", single_file_per_rank=True),
    )
    torch.distributed.destroy_process_group()


def main():
    source, folder = map(pathlib.Path, sys.argv[1:])
    torch.multiprocessing.spawn(run_rank, (source, folder), nprocs=RANKS)


if __name__ == "__main__":
    main()
