"""The golden checkpoint in torch's formats, loaded by torch.

  torch_check.py CKPT CHECKPOINT_DIRECTORY TRAINER_FOLDER    the program; the golden state
      (golden_state.h); a folder of a trainer of transformers, with its optimizer.pt
"""

import os
import subprocess
import sys
import tempfile
import zipfile

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from safetensors_check import GOLDEN, golden_value
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from transformers import AutoConfig, AutoModelForCausalLM

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
    trainer = loaded["tessera.trainer"]
    assert set(trainer) == {"step", "consumed_samples", "manifest"}, trainer
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


def build(folder):
    """The model of a folder, and AdamW with and without weight decay, as trainers make them."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    named = list(model.named_parameters())
    decayed = [p for name, p in named if p.dim() > 1]
    others = [p for name, p in named if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=1e-3)


def step(model, optimizer):
    """One update with settings of its own, so that only weights and moments decide."""
    for group in optimizer.param_groups:
        decay = 0.1 if group["weight_decay"] > 0 else 0.0
        group.update(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay)
        group.update(foreach=False, fused=False)
    ids = torch.arange(22).reshape(2, 11)
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def check_resumed(ckpt, original, folder):
    """A program that resumes from what was written takes the same step as one from the original."""
    model, optimizer = build(original)
    model.load_state_dict(load_file(os.path.join(original, "model.safetensors")))
    optimizer.load_state_dict(torch.load(os.path.join(original, "optimizer.pt")))
    expected = step(model, optimizer)

    written = os.path.join(folder, "resumed.torch")
    convert(ckpt, original, written, "--to=torch")
    state = torch.load(os.path.join(written, "checkpoint.pt"), weights_only=True)
    model, optimizer = build(original)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    check_equal(step(model, optimizer), "resumed by load_state_dict", expected)

    written = os.path.join(folder, "resumed.dcp")
    convert(ckpt, original, written, "--to=dcp")
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    model, optimizer = build(original)
    moments = get_optimizer_state_dict(model, optimizer, options=flat)
    state = {"model": model.state_dict(), "optimizer": moments}
    dcp.load(state, checkpoint_id=written)
    model.load_state_dict(state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=flat)
    check_equal(step(model, optimizer), "resumed by dcp.load", expected)


def main():
    ckpt, source, original = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        check_torch(ckpt, source, os.path.join(folder, "torch"))
        check_dcp(ckpt, source, os.path.join(folder, "dcp"))
        check_resumed(ckpt, original, folder)


if __name__ == "__main__":
    main()
