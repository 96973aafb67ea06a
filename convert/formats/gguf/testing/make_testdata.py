"""Writes testdata/NAME/model.gguf, a model of tests/interop/pytorch/NAME.hf, with gguf 0.19.0.

    python make_testdata.py

Tensors, metadata and dtypes are those of llama.cpp's converter. The fixtures' rotary scaling has
settings that Llama 3 does not have and that a GGUF file cannot state; here it has Llama 3's, and a
base with which they are seen in the two frequencies of a head.
"""

import json
import math
import pathlib

import gguf
import numpy as np
from safetensors.numpy import load_file

ROPE_THETA = 1e9
FORMAT = pathlib.Path(__file__).resolve().parents[1]
FIXTURES = FORMAT.parents[2] / "tests/interop/pytorch"

NAMES = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def translate(name):
    """The name of a tensor in GGUF files."""
    base, kind = name.rsplit(".", 1)
    for prefix in ("transformer.h.", "model.layers."):
        if base.startswith(prefix):
            layer, base = base.removeprefix(prefix).split(".", 1)
            return f"blk.{layer}.{NAMES[base]}.{kind}"
    return f"{NAMES[base]}.{kind}"


def pairs(weight, heads):
    """Rows of each head as llama.cpp's rotary embedding has them."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def rope_factors(base, size, factor=8.0, low=1.0, high=4.0, original=8192):
    frequencies = 1.0 / base ** (np.arange(0, size, 2, dtype=np.float32) / size)
    factors = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        smooth = (original / wavelength - low) / (high - low)
        if wavelength < original / high:
            factors.append(1)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def add_config(writer, config):
    if config["model_type"] == "gpt2":
        writer.add_block_count(config["n_layer"])
        writer.add_context_length(config["n_positions"])
        writer.add_embedding_length(config["n_embd"])
        writer.add_feed_forward_length(4 * config["n_embd"])
        writer.add_head_count(config["n_head"])
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(config["head_dim"])


def add_tokenizer(writer, tokens):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"token{i}" for i in range(tokens)])
    writer.add_token_types([gguf.TokenType.NORMAL] * tokens)
    writer.add_token_merges(["a b", "c d"])
    writer.add_eos_token_id(tokens - 1)


def write(name):
    folder = FIXTURES / f"{name}.hf"
    config = json.loads((folder / "config.json").read_text())
    target = FORMAT / "testdata" / name
    target.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(target / "model.gguf", config["model_type"])
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    add_config(writer, config)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_tokenizer(writer, config["vocab_size"])
    if config["model_type"] == "llama":
        writer.add_tensor("rope_freqs.weight", rope_factors(ROPE_THETA, config["head_dim"]))
    for file in sorted(folder.glob("*.safetensors")):
        for tensor, weight in load_file(file).items():
            if tensor.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
                weight = np.ascontiguousarray(weight.T)
            if tensor.endswith("q_proj.weight"):
                weight = pairs(weight, config["num_attention_heads"])
            if tensor.endswith("k_proj.weight"):
                weight = pairs(weight, config["num_key_value_heads"])
            writer.add_tensor(translate(tensor), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    for fixture in ("gpt2", "llama3_tied", "llama3_untied"):
        write(fixture)
