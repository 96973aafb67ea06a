"""Makes a small GPT-2 and a tokenizer for it, in Hugging Face's format."""

import json
import math
import os
import pathlib
import struct

import numpy as np


def write_gpt2(folder, vocab_size, width=4, context=8):
    """A GPT-2 of one layer in Hugging Face's format."""
    layer = {"ln_1": (width,), "attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width),
             "ln_2": (width,), "mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width)}
    shapes = {"wte.weight": (vocab_size, width), "wpe.weight": (context, width),
              "ln_f.weight": (width,), "ln_f.bias": (width,)}
    for name, shape in layer.items():
        shapes[f"h.0.{name}.weight"], shapes[f"h.0.{name}.bias"] = shape, shape[-1:]
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    os.mkdir(folder)
    pathlib.Path(folder, "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + np.arange(end // 4, dtype="<f4").tobytes())
    pathlib.Path(folder, "config.json").write_text(json.dumps(
        {"model_type": "gpt2", "vocab_size": vocab_size, "n_positions": context, "n_embd": width,
         "n_layer": 1, "n_head": 1}))
    return folder


def write_tokenizer(folder):
    """GPT-2's files for the bytes, the word "he" and the end of a text."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(code) for code in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    os.mkdir(folder)
    pathlib.Path(folder, "vocab.json").write_text(json.dumps(
        {word: i for i, word in enumerate(letters + ["he", "<|endoftext|>"])}))
    pathlib.Path(folder, "merges.txt").write_text("#version: 0.2\nh e\n")
    return folder
