"""Writes the fixtures of state_dict_test: the models of tests/interop/pytorch as torch and
torch.distributed.checkpoint store them under the names of transformers and of Meta.

  make_fixtures.py PYTORCH_FIXTURES FOLDER

Needs torch, transformers and safetensors. What the tensors are is read by the test from the folders
in Hugging Face's format; the moments, and the weights after the updates, from
titan.logical.safetensors.
"""

import json
import pathlib
import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import get_state_dict
from transformers import AutoModelForCausalLM

META = {
    "model.embed_tokens.weight": "tok_embeddings.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "output.weight",
    "self_attn.q_proj.weight": "attention.wq.weight",
    "self_attn.k_proj.weight": "attention.wk.weight",
    "self_attn.v_proj.weight": "attention.wv.weight",
    "self_attn.o_proj.weight": "attention.wo.weight",
    "mlp.gate_proj.weight": "feed_forward.w1.weight",
    "mlp.down_proj.weight": "feed_forward.w2.weight",
    "mlp.up_proj.weight": "feed_forward.w3.weight",
    "input_layernorm.weight": "attention_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}


def meta_name(name):
    if name in META:
        return META[name]
    _, layers, number, rest = name.split(".", 3)
    return f"{layers}.{number}.{META[rest]}"


def interleave(weight, heads):
    """Of transformers' conversion of Meta's files, the inverse."""
    rows, columns = weight.shape
    halves = weight.view(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns).contiguous()


def deinterleave(weight, heads):
    rows, columns = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns).contiguous()


def heads_of(name, config):
    if "q_proj" in name:
        return config.num_attention_heads
    return config.num_key_value_heads if "k_proj" in name else 0


def to_meta(state, config):
    renamed = {}
    for name, tensor in state.items():
        heads = heads_of(name, config)
        renamed[meta_name(name)] = interleave(tensor, heads) if heads else tensor.clone()
    return renamed


# The dim along which tensor-parallel ranks of Meta cut; norms are copies.
CUTS = {"attention.wo.weight": 1, "feed_forward.w2.weight": 1}


def write_ranks(state, params, folder, embedding_dim):
    """As the ranks of a tensor-parallel model of Meta save it: embeddings are cut by rows since
    Llama 3, and by columns before."""
    folder.mkdir(exist_ok=True)
    for rank in range(2):
        part = {}
        for name, tensor in state.items():
            if tensor.dim() == 1:
                part[name] = tensor.clone()
                continue
            dim = CUTS.get(".".join(name.split(".")[2:]), 0)
            if name == "tok_embeddings.weight":
                dim = embedding_dim
            part[name] = tensor.chunk(2, dim)[rank].clone()
        torch.save(part, folder / f"consolidated.{rank:02d}.pth")
    (folder / "params.json").write_text(json.dumps(params, indent=2) + "\n")


class Tree(torch.nn.Module):
    """A module whose parameters have these names."""

    def __init__(self, state):
        super().__init__()
        for name, tensor in state.items():
            module = self
            *path, leaf = name.split(".")
            for part in path:
                if part not in module._modules:
                    module.add_module(part, torch.nn.Module())
                module = module._modules[part]
            module.register_parameter(leaf, torch.nn.Parameter(tensor.clone()))


def train(module, steps):
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return optimizer


def write_titan(state, config, folder):
    """As torchtitan does: DCP, and the optimizer's states by the names of the parameters."""
    module = Tree(to_meta(state, config))
    optimizer = train(module, 3)
    model_state, optimizer_state = get_state_dict(module, optimizer)
    dcp.save(
        {"model": model_state, "optimizer": optimizer_state},
        storage_writer=dcp.FileSystemWriter(folder / "titan", single_file_per_rank=True),
    )
    expected = {}
    live = dict(module.named_parameters())
    for name in state:
        parameter = live[meta_name(name)]
        heads = heads_of(name, config)
        moments = optimizer.state[parameter]
        for end, tensor in (
            ("", parameter.detach()),
            (".exp_avg", moments["exp_avg"]),
            (".exp_avg_sq", moments["exp_avg_sq"]),
        ):
            expected[name + end] = deinterleave(tensor, heads) if heads else tensor.clone()
    save_file(expected, folder / "titan.logical.safetensors")


def main():
    source, folder = map(pathlib.Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    gpt2 = AutoModelForCausalLM.from_pretrained(source / "gpt2.hf", dtype=torch.float32)
    (folder / "gpt2").mkdir(exist_ok=True)
    gpt2.config.save_pretrained(folder / "gpt2")
    torch.save(gpt2.state_dict(), folder / "gpt2" / "pytorch_model.bin")
    wrapped = {"module._orig_mod." + name: tensor for name, tensor in gpt2.state_dict().items()}
    torch.save(
        {"epoch": 3, "model": wrapped, "rng_state": torch.zeros(16, dtype=torch.uint8)},
        folder / "gpt2_wrapped.pt",
    )
    two = {"model": gpt2.transformer.state_dict(), "ema": gpt2.transformer.state_dict()}
    torch.save(
        {key: {n: t.clone() for n, t in state.items()} for key, state in two.items()},
        folder / "gpt2_twice.pt",
    )

    llama = AutoModelForCausalLM.from_pretrained(source / "llama3_untied.hf", dtype=torch.float32)
    config = llama.config
    (folder / "llama_meta").mkdir(exist_ok=True)
    torch.save(to_meta(llama.state_dict(), config), folder / "llama_meta" / "consolidated.00.pth")
    params = {
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "vocab_size": config.vocab_size,
        "multiple_of": 8,
        "ffn_dim_multiplier": 1.3,
        "norm_eps": config.rms_norm_eps,
        "rope_theta": 50.0,
    }
    (folder / "llama_meta" / "params.json").write_text(json.dumps(params, indent=2) + "\n")
    # Two ranks need an even vocabulary: that of the file has one row more.
    even = to_meta(llama.state_dict(), config)
    for name in ("tok_embeddings.weight", "output.weight"):
        even[name] = torch.cat([even[name], even[name][:1] + 1])
    params["vocab_size"] += 1
    (folder / "llama_whole").mkdir(exist_ok=True)
    torch.save(even, folder / "llama_whole" / "consolidated.00.pth")
    (folder / "llama_whole" / "params.json").write_text(json.dumps(params, indent=2) + "\n")
    write_ranks(even, params, folder / "llama_ranks", 0)
    write_ranks(even, params, folder / "llama2_ranks", 1)
    write_titan(llama.state_dict(), config, folder)


if __name__ == "__main__":
    main()
