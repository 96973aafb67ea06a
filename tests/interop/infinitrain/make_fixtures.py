#!/usr/bin/env python3
"""Writes the imitated checkpoints of InfiniTrain in this folder.

gpt2_adam and gpt2_sgd are real: the program wrote them (BUILD.bazel says how).

Needs numpy and safetensors:
  python make_fixtures.py

Also the files that //convert/formats/infinitrain:infinitrain_fuzz begins with.

The program needs several GPUs for the layouts of ranks, and its later releases for moments by
name. So this script writes such files from their description
(//convert/formats/infinitrain:state_file): the values are those of the state dicts of torch in
//tests/interop:state_dicts, put into the names and layouts of InfiniTrain's modules. The tensors
of a file are in no particular order, as those of a hash table. Folders iter_NNNNNNN are those of a
later release, in which metadata.json tells where each rank's part of a tensor belongs.
"""

import json
import pathlib
import random
import struct

import numpy
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).parent
STATES = HERE.parent / "state_dict"
DTYPES = {"int64": 8, "float32": 11}
DTYPE_NAMES = {"int64": "int64", "float32": "fp32"}  # in metadata.json
HEADS, GROUPS, HEAD_SIZE = 4, 2, 4  # of the Llama-3


def write_state_dict(path, tensors):
    """Returns the offsets of the tensors' elements."""
    offsets = {}
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
            file.write(struct.pack("<Q", array.nbytes))
            offsets[name] = file.tell()
            file.write(array.tobytes())
    return offsets


def write_trainer_state(path, values, missing_comma=None):
    lines = [f'  "{key}": {value}' for key, value in values.items()]
    commas = [key != missing_comma for key in list(values)[:-1]] + [False]
    path.write_text("{\n" + "".join(
        line + ("," if comma else "") + "\n" for line, comma in zip(lines, commas)) + "}\n")


def write_metadata(path, entries):
    """As Checkpoint::SaveMetadataFile() writes it."""
    tensors = ",\n".join("    {\n" + ",\n".join(
        f"      {json.dumps(key)}: {json.dumps(value)}" for key, value in entry.items()) + "\n    }"
        for entry in entries)
    path.write_text('{\n  "version": 3,\n  "format": "infinitrain_sharded",\n  "tensors": [\n'
                    + tensors + "\n  ]\n}\n")


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


def moments(first, second, updates):
    tensors = {"adam.t": numpy.array(updates, dtype=numpy.int64)}
    for name in first:
        tensors[f"adam.m.{name}"] = first[name]
        tensors[f"adam.v.{name}"] = second[name]
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


TP, PP, DP = 2, 2, 2
PADDED_ROWS = 64


def cut_dim(name):
    """The dim that tensor-parallel ranks cut; None: each has the whole."""
    if name in ("transformer.wte.weight", "lm_head.weight"):
        return 0
    module = name.split(".", 3)[-1]
    if module.startswith(("attn.c_attn.", "mlp.c_fc.", "mlp.c_fc2.")):
        return 0
    return 1 if module in ("attn.c_proj.weight", "mlp.c_proj.weight") else None


