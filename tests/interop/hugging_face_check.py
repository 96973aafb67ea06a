"""Models that `ckpt convert` has written, in transformers: the same logits as the originals.

hugging_face_check.py CKPT FIXTURES: FIXTURES has the folders that transformers has written.
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM


def logits(folder, ids):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def main():
    ckpt, fixtures = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.manual_seed(1)
    ids = torch.randint(61, (2, 11))
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("gpt2", "llama3_tied", "llama3_untied"):
            original = fixtures / f"{name}.hf"
            expected = logits(original, ids)
            sharded, written = f"{scratch}/{name}.sharded", f"{scratch}/{name}.hf"
            for command in (
                (original, sharded, "--to=tessera", "--topology=tp2_pp2"),
                (sharded, written, "--to=hf", "--max-file-size=8K"),
                (sharded, f"{written}.bf16", "--to=hf", "--dtype=bf16"),
            ):
                subprocess.run([ckpt, "convert", *map(str, command)], check=True)
            assert torch.equal(logits(written, ids), expected), name
            difference = (logits(f"{written}.bf16", ids) - expected).abs().max().item()
            scale = expected.abs().max().item()
            assert difference < 0.05 * scale, (name, difference, scale)
            print(name, "equal; bf16 differs by", difference, "of", scale)


if __name__ == "__main__":
    main()
