"""Writes the fixtures of state_dict_test whose optimizers keep their states by number: what a
trainer of transformers, accelerate, a script and torch.distributed.checkpoint save.

  make_numbered.py PYTORCH_FIXTURES FOLDER

Needs torch, transformers, accelerate and safetensors. Beside each fixture NAME is
NAME.logical.safetensors: weights and moments by the names of transformers' parameters, from the
live model and optimizer.
"""

import pathlib
import shutil
import sys
import tempfile

import accelerate
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def load(source, name):
    return AutoModelForCausalLM.from_pretrained(source / name, dtype=torch.float32)


def train(model, optimizer, steps):
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def write_expected(model, optimizer, path):
    expected = {}
    for name, parameter in model.named_parameters():
        expected[name] = parameter.detach().clone()
        for state in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            if state in optimizer.state.get(parameter, {}):
                expected[f"{name}.{state}"] = optimizer.state[parameter][state].clone()
    save_file(expected, path)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        tokens = torch.arange(9) * (index + 1) % 61
        return {"input_ids": tokens, "labels": tokens}


def write_trainer(source, folder):
    """Two groups: with weight decay and without."""
    model = load(source, "llama3_untied.hf")
    with tempfile.TemporaryDirectory() as work:
        arguments = TrainingArguments(
            output_dir=work,
            max_steps=3,
            save_steps=3,
            per_device_train_batch_size=2,
            report_to=[],
            use_cpu=True,
            weight_decay=0.1,
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Samples())
        trainer.train()
        (folder / "trainer").mkdir(exist_ok=True)
        for name in (
            "config.json",
            "model.safetensors",
            "optimizer.pt",
            "scheduler.pt",
            "trainer_state.json",
        ):
            shutil.copy(pathlib.Path(work) / "checkpoint-3" / name, folder / "trainer" / name)
        optimizer = trainer.optimizer
        optimizer = getattr(optimizer, "optimizer", optimizer)
    write_expected(model, optimizer, folder / "trainer.logical.safetensors")


def write_accelerate(source, folder):
    """One group, in the order of the modules, beside safetensors, which are in another."""
    model = load(source, "llama3_untied.hf")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    train(model, optimizer, 2)
    with tempfile.TemporaryDirectory() as work:
        accelerator.save_state(work)
        (folder / "accelerate").mkdir(exist_ok=True)
        for name in ("model.safetensors", "optimizer.bin"):
            shutil.copy(pathlib.Path(work) / name, folder / "accelerate" / name)
    model.config.save_pretrained(folder / "accelerate")
    write_expected(model, optimizer.optimizer, folder / "accelerate.logical.safetensors")


def write_script(source, folder):
    """As nanoGPT does: tied weights, and groups by the number of dims. One bias is frozen."""
    model = load(source, "gpt2.hf")
    model.transformer.h[1].mlp.c_fc.bias.requires_grad = False
    live = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in live if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in live if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    train(model, optimizer, 4)
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "model_args": {"n_layer": 2, "n_head": 2, "n_embd": 16, "bias": True},
            "iter_num": 4,
            "consumed_samples": 48,
            "config": {"learning_rate": 1e-2, "out_dir": "out"},
        },
        folder / "script.pt",
    )
    write_expected(model, optimizer, folder / "script.logical.safetensors")
    # The optimizer of one layer of two that are alike.
    part = torch.optim.AdamW(model.transformer.h[1].ln_1.parameters(), lr=1e-2)
    train(model, part, 1)
    torch.save(
        {"model": model.state_dict(), "optimizer": part.state_dict()}, folder / "ambiguous.pt"
    )
    # Names given with the parameters settle what the shapes do not.
    part = model.transformer.h[1].ln_1.named_parameters(prefix="transformer.h.1.ln_1")
    named = torch.optim.AdamW(list(part), lr=1e-2)
    train(model, named, 1)
    torch.save({"model": model.state_dict(), "optimizer": named.state_dict()}, folder / "named.pt")
    write_expected(model, named, folder / "named.logical.safetensors")


def write_captured(source, folder):
    """AMSGrad whose learning rate is a tensor, as in a captured graph."""
    model = load(source, "gpt2.hf")
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.015625), amsgrad=True)
    train(model, optimizer, 3)
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "captured.pt"
    )
    write_expected(model, optimizer, folder / "captured.logical.safetensors")


def write_dcp(source, folder):
    model = load(source, "gpt2.hf")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, 2)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 17}
    writer = dcp.FileSystemWriter(folder / "numbered_dcp", single_file_per_rank=True)
    dcp.save(state, storage_writer=writer)
    write_expected(model, optimizer, folder / "numbered_dcp.logical.safetensors")


def main():
    source, folder = map(pathlib.Path, sys.argv[1:])
    torch.manual_seed(0)
    write_trainer(source, folder)
    write_accelerate(source, folder)
    write_script(source, folder)
    write_dcp(source, folder)
    write_captured(source, folder)


if __name__ == "__main__":
    main()
