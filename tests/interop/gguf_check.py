"""GGUF files that `ckpt convert` has written, read by gguf and run by llama.cpp.

gguf_check.py CKPT TRAIN PREPARE_DATA ENCODE_STREAM MAKE_TESTDATA FIXTURES: MAKE_TESTDATA has
written files of its own with gguf; FIXTURES has the folders that transformers has written.
"""

import importlib.util
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import urllib.request

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from safetensors.numpy import load_file

PROMPTS = ("The ", "sub new {", "\n=head1 ", "  print \"it's 1234")
TOKENS = 40
CONTEXT = 64


def run(*command):
    done = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def module(path):
    spec = importlib.util.spec_from_file_location("make_testdata", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def values(tensor):
    """The elements in fp32, in their shape."""
    if tensor.tensor_type == GGMLQuantizationType.BF16:
        bits = tensor.data.view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(tensor.shape[::-1])
    return tensor.data.astype(np.float32)


def rounded(weight, dtype):
    if dtype == "bf16":
        bits = weight.view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return bits.astype(np.uint32).view(np.float32)
    return weight.astype({"f16": np.float16, "f32": np.float32}[dtype]).astype(np.float32)


def check_read(ckpt, fixture, theirs, make, dtype, folder):
    """Every tensor and every key, against those that gguf has written of the same weights."""
    written = folder / f"{fixture.name}.{dtype}.gguf"
    run(ckpt, "convert", theirs, written, "--to=gguf", f"--dtype={dtype}")
    reader, expected = GGUFReader(written), GGUFReader(theirs)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    originals = {tensor.name: tensor for tensor in expected.tensors}
    assert set(tensors) == set(originals), set(tensors) ^ set(originals)
    for name, tensor in tensors.items():
        exact = name == "position_embd.weight" or len(tensor.shape) == 1
        assert list(tensor.shape) == list(originals[name].shape), name
        assert tensor.tensor_type.name == ("F32" if exact else dtype.upper()), name
        wanted = rounded(values(originals[name]), "f32" if exact else dtype)
        assert np.array_equal(values(tensor), wanted), name
    for key, field in expected.fields.items():
        if key.startswith(("GGUF.", "tokenizer.")) or key in ("general.name", "general.file_type"):
            continue
        assert reader.fields[key].types == field.types, key
        assert reader.fields[key].contents() == field.contents(), key
    weights = {}
    for file in fixture.glob("*.safetensors"):
        weights |= {make.translate(name): weight for name, weight in load_file(file).items()}
    untouched = [name for name in weights if name.endswith(("norm.weight", "token_embd.weight"))]
    for name in untouched:
        kind = "f32" if weights[name].ndim == 1 else dtype
        assert np.array_equal(values(tensors[name]), rounded(weights[name], kind)), name
    print(f"{fixture.name} {dtype}: {len(tensors)} tensors and all keys equal")


class Server:
    """llama.cpp with a model, in this process."""

    def __init__(self, path):
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_gpu_layers = str(path), CONTEXT, 0
        params.warmup = params.fit_params = False
        params.verbosity = 0
        self.server = xllamacpp.Server(params)

    def post(self, path, **fields):
        body = json.dumps(fields).encode()
        request = urllib.request.Request(
            self.server.listening_address + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)


def encode(encode_stream, tokenizer, texts):
    stream = b"".join(
        struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    out = subprocess.run([encode_stream, tokenizer], input=stream, check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    for _ in texts:
        (count,) = struct.unpack_from("<I", out)
        yield list(struct.unpack_from(f"<{count}i", out, 4))
        out = out[4 + 4 * count:]


def check_ids(tools, server, tokenizer, name):
    """Text gets the same ids, whose letters and numbers are those of older Unicode there."""
    texts = json.loads(pathlib.Path("tokenizer/testdata/texts.json").read_text())
    differ = []
    for text, ours in zip(texts, encode(tools["encode_stream"], tokenizer, texts)):
        theirs = server.post("/tokenize", content=text, add_special=False, parse_special=False)
        if theirs["tokens"] != ours:
            differ.append(text)
    print(f"{name}: {len(texts) - len(differ)} of {len(texts)} texts have the same ids;", differ)
    assert len(differ) <= len(texts) // 20, name


def check_runs(tools, size, tokenizer, name, folder):
    """llama.cpp continues texts as the trainer does, which begins with the end of another text."""
    data, run_dir = folder / f"{name}.data", folder / f"{size}.{name}"
    if not data.exists():
        run(tools["prepare_data"], f"--output_dir={data}", f"--tokenizer={tokenizer}",
            *(["--vocab_size=512"] if name == "sentencepiece" else []))
    description = json.loads((data / "dataset.json").read_text())
    common = [f"--size={size}", f"--vocab-size={description['vocab_size']}",
              f"--seq-length={CONTEXT}", f"--tokenizer-model={data}",
              f"--train-data-path={data}/train_*.bin"]
    run(tools["train"], *common, "--train-iters=150", "--micro-batch-size=8",
        "--global-batch-size=8", "--lr=3e-3", f"--save={run_dir}", "--save-interval=150")
    written = folder / f"{size}.{name}.gguf"
    run(tools["ckpt"], "convert", run_dir, written, "--to=gguf", f"--tokenizer={data}")
    server = Server(written)
    check_ids(tools, server, data, name)
    for prompt in PROMPTS:
        ids = server.post("/tokenize", content=prompt, add_special=False)["tokens"]
        theirs = server.post(
            "/completion", prompt=[description["end_of_text"], *ids], n_predict=TOKENS,
            temperature=0, cache_prompt=False)["content"]
        ours = run(tools["train"], *common, f"--load={run_dir}", "--train-iters=0",
                   f"--prompt={prompt}", f"--num-tokens-to-generate={TOKENS}", "--temperature=0")
        assert prompt + theirs in ours, (theirs, ours)
    print(f"{size} {name}: {len(PROMPTS)} texts continue in the same way")


def main():
    *paths, make_path, fixtures = map(pathlib.Path, sys.argv[1:])
    tools = {path.name: path for path in paths}
    make = module(make_path)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for name in ("gpt2", "llama3_tied", "llama3_untied"):
            theirs = make_path.parent / f"testdata/{name}/model.gguf"
            for dtype in ("f32", "f16", "bf16"):
                check_read(tools["ckpt"], fixtures / f"{name}.hf", theirs, make, dtype, folder)
        if importlib.util.find_spec("xllamacpp") is None:
            print("no xllamacpp: nothing is run in llama.cpp")
            return
        for size, tokenizer in (
            ("gpt2-tiny", "byte"),
            ("llama3-tiny", "byte"),
            ("gpt2-tiny", "sentencepiece"),
            ("llama3-tiny", "sentencepiece"),
            ("gpt2-tiny", "tokenizer/testdata/gpt2"),
            ("llama3-tiny", "tokenizer/testdata/llama3"),
        ):
            check_runs(tools, size, tokenizer, pathlib.Path(tokenizer).name, folder)


if __name__ == "__main__":
    main()
