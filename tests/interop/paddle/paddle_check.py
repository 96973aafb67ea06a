"""PaddlePaddle loads what `ckpt convert --to=paddle` writes, and ckpt reads what it saves of it.

    paddle_check.py CKPT TESTDATA

One process of Paddle, and then two with every matrix cut between them, load the folder by
paddle.distributed.load_state_dict(), compare every element with the state that make_fixtures.py has
saved, and save what they have loaded; `ckpt diff` compares that with the source by digests. Where
PaddleNLP is installed, its models of auto parallel and their optimizer have exactly these keys, and
take the next two steps from the loaded state with the losses of the run that was saved.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

BETAS = {"beta1_pow_acc_0": 0.9, "beta2_pow_acc_0": 0.95}
STEP = 3


def accept_old_paddle():
    """Before 3.2 the classes of 0.metadata were in another module."""
    try:
        import paddle.distributed.flex_checkpoint.dcp.metadata  # noqa: F401
    except ImportError:
        import paddle.distributed.checkpoint.metadata as metadata
        sys.modules["paddle.distributed.flex_checkpoint.dcp.metadata"] = metadata


def bf16_bits(array):
    bits = array.view("uint32")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("uint16")


class Expected:
    """Arrays by Paddle's structured names, as make_fixtures.py has trained them."""

    def __init__(self, folder):
        import paddle
        self.weights = paddle.load(os.path.join(folder, "model_state.pdparams"))
        self.states = paddle.load(os.path.join(folder, "optimizer.pdopt"))

    def value(self, structured, state):
        weight = self.weights[structured]
        return (self.states[f"{weight.name}_{state}"] if state else weight).numpy()


def power(state):
    import numpy as np
    value = np.float32(BETAS[state])
    for _ in range(STEP):
        value *= np.float32(BETAS[state])
    return np.array([value], "float32")


def expected_of(key, names, expected, dtype):
    """The array of a key: `names` maps names of tensors to structured names."""
    if key.startswith("model."):
        array = expected.value(key[len("model."):], "")
        return bf16_bits(array) if dtype == "bfloat16" else array
    rest = key[len("optimizer."):]
    if rest.startswith("master_weights."):
        return expected.value(names[rest[len("master_weights."):]], "")
    for state in BETAS:
        if rest.endswith("_" + state):
            return power(state)
    tensor, number, _ = rest.rsplit("_", 2)
    return expected.value(names[tensor.removesuffix("_fp32_master_0")], number + "_0")


def rank(theirs, back, folder):
    """One process: loads, compares, saves."""
    accept_old_paddle()
    import numpy as np
    import paddle
    import paddle.distributed as dist

    if not paddle.is_compiled_with_cuda():  # release 3.0 takes every tensor to a GPU
        paddle.Tensor.cuda = lambda tensor, *_: tensor
    dist.init_parallel_env()
    world = dist.get_world_size()
    mesh = dist.ProcessMesh(list(range(world)), dim_names=["x"])
    metadata = paddle.load(os.path.join(theirs, "0.metadata"))
    state, cut = {}, 0
    for key, (shard,) in metadata.state_dict_metadata.items():
        dims = [d for d, extent in enumerate(shard.local_shape)
                if extent % world == 0 and len(shard.local_shape) > 1]
        is_cut = dims and shard.dtype != "bfloat16"  # which CPUs do not cut
        place = dist.Shard(dims[-1]) if is_cut else dist.Replicate()
        cut += bool(is_cut)
        zeros = paddle.zeros(shard.local_shape, dtype=shard.dtype)
        state[key] = dist.shard_tensor(zeros, mesh, [place]) if world > 1 else zeros
    dist.load_state_dict(state, theirs)
    names = {}
    for file in sorted(os.listdir(theirs)):
        if file.endswith(".distcp"):
            for key, tensor in paddle.load(os.path.join(theirs, file)).items():
                state[key].name = tensor.name
                if key.startswith("model."):
                    names.setdefault(tensor.name, key[len("model."):])
    expected = Expected(folder)
    for key, tensor in state.items():
        dtype = str(tensor.dtype).split(".")[-1]
        whole = expected_of(key, names, expected, dtype)
        local = tensor._local_value() if world > 1 else tensor
        mine = local.numpy()
        for d in range(mine.ndim):
            if mine.shape[d] != whole.shape[d]:
                whole = np.split(whole, world, axis=d)[dist.get_rank()]
        assert mine.shape == whole.shape and mine.dtype == whole.dtype, key
        assert mine.tobytes() == np.ascontiguousarray(whole).tobytes(), key
    assert len(names) * 5 <= len(state) and cut
    dist.save_state_dict(state, back)