def segments_of(name, rows, tp, blocks):
    """Of the dim that is cut: (in the tensor, in the part, length). A part of fused queries, keys
    and values is one of each."""
    if ".attn.c_attn." not in name:
        return []
    found, start, local = [], 0, 0
    for block in blocks:
        size = rows * block // sum(blocks)
        found.append((start + size // TP * tp, local, size // TP))
        start, local = start + size, local + size // TP
    return found


def part_of(array, name, tp, blocks):
    """A rank's part of a tensor, and its description."""
    dim = cut_dim(name)
    if name in ("transformer.wte.weight", "lm_head.weight"):
        padding = numpy.zeros((PADDED_ROWS - array.shape[0], array.shape[1]), array.dtype)
        array = numpy.concatenate([array, padding])
    offset, fragments = [0] * array.ndim, [1] * array.ndim
    segments, part = [], array
    if dim is not None:
        rows = array.shape[dim]
        segments = segments_of(name, rows, tp, blocks)
        places = [(begin, length) for begin, _, length in segments] or [
            (rows // TP * tp, rows // TP)]
        part = numpy.concatenate(
            [array.take(range(begin, begin + length), dim) for begin, length in places], dim)
        offset[dim], fragments[dim] = rows // TP * tp, TP
    return part, {
        "global_shape": list(array.shape), "local_shape": list(part.shape), "global_offset": offset,
        "axis_fragmentations": fragments, "segment_global_offsets": [s[0] for s in segments],
        "segment_local_offsets": [s[1] for s in segments],
        "segment_lengths": [s[2] for s in segments]}


def stage_of(name, layers):
    """The pipeline stages that have a parameter."""
    if name.startswith("transformer.h."):
        return int(name.split(".")[2]) * PP // layers
    return 0 if name.startswith(("transformer.wte.", "transformer.wpe.")) else PP - 1


def make_sharded(folder, kinds, blocks, state):
    """Of dp2_tp2_pp2; ranks of the first data-parallel index write."""
    layers, entries = state["n_layer"], []
    for pp in range(PP):
        for tp in range(TP):
            rank = (pp * DP) * TP + tp
            files = {"model.ckpt": {}, "optimizer.ckpt": {"adam.t": numpy.array(
                state["global_step"], dtype=numpy.int64)}}
            described = {"adam.t": {
                "global_shape": [], "local_shape": [], "global_offset": [],
                "axis_fragmentations": [], "segment_global_offsets": [],
                "segment_local_offsets": [], "segment_lengths": []}}
            for prefix, tensors in zip(("", "adam.m.", "adam.v."), kinds):
                file = files["optimizer.ckpt" if prefix else "model.ckpt"]
                for name, array in tensors.items():
                    if stage_of(name, layers) != pp:
                        continue
                    file[prefix + name], described[prefix + name] = part_of(
                        array, name, tp, blocks)
            for file, tensors in files.items():
                offsets = write_state_dict(folder / f"rank_{rank:06}" / file, tensors)
                for key in sorted(tensors):
                    array = tensors[key]
                    entries.append({
                        "key": key, "dtype": DTYPE_NAMES[array.dtype.name], **described[key],
                        "file": f"rank_{rank:06}/{file}", "offset": offsets[key],
                        "byte_size": array.nbytes, "pp_rank": pp, "stored_on_ranks": [rank]})
    write_metadata(folder / "metadata.json", entries)
    write_trainer_state(folder / "trainer_state.json", {
        **state, "original_vocab_size": 61, "padded_vocab_size": PADDED_ROWS, "ddp_size": DP,
        "tp_size": TP, "sp_size": 1, "pp_size": PP, "vpp_size": 1})


def make_all_sharded():
    source = load_file(STATES / "titan.logical.safetensors")
    make_sharded(HERE / "llama3_dp2_tp2_pp2/iter_0000003",
                 [llama3(state(source, kind)) for kind in ("", "exp_avg", "exp_avg_sq")],
                 (HEADS, GROUPS, GROUPS),
                 {"n_layer": 2, "n_head": HEADS, "n_kv_head": GROUPS, "n_embd": 16,
                  "global_step": 3, "consumed_train_samples": 24})
    source = load_file(STATES / "numbered_dcp.logical.safetensors")
    kinds = [gpt2(state(source, kind)) for kind in ("", "exp_avg", "exp_avg_sq")]
    kinds[0]["lm_head.weight"] = kinds[0]["transformer.wte.weight"]
    make_sharded(HERE / "gpt2_dp2_tp2_pp2/iter_0000002", kinds, (1, 1, 1),
                 {"n_layer": 2, "n_head": 2, "n_kv_head": 2, "n_embd": 16, "global_step": 2,
                  "consumed_train_samples": 16})


def make_corpus():
    folder = HERE.parents[2] / "convert/formats/infinitrain/testdata"
    write_state_dict(folder / "small.ckpt", {
        "transformer.wte.weight": numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
        "transformer.ln_f.weight": numpy.ones(3, dtype=numpy.float32),
        "adam.t": numpy.array(5, dtype=numpy.int64),
        "empty": numpy.zeros((0, 4), dtype=numpy.float32)})
    write_trainer_state(folder / "trainer_state.json", {
        "n_layer": 2, "vocab_size": 61, "global_step": 3, "last_lr": 0.0001, "tp_size": 1},
        missing_comma="vocab_size")
    write_metadata(folder / "metadata.json", [{
        "key": "w", "dtype": "fp32", "global_shape": [6, 2], "local_shape": [2, 2],
        "global_offset": [2, 0], "axis_fragmentations": [3, 1], "segment_global_offsets": [1, 5],
        "segment_local_offsets": [0, 1], "segment_lengths": [1, 1],
        "file": "rank_000001/model.ckpt", "offset": 43, "byte_size": 16, "pp_rank": 0,
        "stored_on_ranks": [1]}])


if __name__ == "__main__":
    make_llama3()
    make_gpt2()
    make_all_sharded()
    make_corpus()
