"""Writes the checkpoints in testdata that Paddle's own processes write.

Needs paddlepaddle 3.0.0 and paddlenlp 3.0.0b4 (CPU), with numpy 1, and testdata/dp and
testdata/gpt_dp of make_fixtures.py, whose state all of them hold:
    python -m paddle.distributed.launch --nproc_per_node N --backend gloo \\
        make_distributed_fixtures.py testdata KIND
where KIND is `stage2` (N is 3 or 4), `auto_llama` (N is 4 or 1) or `auto_gpt` (N is 2); and
`sharded_llama` (N is 3), with paddlepaddle 3.3.1 alone.

stage2: Paddle's GroupShardedOptimizerStage2 decides which process has the states of which
parameter, makes them in a step, and names them; the values are then those of testdata/dp, and each
process saves as PaddleNLP's trainer does. Paddle runs this on GPUs alone: three checks of the
device are passed over below, nothing else is changed.

auto_*: PaddleNLP's models of auto parallel, whose tensors are placed on a mesh of two by N / 2
processes, and the states that Paddle's sharded optimizer makes for them. The values are those of
testdata, and paddle.distributed.save_state_dict() saves.

sharded_llama: the same call of release 3.3, whose metadata are other classes, of bf16 weights with
master weights, of which CPUs can cut the latter and the moments, among three processes. The keys
are those of AdamW.sharded_state_dict(), which this script writes itself.
"""

import json
import os
import sys

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.base import core
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2, group_sharded_stage2, group_sharded_storage)

try:
    import scipy  # noqa: F401  (brings its own zlib before paddlenlp does)
    from paddlenlp.transformers import GPTConfig, LlamaConfig, LlamaForCausalLM
    from paddlenlp.transformers.gpt.modeling_auto import GPTForCausalLMAuto
    from paddlenlp.transformers.llama.modeling_auto import LlamaForCausalLM3DAuto
except ImportError:
    LlamaConfig = None

STEP = 3
out, kind = sys.argv[1:]


class Saved:
    """What `make_fixtures.py` has saved: arrays by structured name, and the powers of beta."""

    def __init__(self, name):
        self.path = os.path.join(out, name)
        self.weights = paddle.load(os.path.join(self.path, "model_state.pdparams"))
        self.states = paddle.load(os.path.join(self.path, "optimizer.pdopt"))
        with open(os.path.join(self.path, "config.json")) as f:
            self.config = json.load(f)

    def value(self, structured, state):
        """The weight (state is empty), or "moment1_0" and the like."""
        weight = self.weights[structured]
        return (self.states[f"{weight.name}_{state}"] if state else weight).numpy()


def split_key(key, structured):
    """The structured name and the state of a key of the optimizer."""
    for state in ("moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0"):
        if key.endswith("_" + state):
            return structured[key[:-len(state) - 1]], state
    raise KeyError(key)


def folder(name, config):
    path = os.path.join(out, name)
    os.makedirs(path, exist_ok=True)
    if dist.get_rank() == 0:
        if isinstance(config, dict):
            with open(os.path.join(path, "config.json"), "w") as f:
                json.dump(config, f, indent=2)
        else:
            config.save_pretrained(path)
        with open(os.path.join(path, "trainer_state.json"), "w") as f:
            json.dump({"global_step": STEP, "epoch": 0.5}, f)
    return path


def names_of(model):
    """Structured names by the names of tensors. Of tied parameters, the first one's."""
    names = {}
    for structured, p in model.state_dict().items():
        names.setdefault(p.name, structured)
    return names


# ------------------------------------------------------------------------------------- stage 2

def group_sharded(model, optimizer):
    """group_sharded_parallel(level="os_g") on CPUs."""
    add = group_sharded_storage.ParamStorage.add_rank_params
    group_sharded_storage.ParamStorage.add_rank_params = (
        lambda storage, params, align, convert_gpu=True: add(storage, params, align, False))
    compiled, device = core.is_compiled_with_cuda, paddle.get_device
    core.is_compiled_with_cuda, paddle.get_device = lambda: True, lambda: "cpu:0"
    sharded = group_sharded_optimizer_stage2.GroupShardedOptimizerStage2(
        params=optimizer._parameter_list, optim=optimizer, device="cpu")
    core.is_compiled_with_cuda, paddle.get_device = compiled, device
    return group_sharded_stage2.GroupShardedStage2(model, sharded, device="cpu"), sharded