def check_run(theirs, losses):
    """PaddleNLP's model and its optimizer have the keys that were written, and go on from them."""
    accept_old_paddle()
    import scipy  # noqa: F401  (brings its own zlib before paddle does)
    import paddle
    import paddle.distributed as dist
    from paddle.distributed import fleet
    from paddlenlp.transformers import GPTConfig, LlamaConfig
    from paddlenlp.transformers.gpt.modeling_auto import GPTForCausalLMAuto
    from paddlenlp.transformers.llama.modeling_auto import LlamaForCausalLM3DAuto

    dist.init_parallel_env()
    fleet.auto.set_mesh(dist.ProcessMesh([[[0, 1]]], dim_names=["dp", "pp", "mp"]))
    with open(os.path.join(theirs, "config.json")) as f:
        config = json.load(f)
    is_gpt = config["model_type"] == "gpt"
    model = (GPTForCausalLMAuto(GPTConfig.from_dict(config)) if is_gpt
             else LlamaForCausalLM3DAuto(LlamaConfig.from_dict(config)))
    decayed = {p.name for n, p in model.named_parameters() if "norm" not in n and "bias" not in n}
    optimizer = dist.shard_optimizer(paddle.optimizer.AdamW(
        1e-3, parameters=model.parameters(), beta1=0.9, beta2=0.95, weight_decay=0.01,
        apply_decay_param_fun=lambda name: name in decayed))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    keys = {f"{part}.{key}" for part in state for key in state[part]}
    written = set(paddle.load(os.path.join(theirs, "0.metadata")).state_dict_metadata)
    assert written == keys, written ^ keys
    if not paddle.is_compiled_with_cuda():
        paddle.Tensor.cuda = lambda tensor, *_: tensor
    dist.load_state_dict(state, theirs)
    # On CPUs, release 3.0 loads into copies.
    model.set_state_dict(state["model"])
    optimizer.set_state_dict(state["optimizer"])
    with open(losses) as f:
        expected = json.load(f)
    tokens = expected["tokens"]
    for loss in expected["losses"]:
        logits = model(paddle.to_tensor([tokens]))
        logits = logits[0] if isinstance(logits, tuple) else logits
        found = paddle.nn.functional.cross_entropy(
            logits.reshape([-1, config["vocab_size"]]),
            paddle.to_tensor(tokens[1:] + tokens[:1]))
        found.backward()
        optimizer.step()
        optimizer.clear_grad()
        assert abs(float(found) - loss) < 2e-6, (float(found), loss)


def run(command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        sys.exit(f"{command}\n{result.stdout}")
    return result.stdout


def launched(processes, scratch):
    """Python as Paddle's launcher starts it, this many times."""
    return [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", str(processes),
            "--backend", "gloo", "--log_dir", scratch / "log"]


def check(ckpt, testdata, name, single, scratch):
    ours, theirs = scratch / "ours", scratch / "theirs"
    run([ckpt, "convert", testdata / name, ours, "--to=tessera", "--topology=tp2_pp2"])
    # Files of a few tensors each, so that each process reads some.
    run([ckpt, "convert", ours, theirs, "--to=paddle", "--max-file-size=4000"])
    for processes in (1, 2):
        back = scratch / f"back{processes}"
        python = launched(processes, scratch) if processes > 1 else [sys.executable]
        back.mkdir()
        for file in ("config.json", "trainer_state.json"):
            shutil.copy(theirs / file, back)
        run([*python, __file__, "rank", theirs, back / "dist_ckpt", testdata / single])
        run([ckpt, "diff", ours, back])
        print(f"{name}: {processes} processes of Paddle have what was written")
    if subprocess.run([sys.executable, "-c", "import scipy, paddlenlp"],
                      capture_output=True).returncode == 0 and name == single:
        losses = testdata / ("gpt_losses.json" if single == "gpt_dp" else "losses.json")
        run([*launched(2, scratch), __file__, "run", theirs, losses])
        print(f"{name}: PaddleNLP's model and optimizer have these keys, and its next losses")


def main():
    if sys.argv[1] == "rank":
        return rank(*sys.argv[2:])
    if sys.argv[1] == "run":
        return check_run(*sys.argv[2:])
    ckpt, testdata = (pathlib.Path(path).absolute() for path in sys.argv[1:])
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name, single in (("dp", "dp"), ("sharding2_v2", "dp"), ("gpt_dp", "gpt_dp")):
        with tempfile.TemporaryDirectory() as scratch:
            check(ckpt, testdata, name, single, pathlib.Path(scratch))


if __name__ == "__main__":
    main()
