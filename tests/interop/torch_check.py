"""The golden checkpoint in torch's formats, loaded by torch.

  torch_check.py CKPT CHECKPOINT_DIRECTORY    the program; the golden state (golden_state.h)
"""

import os
import subprocess
import sys
import tempfile
import zipfile

import torch
import torch.distributed.checkpoint as dcp
from safetensors_check import GOLDEN, golden_value
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

EXPECTED = {name: golden_value(i, dtype, shape) for i, (name, dtype, shape) in enumerate(GOLDEN)}


def convert(ckpt, source, folder, *flags):
    subprocess.run([ckpt, "convert", source, folder, *flags], check=True)


def check_equal(found, what, expected):
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, (what, name, found[name].dtype)
        assert torch.equal(found[name], value), (what, name, found[name])
    print(f"{what}: {len(expected)} tensors equal")


def check_torch(ckpt, source, folder):
    convert(ckpt, source, folder, "--to=torch")
    path = os.path.join(folder, "checkpoint.pt")
    assert zipfile.ZipFile(path).testzip() is None
    loaded = torch.load(path, weights_only=True)
    check_equal(loaded, "torch.load", EXPECTED)
    assert loaded["lm_head.weight"].data_ptr() == loaded["wte.weight"].data_ptr()
    others = {"lm_head.weight", "tessera.roles", "tessera.trainer"}
    assert set(loaded) - set(EXPECTED) == others, list(loaded)
    assert set(loaded["tessera.trainer"]) == {"step", "consumed_samples"}, loaded["tessera.trainer"]
    check_equal(torch.load(path, weights_only=True, mmap=True), "torch.load, mapped", EXPECTED)
    weights = folder + "-bf16"
    convert(ckpt, source, weights, "--to=torch", "--weights-only", "--dtype=bf16")
    loaded = torch.load(os.path.join(weights, "checkpoint.pt"), weights_only=True)
    assert loaded["h.0.mlp.weight"].dtype == torch.bfloat16
    assert "exp_avg.h.0.mlp.weight" not in loaded


def check_dcp(ckpt, source, folder):
    convert(ckpt, source, folder, "--to=dcp")
    state = {name: torch.full_like(value, 1) for name, value in EXPECTED.items()}
    dcp.load(state, checkpoint_id=folder)
    check_equal(state, "dcp.load", EXPECTED)
    whole = os.path.join(folder, "whole.pt")
    dcp_to_torch_save(folder, whole)
    check_equal(torch.load(whole, weights_only=True), "dcp_to_torch_save", EXPECTED)


def main():
    ckpt, source = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        check_torch(ckpt, source, os.path.join(folder, "torch"))
        check_dcp(ckpt, source, os.path.join(folder, "dcp"))


if __name__ == "__main__":
    main()
