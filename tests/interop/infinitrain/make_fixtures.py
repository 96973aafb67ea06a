#!/usr/bin/env python3
"""Writes the checkpoints of InfiniTrain in this folder.

Needs numpy and safetensors:
  python make_fixtures.py

Also the files that //convert/infinitrain:infinitrain_fuzz begins with.

The framework itself trains on GPUs. So this script writes its files from their description
(//convert/infinitrain:state_file): the values are those of the state dicts of torch in
//tests/interop:state_dicts, put into the names and layouts of InfiniTrain's modules. The tensors
of a file are in no particular order, as those of a hash table.
"""

import pathlib
import random
import struct

import numpy
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).parent
STATES = HERE.parent / "state_dict"
DTYPES = {"int64": 8, "float32": 11}
HEADS, GROUPS, HEAD_SIZE = 4, 2, 4  # of the Llama-3


def write_state_dict(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    random.Random(len(names)).shuffle(names)
    with open(path, "wb") as file:
        file.write(b"CKPT" + struct.pack("<II", 1, len(names)))
        for name in names:
            array = numpy.asarray(tensors[name], order="C")
            file.write(struct.pack("<I", len(name)) + name.encode())
            file.write(struct.pack("<bI", DTYPES[array.dtype.name], array.ndim))
            file.write(struct.pack(f"<{array.ndim}q", *array.shape))
            file.write(struct.pack("<Q", array.nbytes) + array.tobytes())


def write_trainer_state(path, values, missing_comma=None):
    lines = [f'  "{key}": {value}' for key, value in values.items()]
    commas = [key != missing_comma for key in list(values)[:-1]] + [False]
    path.write_text("{\n" + "".join(
        line + ("," if comma else "") + "\n" for line, comma in zip(lines, commas)) + "}\n")


def state(source, kind):
    """The weights of a state by their logical names, or one of their moments."""
    suffix = f".{kind}" if kind else ""
    weights = [name for name in source if not name.endswith((".exp_avg", ".exp_avg_sq"))]
    return {name: source[name + suffix] for name in weights}


def gpt2(logical):
    """Linear layers have [out, in] here, and the head is a tensor of its own."""
    tensors = {}
    for name, array in logical.items():
        is_linear = array.ndim == 2 and ".h." in name
        tensors[name] = array.T if is_linear else array
    return tensors


def paired(matrix):
    """Rows of heads in Meta's order."""
    heads = matrix.reshape(-1, 2, HEAD_SIZE // 2, matrix.shape[1])
    return heads.transpose(0, 2, 1, 3).reshape(matrix.shape)


def llama3(logical):
    tensors = {
        "transformer.wte.weight": logical["model.embed_tokens.weight"],
        "transformer.ln_f.weight": logical["model.norm.weight"],
        "lm_head.weight": logical["lm_head.weight"],
    }
    layers = {name.split(".")[2] for name in logical if name.startswith("model.layers.")}
    for layer in sorted(layers):
        def of(name):
            return logical[f"model.layers.{layer}.{name}.weight"]
        modules = {
            "ln_1": of("input_layernorm"),
            "attn.c_attn": numpy.concatenate([
                paired(of("self_attn.q_proj")), paired(of("self_attn.k_proj")),
                of("self_attn.v_proj")]),
            "attn.c_proj": of("self_attn.o_proj"),
            "ln_2": of("post_attention_layernorm"),
            "mlp.c_fc": of("mlp.up_proj"),
            "mlp.c_fc2": of("mlp.gate_proj"),
            "mlp.c_proj": of("mlp.down_proj"),
        }
        for module, array in modules.items():
            tensors[f"transformer.h.{layer}.{module}.weight"] = array
    return tensors


def moments(first, second, updates, key=lambda index, name: name):
    tensors = {"adam.t": numpy.array(updates, dtype=numpy.int64)}
    for index, name in enumerate(first):
        tensors[f"adam.m.{key(index, name)}"] = first[name]
        tensors[f"adam.v.{key(index, name)}"] = second[name]
    return tensors


def make_llama3():
    """One rank; moments by name."""
    source = load_file(STATES / "titan.logical.safetensors")
    folder = HERE / "llama3/checkpoint_step_000003"
    kinds = [llama3(state(source, kind)) for kind in ("", "exp_avg", "exp_avg_sq")]
    write_state_dict(folder / "model.ckpt", kinds[0])
    write_state_dict(folder / "optimizer.ckpt", moments(kinds[1], kinds[2], 3))
    write_trainer_state(folder / "trainer_state.json", {
        "n_layer": 2, "n_head": HEADS, "n_kv_head": GROUPS, "n_embd": 16,
        "original_vocab_size": 61, "padded_vocab_size": 61, "global_step": 3,
        "consumed_train_samples": 24, "ddp_size": 1, "tp_size": 1, "sp_size": 1, "pp_size": 1,
        "vpp_size": 1})
    # Of an earlier release: moments by number, no comma.
    folder = HERE / "llama3_numbered/checkpoint_step_000003"
    write_state_dict(folder / "model.ckpt", kinds[0])
    write_state_dict(folder / "optimizer.ckpt",
                     moments(kinds[1], kinds[2], 3, key=lambda index, name: index))
    write_trainer_state(folder / "trainer_state.json", {
        "n_layer": 2, "n_head": HEADS, "n_kv_head": GROUPS, "n_embd": 16, "vocab_size": 61,
        "global_step": 3, "consumed_batches": 12, "last_lr": 0.0001, "ddp_size": 1, "tp_size": 1,
        "sp_size": 1, "pp_size": 1}, missing_comma="vocab_size")


def make_gpt2():
    """Two data-parallel ranks."""
    source = load_file(STATES / "numbered_dcp.logical.safetensors")
    weights, first, second = [
        gpt2(state(source, kind)) for kind in ("", "exp_avg", "exp_avg_sq")]
    positions = weights["transformer.wpe.weight"].shape[0]
    model = {f"module.{name}": array for name, array in weights.items()}
    model["module.lm_head.weight"] = weights["transformer.wte.weight"]
    mask = numpy.tril(numpy.ones((1, 1, positions, positions), dtype=numpy.float32))
    for layer in range(2):
        model[f"module.transformer.h.{layer}.attn.bias"] = mask
    for rank in range(2):
        folder = HERE / f"gpt2_dp2/checkpoint_step_000002/rank_{rank:06}"
        write_state_dict(folder / "model.ckpt", model)
        write_state_dict(folder / "optimizer.ckpt", moments(first, second, 2))
        write_trainer_state(folder / "trainer_state.json", {
            "n_layer": 2, "n_head": 2, "n_kv_head": 12, "n_embd": 16, "vocab_size": 61,
            "global_step": 2, "consumed_train_samples": 16, "ddp_size": 2, "tp_size": 1,
            "sp_size": 1, "pp_size": 1})


def make_corpus():
    folder = HERE.parents[2] / "convert/infinitrain/testdata"
    write_state_dict(folder / "small.ckpt", {
        "transformer.wte.weight": numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
        "transformer.ln_f.weight": numpy.ones(3, dtype=numpy.float32),
        "adam.t": numpy.array(5, dtype=numpy.int64),
        "empty": numpy.zeros((0, 4), dtype=numpy.float32)})
    write_trainer_state(folder / "trainer_state.json", {
        "n_layer": 2, "vocab_size": 61, "global_step": 3, "last_lr": 0.0001, "tp_size": 1},
        missing_comma="vocab_size")


if __name__ == "__main__":
    make_llama3()
    make_gpt2()
    make_corpus()