def stage2():
    saved = Saved("dp")
    config = LlamaConfig.from_dict(saved.config)
    model = LlamaForCausalLM(config)
    for structured, p in model.state_dict().items():
        p.set_value(saved.value(structured, ""))
    names = names_of(model)
    optimizer = paddle.optimizer.AdamW(
        paddle.optimizer.lr.LambdaDecay(1e-3, lambda step: 0.0), parameters=model.parameters(),
        beta1=0.9, beta2=0.95, weight_decay=0.01)
    wrapped, sharded = group_sharded(model, optimizer)
    logits = wrapped(paddle.to_tensor([[1, 2, 3]]))
    (logits[0] if isinstance(logits, tuple) else logits).mean().backward()
    sharded.step()  # with a rate of 0
    optimizer._learning_rate.set_state_dict(saved.states["LR_Scheduler"])
    contents = sharded.state_dict()
    for key, tensor in contents.items():
        if key != "LR_Scheduler":
            tensor.set_value(saved.value(*split_key(key, names)))
    world = dist.get_world_size()
    path = folder(f"sharding{world}_stage2", config)
    if dist.get_rank() == 0:
        for structured, p in model.state_dict().items():
            assert (p.numpy() == saved.value(structured, "")).all()
        paddle.save(model.state_dict(), os.path.join(path, "model_state.pdparams"))
    paddle.save(contents, os.path.join(path, f"optimizer.shard{dist.get_rank():02d}.pdopt"))


# ------------------------------------------------------------------------------- auto parallel

def auto_parallel(name, saved, config, model_class):
    world = dist.get_world_size()
    ranks = np.arange(world).reshape(max(world // 2, 1), 1, min(world, 2))
    mesh = dist.ProcessMesh(ranks, dim_names=["dp", "pp", "mp"])
    fleet.auto.set_mesh(mesh)
    model = model_class(config)
    names = names_of(model)
    optimizer = dist.shard_optimizer(
        paddle.optimizer.AdamW(1e-3, parameters=model.parameters(), beta1=0.9, beta2=0.95))

    def filled(tensor, value):
        if not tensor.is_dist():
            result = paddle.to_tensor(value)
        else:
            result = dist.shard_tensor(value, tensor.process_mesh, tensor.placements)
        result.name = tensor.name
        return result

    state = {
        "model": {structured: filled(p, saved.value(structured, ""))
                  for structured, p in model.state_dict().items()},
        "optimizer": {key: filled(tensor, saved.value(*split_key(key, names)))
                      for key, tensor in optimizer.state_dict().items()}}
    path = folder(f"{name}_{world}", config)
    dist.save_state_dict(state, os.path.join(path, "dist_ckpt"))


def sharded_llama():
    saved = Saved("dp")
    world = dist.get_world_size()
    mesh = dist.ProcessMesh(list(range(world)), dim_names=["x"])

    def placed(array, dtype):
        tensor = paddle.to_tensor(array)
        if dtype == "bfloat16":  # rounded to nearest even, as by GPUs
            bits = array.view("uint32")
            tensor = paddle.to_tensor(
                ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("uint16"))
        # The last dim, in parts of which the last is smaller; CPUs do not cut bfloat16.
        is_cut = array.ndim > 1 and dtype != "bfloat16"
        place = dist.Shard(array.ndim - 1) if is_cut else dist.Replicate()
        return dist.shard_tensor(tensor, mesh, [place])

    state = {}
    for structured in saved.weights:
        state[structured] = placed(saved.value(structured, ""), "bfloat16")
        state[structured + ".w_0"] = placed(saved.value(structured, ""), "float32")
        for kind in ("moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0"):
            state[f"{structured}.{kind}"] = placed(saved.value(structured, kind), "float32")
    dist.save_state_dict(state, folder(f"sharded_llama_{world}", saved.config))


dist.init_parallel_env()
if kind == "stage2":
    stage2()
elif kind == "sharded_llama":
    sharded_llama()
elif kind == "auto_llama":
    saved = Saved("dp")
    auto_parallel(kind, saved, LlamaConfig.from_dict(saved.config), LlamaForCausalLM3DAuto)
else:
    saved = Saved("gpt_dp")
    auto_parallel(kind, saved, GPTConfig.from_dict(saved.config), GPTForCausalLMAuto)
