"""Writes the checkpoints of PaddleNLP in testdata, and the state that all of them hold.

Needs paddlepaddle 2.6.2 and paddlenlp 2.8.0 (CPU):
    python make_fixtures.py testdata
    python make_fixtures.py testdata 3
    python make_fixtures.py testdata 4

PaddleNLP trains a small Llama, and a small GPT, for five steps on the CPU. The state after three of
them is written as single-process training saves it, and, cut as its trainer cuts it, by
paddle.save() in every hybrid-parallel layout; the losses of steps 4 and 5 are those to be
reproduced. PaddleNLP's own GPT with a fused matrix of queries, keys and values, which is filled
here from a GPT without, must have the same logits. With a degree, the model is another one, which
as many tensor, pipeline or sharding ranks divide.

What is real here: the state, the folders of a single process (`dp`, `gpt_dp`, `degree3`, `degree4`)
and every pickle. What is imitated: which rank has what, and under which name, in all the others,
since ranks of PaddleNLP's hybrid parallelism need a GPU each. make_distributed_fixtures.py makes
what processes of Paddle write on CPUs.
"""

import aiohttp  # noqa: F401  (libraries that bring their own zlib before paddle does)
import datasets  # noqa: F401
import scipy  # noqa: F401

import json
import os
import sys

import numpy as np
import paddle
from paddle.distributed.fleet.utils.tensor_fusion_helper import align, alignment
from paddlenlp.transformers import (
    GPTConfig, GPTForCausalLM, LlamaConfig, LlamaForCausalLM)
from safetensors.numpy import save_file

DEGREE = int(sys.argv[2]) if len(sys.argv) > 2 else None
LAYERS, HIDDEN, FFN, HEADS, GROUPS, VOCAB, POSITIONS = {
    None: (4, 8, 16, 4, 2, 32, 16), 3: (6, 12, 12, 6, 6, 36, 16), 4: (4, 16, 16, 8, 4, 32, 16),
}[DEGREE]
HEAD = HIDDEN // HEADS
SAVED_STEP, LAST_STEP, SEQUENCE = 3, 5, 12
# Numbers of the token file that the test writes: its period is the sequence's length.
TOKENS = [(5 * i * i + 3 * i + 7) % VOCAB for i in range(SEQUENCE)]

EMBEDDINGS = "gpt.embeddings.word_embeddings.weight"

out = sys.argv[1]


# ------------------------------------------------------------------------------------ the run

def make_model():
    paddle.seed(11)
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN,
                         max_position_embeddings=POSITIONS, num_hidden_layers=LAYERS,
                         num_attention_heads=HEADS, num_key_value_heads=GROUPS, rms_norm_eps=1e-5)
    model = LlamaForCausalLM(config)
    rng = np.random.default_rng(5)
    for name, p in model.state_dict().items():
        scale = 0.1 if "norm" in name else 0.3
        p.set_value((rng.standard_normal(p.shape) * scale + ("norm" in name)).astype("float32"))
    return model


def make_gpt(fused):
    paddle.seed(11)
    config = GPTConfig(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN,
                       max_position_embeddings=POSITIONS, num_hidden_layers=LAYERS,
                       num_attention_heads=HEADS, hidden_dropout_prob=0.0,
                       attention_probs_dropout_prob=0.0, fuse_attention_qkv=fused)
    model = GPTForCausalLM(config)
    rng = np.random.default_rng(6)
    for name, p in model.gpt.state_dict().items():
        is_norm = "norm" in name and name.endswith("weight")
        scale = 0.1 if is_norm or name.endswith("bias") else 0.3
        p.set_value((rng.standard_normal(p.shape) * scale + is_norm).astype("float32"))
    return model


