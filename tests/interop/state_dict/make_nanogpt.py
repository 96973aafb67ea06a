"""Writes the fixtures of state_dict_test that have the form of nanoGPT's folders.

  make_nanogpt.py FOLDER          the fixtures
  make_nanogpt.py FOLDER --seeds  small folders, which ../pack_folder.py packs for ../corpus/folder

Needs torch and safetensors. The model and the loop are written from what nanoGPT's files look like:
linear layers, tied embeddings, biases or none, and AdamW over two groups, by the number of dims.
Beside each fixture NAME is NAME.logical.safetensors: weights and moments of the live model and
optimizer, by the names of transformers' parameters and in its layout, which has the matrices of
layers transposed.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args["n_embd"]
        self.heads = args["n_head"]
        self.c_attn = nn.Linear(width, 3 * width, bias=args["bias"])
        self.c_proj = nn.Linear(width, width, bias=args["bias"])

    def forward(self, x):
        batch, length, width = x.shape
        split = lambda y: y.view(batch, length, self.heads, -1).transpose(1, 2)
        q, k, v = (split(y) for y in self.c_attn(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args["n_embd"]
        self.c_fc = nn.Linear(width, 4 * width, bias=args["bias"])
        self.c_proj = nn.Linear(4 * width, width, bias=args["bias"])

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate=GELU))


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.ln_1 = Norm(args["n_embd"], args["bias"])
        self.attn = Attention(args)
        self.ln_2 = Norm(args["n_embd"], args["bias"])
        self.mlp = Mlp(args)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args["n_embd"]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(args["vocab_size"], width),
                "wpe": nn.Embedding(args["block_size"], width),
                "h": nn.ModuleList(Block(args) for _ in range(args["n_layer"])),
                "ln_f": Norm(width, args["bias"]),
            }
        )
        self.lm_head = nn.Linear(width, args["vocab_size"], bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, tokens):
        parts = self.transformer
        x = parts.wte(tokens) + parts.wpe(torch.arange(tokens.shape[1]))
        for block in parts.h:
            x = block(x)
        return self.lm_head(parts.ln_f(x))


GELU = "none"  # nanoGPT's; "tanh" is GPT-2's


def make_optimizer(model):
    parameters = [p for _, p in model.named_parameters()]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))


def train(model, optimizer, steps, batch):
    for _ in range(steps):
        tokens = batch()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def checkpoint(model, optimizer, args, steps, prefix):
    return {
        "model": {prefix + name: tensor for name, tensor in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "model_args": args,
        "iter_num": steps,
        "best_val_loss": 1.25,
        "config": {"out_dir": "out", "learning_rate": 1e-2, "compile": bool(prefix)},
    }


def in_logical_layout(name, tensor):
    is_linear = tensor.dim() == 2 and name.startswith("transformer.h.")
    return (tensor.t() if is_linear else tensor).detach().clone().contiguous()


def write(folder, name, bias, prefix):
    torch.manual_seed(5)
    args = dict(n_layer=2, n_head=2, n_embd=8, block_size=12, bias=bias, vocab_size=23, dropout=0.0)
    model = Model(args)
    optimizer = make_optimizer(model)
    steps = 3
    train(model, optimizer, steps, lambda: torch.randint(0, args["vocab_size"], (4, 13)))
    (folder / name).mkdir(exist_ok=True)
    torch.save(checkpoint(model, optimizer, args, steps, prefix), folder / name / "ckpt.pt")
    expected = {}
    for parameter_name, parameter in model.named_parameters():
        expected[parameter_name] = in_logical_layout(parameter_name, parameter)
        for state in ("exp_avg", "exp_avg_sq"):
            expected[f"{parameter_name}.{state}"] = in_logical_layout(
                parameter_name, optimizer.state[parameter][state]
            )
    save_file(expected, folder / f"{name}.logical.safetensors")


def write_seeds(folder):
    """A model and its average, one in parts, and a trainer's files beside a model or an adapter."""
    torch.manual_seed(5)
    args = dict(n_layer=1, n_head=1, n_embd=2, block_size=4, bias=True, vocab_size=5, dropout=0.0)
    model = Model(args)
    optimizer = make_optimizer(model)
    train(model, optimizer, 1, lambda: torch.randint(0, args["vocab_size"], (4, 5)))
    saved = checkpoint(model, optimizer, args, 1, "_orig_mod.")
    saved["ema"] = {name: tensor / 2 for name, tensor in saved["model"].items()}
    for name in ("two_models", "parts", "trainer", "adapter"):
        (folder / name).mkdir(exist_ok=True)

    def save(state, name):
        torch.save(state, folder / name, _use_new_zipfile_serialization=False)

    save(saved, "two_models/ckpt.pt")
    weights = [(name, in_logical_layout(name, tensor)) for name, tensor in model.named_parameters()]
    for name, parameter in model.named_parameters():
        states = optimizer.state[parameter]
        states.update({key: in_logical_layout(name, state) for key, state in states.items()})
    for i in range(2):
        save(dict(weights[i::2]), f"parts/pytorch_model-0000{i + 1}-of-00002.bin")
    config = dict(model_type="gpt2", n_layer=1, n_head=1, n_embd=2, n_positions=4, vocab_size=5)
    adapter = dict(peft_type="LORA", r=8)
    for name in ("parts/config", "trainer/config", "adapter/adapter_config"):
        described = adapter if "adapter" in name else config
        (folder / f"{name}.json").write_text(json.dumps(described))
    for name, file in ("trainer", "model"), ("adapter", "adapter_model"):
        save_file(dict(weights), folder / name / f"{file}.safetensors")
        save(optimizer.state_dict(), f"{name}/optimizer.pt")
        (folder / name / "trainer_state.json").write_text(json.dumps({"global_step": 1}))


def main():
    folder = pathlib.Path(sys.argv[1])
    if sys.argv[2:] == ["--seeds"]:
        return write_seeds(folder)
    write(folder, "nanogpt", bias=False, prefix="_orig_mod.")
    write(folder, "nanogpt_biases", bias=True, prefix="")


if __name__ == "__main__":
    main()