def train(model, name):
    scheduler = paddle.optimizer.lr.LambdaDecay(1e-3, lambda step: 1.0)
    decayed = {p.name for n, p in model.named_parameters() if "norm" not in n and "bias" not in n}
    optimizer = paddle.optimizer.AdamW(
        learning_rate=scheduler, parameters=model.parameters(), beta1=0.9, beta2=0.95,
        epsilon=1e-8, weight_decay=0.01, apply_decay_param_fun=lambda name: name in decayed)
    ids = paddle.to_tensor([TOKENS])
    targets = paddle.to_tensor([TOKENS[1:] + TOKENS[:1]])
    losses = []
    for step in range(LAST_STEP):
        if step == SAVED_STEP:
            save_single(name, model, optimizer, scheduler)
        logits = model(ids)
        logits = logits[0] if isinstance(logits, tuple) else logits
        loss = paddle.nn.functional.cross_entropy(
            logits.reshape([-1, VOCAB]), targets.reshape([-1]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        scheduler.step()
        losses.append(float(loss))
    return losses


def folder(name):
    path = os.path.join(out, name)
    os.makedirs(path, exist_ok=True)
    return path


class State:
    """The state by structured name: weight, moment1, moment2, and the powers of beta."""

    def __init__(self, config, tensors, states):
        self.config = config
        if isinstance(config, GPTConfig):
            del tensors["lm_head.weight"]  # the word embeddings
        self.names = list(tensors)
        self.weight, self.moment1, self.moment2 = {}, {}, {}
        for name, p in tensors.items():
            self.weight[name] = p.numpy().copy()
            self.moment1[name] = states[p.name + "_moment1_0"].numpy().copy()
            self.moment2[name] = states[p.name + "_moment2_0"].numpy().copy()
            self.powers = [states[p.name + f"_beta{i}_pow_acc_0"].numpy().copy() for i in (1, 2)]
        self.scheduler = states["LR_Scheduler"]


def save_single(name, model, optimizer, scheduler):
    path = folder(name)
    model.config.save_pretrained(path)
    paddle.save(model.state_dict(), os.path.join(path, "model_state.pdparams"))
    paddle.save(optimizer.state_dict(), os.path.join(path, "optimizer.pdopt"))
    paddle.save(scheduler.state_dict(), os.path.join(path, "scheduler.pdparams"))
    with open(os.path.join(path, "trainer_state.json"), "w") as f:
        json.dump({"global_step": SAVED_STEP, "epoch": 0.5}, f)


def read_single(name, config):
    """The state that save_single() has written."""
    path = os.path.join(out, name)
    return State(config.from_pretrained(path),
                 paddle.load(os.path.join(path, "model_state.pdparams")),
                 paddle.load(os.path.join(path, "optimizer.pdopt")))


# ------------------------------------------------------------------------ names and cuts of ranks

def tensor_parallel_dim(name):
    """_get_tensor_parallel_mappings of both models: columns, rows, or nothing."""
    if "norm" in name:
        return None
    if name.startswith("gpt."):
        if any(x in name for x in ("q_proj", "k_proj", "v_proj", "qkv_proj", "linear1")):
            return 0 if name.endswith("bias") else 1
        return None if name.endswith("bias") or "position_embeddings" in name else 0
    if "embed_tokens" in name or "o_proj" in name or "down_proj" in name:
        return 0
    return 1


def cut(name, array, tp, degree):
    dim = tensor_parallel_dim(name)
    if degree == 1 or dim is None:
        return array
    if "gate_up_fused" in name:
        gate, up = np.split(array, 2, axis=1)
        return np.concatenate([np.split(x, degree, axis=1)[tp] for x in (gate, up)], axis=1)
    return np.ascontiguousarray(np.split(array, degree, axis=dim)[tp])


def layer_number(name):
    """The index of a parameter's layer in the pipeline, and the name in that layer."""
    parts = name.split(".")
    if name.startswith("gpt."):
        if "embeddings" in name:
            return 0, ".".join(parts[2:])
        if "layers" in name:
            return int(parts[3]) + 1, ".".join(parts[4:])
        return (LAYERS + 2 if "lm_head" in name else LAYERS + 1), parts[-1]
    if name.startswith("llama.embed"):
        return 0, ".".join(parts[1:])
    if name.startswith("llama.layers"):
        return int(parts[2]) + 1, ".".join(parts[3:])
    if name.startswith("llama.norm"):
        return LAYERS + 1, ".".join(parts[1:])
    return LAYERS + 2, ".".join(parts[1:])


def pipeline_key(name, number, rest):
    """GPTForCausalLMPipe shares the embeddings between the first and the last stage."""
    if name.startswith("gpt.") and number in (0, LAYERS + 2):
        return f"shared_layers.gpt_shared_weight.{rest}"
    return f"{number}.{rest}"


def chunks_of(stages):
    """PipelineLayer's segments for "layer:LlamaDecoderLayer": [begin, end) of each."""
    each = LAYERS // stages
    bounds = [0] + [1 + each * i for i in range(1, stages)] + [LAYERS + 3]
    return list(zip(bounds, bounds[1:]))


def tensor_names(names, parallel):
    """Names as paddle generates them: a counter for each class of layers, on each rank."""
    counters, result = {}, {}
    for name in names:
        if name.startswith("gpt.") and name.endswith("bias"):
            result[name] = result[name[:-4] + "weight"].replace(".w_0", ".b_0")
            continue
        if name.startswith("gpt.") and "norm" in name:
            kind = "layer_norm"
        elif "position_embeddings" in name:
            kind = "embedding"
        elif name == "gpt.lm_head.weight":
            kind = "gptlm_head"
        elif "norm" in name:
            kind = "create_parameter"
        elif "embed" in name:
            kind = "vocab_parallel_embedding" if parallel else "embedding"
        elif "lm_head" in name:
            kind = "llama_lm_head"
        elif not parallel:
            kind = "linear"
        else:
            kind = ("row" if tensor_parallel_dim(name) == 0 else "column") + "_parallel_linear"
        counters[kind] = counters.get(kind, -1) + 1
        result[name] = f"{kind}_{counters[kind]}.w_0"
    return result


def named(array, name, bf16=False):
    if bf16:
        # As GPUs round, to nearest even; paddle's own cast on the CPU truncates. It takes uint16
        # for bfloat16.
        bits = array.astype("float32").view("uint32")
        array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("uint16")
    tensor = paddle.to_tensor(array)
    assert tensor.dtype == (paddle.bfloat16 if bf16 else paddle.float32)
    tensor.name = name
    return tensor


class Rank:
    """What one tensor-parallel and pipeline rank has: names, keys in its file, cut arrays."""

    def __init__(self, state, tp, tps, pp, pps, keys="structured", vpp=1):
        self.tp, self.pp = tp, pp
        segments = chunks_of(pps * vpp)
        mine = [segments[i] for i in range(len(segments)) if i % pps == pp]
        self.names, self.key = [], {}
        # In a pipeline, the last stage has a copy of tied embeddings, under their name.
        is_gpt = state.names[0].startswith("gpt.")
        if is_gpt and pps > 1:
            for arrays in (state.weight, state.moment1, state.moment2):
                arrays["gpt.lm_head.weight"] = arrays[EMBEDDINGS]
        tied = ["gpt.lm_head.weight"] if is_gpt and pps > 1 else []
        for begin, end in mine:
            for name in sorted(state.names + tied, key=lambda n: layer_number(n)[0]):
                number, rest = layer_number(name)
                if not begin <= number < end:
                    continue
                self.names.append(name)
                self.key[name] = {"structured": EMBEDDINGS if name in tied else name,
                                  "pipeline": pipeline_key(name, number, rest),
                                  "chunks": f"{begin}.{number - begin}.{rest}"}[keys]
        # Without one, the head is another name of the embeddings.
        self.aliases = {"lm_head.weight": EMBEDDINGS} if is_gpt and pps == 1 else {}
        self.tensor = tensor_names(self.names, tps > 1)
        take = lambda arrays: {n: cut(n, arrays[n], tp, tps) for n in self.names}
        self.weight, self.moment1, self.moment2 = map(
            take, (state.weight, state.moment1, state.moment2))


def suffix(tp=None, pp=None, shard=None):
    parts = [f"{a}{i:02d}" for a, i in (("tp", tp), ("pp", pp), ("shard", shard)) if i is not None]
    return "." + "_".join(parts) if parts else ""


# ---------------------------------------------------------------------- optimizers of one shard

def optimizer_state(state, rank, pieces, bf16, names=None):
    """Optimizer.state_dict(): `pieces` maps names to functions that cut a rank's array."""
    names = names or {n: rank.tensor[n] for n in pieces}
    owner = {n: names[n] + ("_fp32_master_0" if bf16 else "") for n in pieces}
    result = {}
    for kind, arrays in (("moment1", rank.moment1), ("moment2", rank.moment2)):
        for n, piece in pieces.items():
            key = f"{owner[n]}_{kind}_0"
            result[key] = named(piece(arrays[n]), key)
    for i, power in enumerate(state.powers):
        for n in pieces:
            key = f"{owner[n]}_beta{i + 1}_pow_acc_0"
            result[key] = named(power, key)
    if bf16:
        result["master_weights"] = {
            names[n]: named(piece(rank.weight[n]), owner[n]) for n, piece in pieces.items()}
    result["LR_Scheduler"] = state.scheduler
    return result


def whole(array):
    return array


def partition(rank, degree, largest_first):
    """DygraphShardingOptimizer._partition_parameters, and that of stage 2: greedy."""
    names = list(rank.names)
    if largest_first:
        names.sort(key=lambda n: rank.weight[n].size, reverse=True)
    sizes, owners = [0] * degree, {}
    for n in names:
        owners[n] = sizes.index(min(sizes))
        sizes[owners[n]] += rank.weight[n].size
    return owners


def even_slices(rank, degree, bf16):
    """build_reduce_scatter_buffer and ShardingGradView: [begin, end) per parameter and shard."""
    dtype = paddle.bfloat16 if bf16 else paddle.float32
    unit = alignment["gpu"] // align[dtype.value if hasattr(dtype, "value") else dtype] * degree
    index, views = 0, {}
    for n in rank.names:
        padded = (rank.weight[n].size + unit - 1) // unit * unit
        views[n] = (index, padded)
        index += padded
    each = index // degree
    slices = [{} for _ in range(degree)]
    for n, (start, padded) in views.items():
        for shard in range(degree):
            begin, end = max(start, shard * each), min(start + padded, (shard + 1) * each)
            if begin < end:
                slices[shard][n] = (begin - start, end - start, padded)
    return slices


def flat_slice(begin, end, padded):
    def take(array):
        flat = np.zeros(padded, array.dtype)
        flat[:array.size] = array.reshape(-1)
        return flat[begin:end].copy()
    return take


# -------------------------------------------------------------------------------------- layouts

def save_model(path, rank, bf16, names, **ranks):
    aliased = {key: n for key, n in rank.aliases.items() if n in names}
    names = {**{rank.key[n]: n for n in names}, **aliased}
    paddle.save({key: named(rank.weight[n], rank.tensor[n], bf16) for key, n in names.items()},
                os.path.join(path, f"model_state{suffix(**ranks)}.pdparams"))


def save_optimizer(path, contents, **ranks):
    paddle.save(contents, os.path.join(path, f"optimizer{suffix(**ranks)}.pdopt"))


def write_layout(state, name, tps=1, pps=1, shards=1, vpp=1, keys="structured", bf16=False,
                 sharding=None, meta=False, largest_first=True, segment=None):
    path = folder(name)
    state.config.save_pretrained(path)
    metas = {}
    for tp in range(tps):
        for pp in range(pps):
            rank = Rank(state, tp, tps, pp, pps, keys, vpp)
            where = {"tp": tp if tps > 1 else None, "pp": pp if pps > 1 else None}
            shard_meta = {"param2rank": {},
                          "structure_name_mapping": {
                              **{rank.key[n]: rank.tensor[n] for n in rank.names},
                              **{key: rank.tensor[n] for key, n in rank.aliases.items()}},
                          "param_meta": {rank.key[n]: [list(rank.weight[n].shape), "float32"]
                                         for n in rank.names},
                          "sharding_strategy": "ShardingV2" if sharding == "v2" else "ShardingV1",
                          "enable_overlap": False}
            metas[f"tp{tp:02d}_pp{pp:02d}"] = shard_meta
            if sharding is None:
                save_model(path, rank, bf16, rank.names, **where)
                pieces = {n: whole for n in rank.names}
                save_optimizer(path, optimizer_state(state, rank, pieces, bf16), **where)
                continue
            if not meta:
                save_model(path, rank, bf16, rank.names, **where)
            if sharding == "v1":
                owners = partition(rank, shards, largest_first)
                shard_meta["param2rank"] = {rank.tensor[n]: r for n, r in owners.items()}
                slices = [{n: whole for n in rank.names if owners[n] == s} for s in range(shards)]
            elif sharding == "v2":
                slices = [{n: flat_slice(*cut) for n, cut in mine.items()}
                          for mine in even_slices(rank, shards, bf16)]
            else:
                slices = stage3_slices(rank, shards, segment)
            for shard in range(shards):
                if meta:
                    # save_sharded_model: what it owns, less what master weights have.
                    mine = [n for i, n in enumerate(rank.names)
                            if (owners[n] == shard if sharding == "v1" else i % shards == shard)]
                    save_model(path, rank, bf16, [] if bf16 else mine, shard=shard, **where)
                contents = optimizer_state(state, rank, slices[shard], bf16)
                if sharding == "stage3":
                    name_slices(contents, rank, segment)
                save_optimizer(path, contents, shard=shard, **where)
    if meta:
        with open(os.path.join(path, "model_meta.json"), "w") as f:
            json.dump({"parallel_config": {"pp_degree": pps, "mp_degree": tps,
                                           "sharding_degree": shards, "vpp_degree": vpp},
                       "sharding_metas": metas}, f)


def stage3_slices(rank, degree, segment):
    """GroupShardedStage3._segment_rank_params: large parameters in equal parts, others whole."""
    slices = [{} for _ in range(degree)]
    for n in rank.names:
        size = rank.weight[n].size
        padded = (size + 127) // 128 * 128
        for shard in range(degree):
            slices[shard][n] = whole
            if size > segment:
                slices[shard][n] = flat_slice(padded // degree * shard,
                                              padded // degree * (shard + 1), padded)
    return slices


def name_slices(contents, rank, segment):
    """Master weights of slices are kept under "slice@" and the parameter's name, which is their
    own name, too, so that the moments are named after it."""
    for n in rank.names:
        name = rank.tensor[n]
        if rank.weight[n].size <= segment:
            continue
        weights = contents["master_weights"]
        weights["slice@" + name] = named(weights.pop(name).numpy(), name)
        for kind in ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc"):
            state = contents.pop(f"{name}_fp32_master_0_{kind}_0")
            contents[f"{name}_{kind}_0"] = named(state.numpy(), f"{name}_{kind}_0")


def fused(state):
    """fuse_attention_qkv (by query group) and fuse_attention_ffn."""
    result = State.__new__(State)
    result.scheduler, result.powers = state.scheduler, state.powers
    result.config = LlamaConfig.from_dict(state.config.to_dict())
    result.config.fuse_attention_qkv = result.config.fuse_attention_ffn = True
    result.names = []

    def fuse(arrays):
        parts = dict(arrays)
        for layer in range(LAYERS):
            prefix = f"llama.layers.{layer}."
            q, k, v = (parts.pop(f"{prefix}self_attn.{x}_proj.weight") for x in "qkv")
            split = lambda x: np.split(x, GROUPS, axis=1)
            parts[prefix + "self_attn.qkv_proj.weight"] = np.concatenate(
                [x for group in zip(split(q), split(k), split(v)) for x in group], axis=1)
            parts[prefix + "mlp.gate_up_fused_proj.weight"] = np.concatenate(
                [parts.pop(f"{prefix}mlp.{x}_proj.weight") for x in ("gate", "up")], axis=1)
        return parts

    result.weight, result.moment1, result.moment2 = map(
        fuse, (state.weight, state.moment1, state.moment2))
    result.names = list(result.weight)
    return result


def fused_gpt(state):
    """fuse_attention_qkv of GPT: head by head, queries, keys and values."""
    result = State.__new__(State)
    result.scheduler, result.powers = state.scheduler, state.powers
    result.config = GPTConfig.from_dict(state.config.to_dict())
    result.config.fuse_attention_qkv = True

    def fuse(arrays):
        parts = {}
        for name, array in arrays.items():
            if "k_proj" in name or "v_proj" in name:
                continue
            if "q_proj" in name:
                qkv = [np.split(arrays[name.replace("q_proj", x)], HEADS, axis=-1)
                       for x in ("q_proj", "k_proj", "v_proj")]
                name = name.replace("q_proj", "qkv_proj")
                array = np.concatenate([x for head in zip(*qkv) for x in head], axis=-1)
            parts[name] = array
        return parts

    result.weight, result.moment1, result.moment2 = map(
        fuse, (state.weight, state.moment1, state.moment2))
    result.names = list(result.weight)
    return result


def check_logits(state, fused):
    """That PaddleNLP itself computes the same with both."""
    logits = []
    for one, is_fused in ((state, False), (fused, True)):
        model = make_gpt(is_fused)
        tensors = model.gpt.state_dict()
        for name, tensor in tensors.items():
            tensor.set_value(one.weight["gpt." + name])
        assert len(tensors) == len(one.names)
        result = model(paddle.to_tensor([TOKENS]))
        logits.append((result[0] if isinstance(result, tuple) else result).numpy())
    np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=1e-6)


def save_gpt_oracle(state):
    """The consolidated state of the GPT, with the names and shapes of Hugging Face's GPT-2."""
    names = {"norm1": "ln_1", "norm2": "ln_2", "out_proj": "attn.c_proj", "linear1": "mlp.c_fc",
             "linear2": "mlp.c_proj", "q_proj": "attn.c_attn"}
    whole = {"gpt.embeddings.word_embeddings": "wte", "gpt.embeddings.position_embeddings": "wpe",
             "gpt.decoder.norm": "ln_f"}
    tensors = {}
    for name in state.names:
        module, kind = name.rsplit(".", 1)
        last = module.split(".")[-1]
        if last in ("k_proj", "v_proj"):
            continue
        logical = whole.get(module) or f"h.{module.split('.')[3]}.{names[last]}"
        for end, arrays in (("", state.weight), (".exp_avg", state.moment1),
                            (".exp_avg_sq", state.moment2)):
            array = arrays[name]
            if last == "q_proj":
                array = np.concatenate([arrays[name.replace("q_proj", x)]
                                        for x in ("q_proj", "k_proj", "v_proj")], axis=-1)
            tensors[f"transformer.{logical}.{kind}{end}"] = np.ascontiguousarray(array)
    save_file(tensors, os.path.join(out, "gpt.safetensors"))


def save_losses(name, losses):
    with open(os.path.join(out, name), "w") as f:
        json.dump({"tokens": TOKENS, "losses": losses[SAVED_STEP:]}, f)


def save_oracle(state, file="state.safetensors"):
    """The consolidated state, with logical names and shapes."""
    tensors = {}
    for name in state.names:
        logical = name.replace("llama.", "model.", 1)
        for end, arrays in (("", state.weight), (".exp_avg", state.moment1),
                            (".exp_avg_sq", state.moment2)):
            array = arrays[name]
            is_linear = array.ndim == 2 and "embed" not in name
            tensors[logical + end] = np.ascontiguousarray(array.T if is_linear else array)
    save_file(tensors, os.path.join(out, file))


def write_degree():
    """Layouts of three or four ranks on an axis."""
    name = f"degree{DEGREE}"
    if not os.path.exists(os.path.join(out, name)):
        save_losses(f"{name}_losses.json", train(make_model(), name))
    state = read_single(name, LlamaConfig)
    save_oracle(state, f"{name}.safetensors")
    write_layout(state, f"mp{DEGREE}", tps=DEGREE)
    write_layout(state, f"pp{DEGREE}", pps=DEGREE, keys="pipeline", bf16=True)
    write_layout(state, f"sharding{DEGREE}_v1_meta", shards=DEGREE, sharding="v1", meta=True)
    write_layout(state, f"sharding{DEGREE}_v2", shards=DEGREE, sharding="v2", bf16=True)
    write_layout(state, f"mp{DEGREE}_pp{DEGREE}_sharding2_v2_meta", tps=DEGREE, pps=DEGREE,
                 shards=2, sharding="v2", meta=True)


def main():
    os.makedirs(out, exist_ok=True)
    if DEGREE:
        return write_degree()
    # Another CPU may train to other bits: a state that is there already is that of all layouts.
    if not os.path.exists(os.path.join(out, "dp")):
        save_losses("losses.json", train(make_model(), "dp"))
    state = read_single("dp", LlamaConfig)
    save_oracle(state)
    write_layout(state, "mp2", tps=2)
    write_layout(state, "pp2", pps=2, bf16=True)
    write_layout(state, "mp2_pp2", tps=2, pps=2, keys="pipeline", bf16=True)
    write_layout(state, "mp2_pp2_vpp2", tps=2, pps=2, vpp=2, keys="chunks")
    write_layout(state, "sharding2_v1", shards=2, sharding="v1", bf16=True, largest_first=False)
    write_layout(state, "sharding2_v1_meta", shards=2, sharding="v1", meta=True)
    write_layout(state, "mp2_sharding2_v1", tps=2, shards=2, sharding="v1")
    write_layout(state, "mp2_pp2_sharding2_v1_meta", tps=2, pps=2, shards=2, sharding="v1",
                 meta=True, bf16=True)
    write_layout(state, "sharding2_v2_meta", shards=2, sharding="v2", meta=True, bf16=True)
    write_layout(state, "mp2_pp2_sharding2_v2_meta", tps=2, pps=2, shards=2, sharding="v2",
                 meta=True)
    # The model's files are ordinary ones.
    write_layout(state, "sharding2_v2", shards=2, sharding="v2", bf16=True)
    write_layout(state, "mp2_pp2_sharding2_v2", tps=2, pps=2, shards=2, sharding="v2")
    # Weights are in the master weights alone.
    write_layout(state, "mp2_pp2_sharding2_v2_master", tps=2, pps=2, shards=2, sharding="v2",
                 meta=True, bf16=True)
    write_layout(state, "sharding2_stage3", shards=2, sharding="stage3", bf16=True, segment=64)
    write_layout(fused(state), "mp2_fused", tps=2)
    if not os.path.exists(os.path.join(out, "gpt_dp")):
        save_losses("gpt_losses.json", train(make_gpt(fused=False), "gpt_dp"))
    gpt = read_single("gpt_dp", GPTConfig)
    save_gpt_oracle(gpt)
    fused_state = fused_gpt(gpt)
    check_logits(gpt, fused_state)
    write_layout(gpt, "gpt_mp2_pp2", tps=2, pps=2)
    write_layout(fused_state, "gpt_fused_mp2_pp2", tps=2, pps=2, keys="pipeline", bf16=True)
    write_layout(fused_state, "gpt_fused_sharding2_v2_meta", shards=2, sharding="v2", meta=True)


main()
