"""Writes the checkpoints in this folder with megatron-core, on the CPU.

make_fixtures.py FOLDER

Needs torch, safetensors and megatron-core (0.16.1 wrote what is committed). Each checkpoint is
written by as many processes as its layout has ranks, each with its part of one model whose weights
and optimizer state are random numbers. MODEL.safetensors has all of them under their names in
Hugging Face's format.
"""

import argparse
import inspect
import os
import pathlib
import random
import sys
import types

import numpy
import safetensors.torch
import torch
import torch.distributed
import torch.multiprocessing
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig

HEADS, HIDDEN, POSITIONS, VOCABULARY = 4, 8, 13, 61
STATES = ("", "master", "exp_avg", "exp_avg_sq")
STEP, SAMPLES = 7, 56


class Shape:
    """A model's sizes, and its logical tensors by their names in Hugging Face's format."""

    def __init__(self, name):
        self.name = name
        self.is_gpt = name == "gpt2"
        self.groups = HEADS if self.is_gpt else 2
        self.ffn = 4 * HIDDEN if self.is_gpt else 8 if name == "llama3_small" else 24
        self.tied = name not in ("llama3_untied", "llama3_small")
        self.dtype = torch.bfloat16 if name == "llama3_bf16" else torch.float32
        self.layers = {"llama3_bf16": 4, "llama3_small": 1}.get(name, 2)

    def tensors(self):
        c, f, kv = HIDDEN, self.ffn, HIDDEN // HEADS * self.groups
        if self.is_gpt:
            yield "transformer.wte.weight", (VOCABULARY, c)
            yield "transformer.wpe.weight", (POSITIONS, c)
            for layer in range(self.layers):
                for name, size in (
                    ("ln_1.weight", (c,)), ("ln_1.bias", (c,)),
                    ("attn.c_attn.weight", (c, 3 * c)), ("attn.c_attn.bias", (3 * c,)),
                    ("attn.c_proj.weight", (c, c)), ("attn.c_proj.bias", (c,)),
                    ("ln_2.weight", (c,)), ("ln_2.bias", (c,)),
                    ("mlp.c_fc.weight", (c, f)), ("mlp.c_fc.bias", (f,)),
                    ("mlp.c_proj.weight", (f, c)), ("mlp.c_proj.bias", (c,)),
                ):
                    yield f"transformer.h.{layer}.{name}", size
            yield "transformer.ln_f.weight", (c,)
            yield "transformer.ln_f.bias", (c,)
            return
        yield "model.embed_tokens.weight", (VOCABULARY, c)
        for layer in range(self.layers):
            for name, size in (
                ("input_layernorm.weight", (c,)),
                ("self_attn.q_proj.weight", (c, c)),
                ("self_attn.k_proj.weight", (kv, c)), ("self_attn.v_proj.weight", (kv, c)),
                ("self_attn.o_proj.weight", (c, c)),
                ("post_attention_layernorm.weight", (c,)),
                ("mlp.gate_proj.weight", (f, c)), ("mlp.up_proj.weight", (f, c)),
                ("mlp.down_proj.weight", (c, f)),
            ):
                yield f"model.layers.{layer}.{name}", size
        yield "model.norm.weight", (c,)
        if not self.tied:
            yield "lm_head.weight", (VOCABULARY, c)

    def values(self):
        """{state: {name: tensor}}; the state "" is the weights."""
        generator = torch.Generator().manual_seed(1)
        values = {state: {} for state in STATES}
        for name, size in self.tensors():
            scale = 0.2 / HIDDEN**0.5 if len(size) > 1 else 0.05
            weight = torch.randn(size, generator=generator) * scale
            if name.endswith("norm.weight") or ".ln_" in name and name.endswith("weight"):
                weight += 1
            values["master"][name] = weight
            values[""][name] = weight.to(self.dtype, copy=True)
            values["exp_avg"][name] = torch.randn(size, generator=generator) * 1e-3
            values["exp_avg_sq"][name] = torch.rand(size, generator=generator) * 1e-5
        return values


def megatron_parameters(shape, values):
    """Whole parameters under megatron-core's names, fused as its modules have them.

    {name: (tensor, tensor-parallel dim or None, sections)}
    """
    d, per_group = HIDDEN // HEADS, HEADS // shape.groups
    whole = {}

    def padded(table):
        return torch.cat([table, torch.zeros(-VOCABULARY % 8, HIDDEN, dtype=table.dtype)])

    def grouped(q, k, v):
        rest = q.shape[1:]
        parts = (q.view(shape.groups, per_group * d, *rest), k.view(shape.groups, d, *rest),
                 v.view(shape.groups, d, *rest))
        return torch.cat(parts, 1).reshape(-1, *rest)

    if shape.is_gpt:
        whole["embedding.word_embeddings.weight"] = padded(values["transformer.wte.weight"]), 0, 1
        whole["embedding.position_embeddings.weight"] = values["transformer.wpe.weight"], None, 1
    else:
        embedding = padded(values["model.embed_tokens.weight"])
        whole["embedding.word_embeddings.weight"] = embedding, 0, 1
    for layer in range(shape.layers):
        to = f"decoder.layers.{layer}."
        if shape.is_gpt:
            of = f"transformer.h.{layer}."
            for norm, name in (("ln_1", "input_layernorm"), ("ln_2", "pre_mlp_layernorm")):
                for kind in ("weight", "bias"):
                    whole[f"{to}{name}.{kind}"] = values[f"{of}{norm}.{kind}"], None, 1
            whole[to + "self_attention.linear_qkv.weight"] = (
                grouped(*values[of + "attn.c_attn.weight"].t().chunk(3)), 0, 1)
            whole[to + "self_attention.linear_qkv.bias"] = (
                grouped(*values[of + "attn.c_attn.bias"].chunk(3)), 0, 1)
            for name, part, dim in (("self_attention.linear_proj", "attn.c_proj", 1),
                                    ("mlp.linear_fc1", "mlp.c_fc", 0),
                                    ("mlp.linear_fc2", "mlp.c_proj", 1)):
                whole[f"{to}{name}.weight"] = values[f"{of}{part}.weight"].t(), dim, 1
                whole[f"{to}{name}.bias"] = values[f"{of}{part}.bias"], None if dim else 0, 1
        else:
            of = f"model.layers.{layer}."
            whole[to + "input_layernorm.weight"] = values[of + "input_layernorm.weight"], None, 1
            whole[to + "pre_mlp_layernorm.weight"] = (
                values[of + "post_attention_layernorm.weight"], None, 1)
            whole[to + "self_attention.linear_qkv.weight"] = grouped(
                *(values[f"{of}self_attn.{p}_proj.weight"] for p in "qkv")), 0, 1
            whole[to + "self_attention.linear_proj.weight"] = (
                values[of + "self_attn.o_proj.weight"], 1, 1)
            whole[to + "mlp.linear_fc1.weight"] = torch.cat(
                [values[f"{of}mlp.{p}_proj.weight"] for p in ("gate", "up")]), 0, 2
            whole[to + "mlp.linear_fc2.weight"] = values[of + "mlp.down_proj.weight"], 1, 1
    if shape.is_gpt:
        for kind in ("weight", "bias"):
            whole[f"decoder.final_layernorm.{kind}"] = values[f"transformer.ln_f.{kind}"], None, 1
    else:
        whole["decoder.final_layernorm.weight"] = values["model.norm.weight"], None, 1
    head = "lm_head.weight" if not shape.tied else next(iter(values))
    whole["output_layer.weight"] = padded(values[head]), 0, 1
    return whole


def share(parameter, rank, size):
    """What a tensor-parallel rank has of a parameter."""
    tensor, dim, sections = parameter
    if dim is None:
        return tensor
    return torch.cat([part.chunk(size, dim)[rank] for part in tensor.chunk(sections, dim)], dim)


def run_arguments(shape, layout):
    """The arguments of Megatron-LM that describe the model and the run."""
    return argparse.Namespace(
        num_layers=shape.layers, hidden_size=HIDDEN, ffn_hidden_size=shape.ffn,
        num_attention_heads=HEADS, kv_channels=HIDDEN // HEADS,
        group_query_attention=not shape.is_gpt, num_query_groups=shape.groups,
        max_position_embeddings=POSITIONS, seq_length=POSITIONS, norm_epsilon=1e-5,
        position_embedding_type="learned_absolute" if shape.is_gpt else "rope",
        rotary_base=10000, rotary_percent=1.0, rotary_interleaved=False, use_rope_scaling=False,
        normalization="LayerNorm" if shape.is_gpt else "RMSNorm", swiglu=not shape.is_gpt,
        add_bias_linear=shape.is_gpt, add_qkv_bias=False, num_experts=None, qk_layernorm=False,
        untie_embeddings_and_output_weights=not shape.tied, vocab_size=VOCABULARY,
        padded_vocab_size=VOCABULARY + -VOCABULARY % 8, make_vocab_size_divisible_by=8,
        transformer_impl="local", tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp, data_parallel_size=layout.dp,
        virtual_pipeline_model_parallel_size=layout.vpp,
        use_distributed_optimizer=layout.distributed,
        rank=torch.distributed.get_rank(), world_size=layout.tp * layout.pp * layout.dp,
        iteration=STEP,
        consumed_train_samples=SAMPLES, consumed_valid_samples=0, lr=1e-3, adam_beta1=0.9,
        adam_beta2=0.95, weight_decay=0.1, ckpt_format="torch_dist",
        overlap_grad_reduce=layout.bucket_size is not None, ddp_bucket_size=layout.bucket_size)


def pretend_cpu_is_cuda():
    """megatron-core's optimizers take tensors on GPUs only; the arithmetic is the same."""
    tensor_type = torch.Tensor.type

    def cuda_type(self, *arguments, **options):
        result = tensor_type(self, *arguments, **options)
        return result.replace("torch.", "torch.cuda.") if isinstance(result, str) else result

    torch.Tensor.type = cuda_type
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
    for name in ("zeros", "empty", "tensor", "full"):
        make = getattr(torch, name)

        def on_cpu(*arguments, make=make, **options):
            if str(options.get("device", "")).startswith("cuda"):
                options["device"] = "cpu"
            return make(*arguments, **options)

        setattr(torch, name, on_cpu)


def call(function, *arguments, **options):
    """Calls a function of megatron-core with those of the options that its release knows."""
    known = inspect.signature(function).parameters
    return function(*arguments, **{key: value for key, value in options.items() if key in known})


def build_model(shape, layout, dtype):
    """The chunks of this rank, with their weights."""

    options = {} if shape.is_gpt else {
        "normalization": "RMSNorm", "gated_linear_unit": True, "add_bias_linear": False,
        "activation_func": torch.nn.functional.silu}
    config = TransformerConfig(
        num_layers=shape.layers, hidden_size=HIDDEN, num_attention_heads=HEADS,
        ffn_hidden_size=shape.ffn, num_query_groups=shape.groups, use_cpu_initialization=True,
        perform_initialization=False, params_dtype=dtype, bf16=dtype == torch.bfloat16,
        pipeline_dtype=dtype, tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp, **options)
    chunks = []
    for stage in range(layout.vpp or 1):
        vp_stage = stage if layout.vpp else None
        ends = {"ignore_virtual": False, "vp_stage": vp_stage}
        chunks.append(call(
            GPTModel,
            config, call(get_gpt_layer_local_spec, normalization=config.normalization),
            VOCABULARY + -VOCABULARY % 8, POSITIONS,
            pre_process=call(parallel_state.is_pipeline_first_stage, **ends),
            post_process=call(parallel_state.is_pipeline_last_stage, **ends),
            position_embedding_type="learned_absolute" if shape.is_gpt else "rope",
            share_embeddings_and_output_weights=shape.tied, vp_stage=vp_stage).to(dtype))
    return config, chunks


def global_name(chunk, name):
    if not name.startswith("decoder.layers."):
        return name
    _, _, local, rest = name.split(".", 3)
    return f"decoder.layers.{chunk.decoder.layers[int(local)].layer_number - 1}.{rest}"


def fill(chunks, shape, layout, values):
    """Sets the weights; returns {parameter: {state: tensor}} of this rank's states."""

    rank = parallel_state.get_tensor_model_parallel_rank()
    whole = {state: megatron_parameters(shape, values[state]) for state in STATES}
    states = {}
    with torch.no_grad():
        for chunk in chunks:
            for name, parameter in chunk.named_parameters():
                own = {state: share(whole[state][global_name(chunk, name)], rank, layout.tp)
                       for state in STATES}
                assert own[""].shape == parameter.shape, name
                parameter.copy_(own[""])
                states[parameter] = own
    return states


def build_optimizer(chunks, config, layout, dtype, states):
    """megatron-core's distributed optimizer, or its plain one where there is one replica."""

    distributed = layout.distributed
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=distributed,
                                        overlap_grad_reduce=layout.bucket_size is not None,
                                        bucket_size=layout.bucket_size)
    wrapped = [DistributedDataParallel(config, ddp, chunk, disable_bucketing=i > 0)
               for i, chunk in enumerate(chunks)]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-3, bf16=dtype == torch.bfloat16,
                        params_dtype=dtype, use_distributed_optimizer=distributed), wrapped)
    inner = only_optimizer(optimizer)
    known = len(inspect.signature(inner.init_state_fn).parameters)  # one in old releases
    inner.init_state_fn(*(inner.optimizer, inner.config)[:known])
    fill_optimizer(inner, states, distributed)
    return wrapped, optimizer


def only_optimizer(optimizer):
    """megatron-core 0.11 has a list of optimizers only where there are several."""
    (inner,) = getattr(optimizer, "chained_optimizers", [optimizer])
    return inner


def fill_optimizer(inner, states, distributed):
    for group in inner.optimizer.param_groups:
        for main in group["params"]:
            inner.optimizer.state[main]["step"] = torch.tensor(float(STEP))
    with torch.no_grad():
        for parameter, own in states.items():
            if distributed:
                targets = inner._get_main_param_and_optimizer_states(parameter) if (
                    parameter in inner.model_param_gbuf_map) else {}
            else:
                main = getattr(parameter, "main_param", parameter)
                targets = {"param": main, **inner.optimizer.state[main]}
            for key, target in targets.items():
                if key == "step":
                    continue
                source = own["master" if key == "param" else key].reshape(-1)
                if distributed:
                    place = inner._get_model_param_range_map(parameter)["param"]
                    source = source[place.start:place.end]
                target.copy_(source.view_as(target))


def start_rank(rank, port, layout):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", rank=rank, world_size=layout.tp * layout.pp * layout.dp)
    pretend_cpu_is_cuda()
    parallel_state.initialize_model_parallel(
        layout.tp, layout.pp, virtual_pipeline_model_parallel_size=layout.vpp)


def run_ranks(fork, target, layout, arguments, name):
    """Runs target(rank, *arguments) in a process for each rank."""
    ranks = [fork.Process(target=target, args=(rank, *arguments))
             for rank in range(layout.tp * layout.pp * layout.dp)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0, name


def save_rank(rank, folder, port, shape_name, layout):
    start_rank(rank, port, layout)
    shape = Shape(shape_name)
    config, chunks = build_model(shape, layout, shape.dtype)
    states = fill(chunks, shape, layout, shape.values())
    _, optimizer = build_optimizer(chunks, config, layout, shape.dtype, states)
    state = {"args": run_arguments(shape, layout), "checkpoint_version": 3.0, "iteration": STEP,
             "opt_param_scheduler": {"max_lr": 1e-3, "lr_decay_style": "cosine",
                                     "num_steps": SAMPLES}}
    rng_state = [{"random_rng_state": random.getstate(),
                  "np_rng_state": numpy.random.get_state()}]
    names = [f"model{i}" if layout.vpp else "model" for i in range(len(chunks))]
    save = save_legacy if layout.sharding == "legacy" else save_torch_dist
    save(folder, layout, state, dict(zip(names, chunks)), optimizer, rng_state)
    torch.distributed.barrier()


def sharded_optimizer(optimizer, layout, model, metadata):
    save = optimizer.sharded_state_dict
    if "metadata" in inspect.signature(only_optimizer(optimizer).sharded_state_dict).parameters:
        return save(model, metadata=metadata)
    inner = only_optimizer(optimizer)
    states_of = inner._get_main_param_and_optimizer_states  # with Apex there is no step among them
    inner._get_main_param_and_optimizer_states = lambda parameter: {
        key: state for key, state in states_of(parameter).items() if key != "step"}
    return save(model, sharding_type=layout.sharding)


def save_torch_dist(folder, layout, state, chunks, optimizer, rng_state):
    metadata = {"distrib_optim_sharding_type": layout.sharding, "chained_optim_avoid_prefix": True}
    model = {name: chunk.sharded_state_dict(metadata=metadata) for name, chunk in chunks.items()}
    state.update(
        model, optimizer=sharded_optimizer(optimizer, layout, model, metadata),
        rng_state=ShardedObject(
            "rng_state", rng_state, (layout.pp, layout.tp),
            (parallel_state.get_pipeline_model_parallel_rank(),
             parallel_state.get_tensor_model_parallel_rank()),
            replica_id=parallel_state.get_data_parallel_rank()))
    call(dist_checkpointing.save, state, str(folder), content_metadata=metadata)


def save_legacy(folder, layout, state, chunks, optimizer, rng_state):
    """The files of Megatron-LM's --ckpt-format=torch: the contents are megatron-core's, the dict
    around them is that of save_checkpoint() in megatron.training.checkpointing."""

    tp, pp = (parallel_state.get_tensor_model_parallel_rank(),
              parallel_state.get_pipeline_model_parallel_rank())
    name = f"mp_rank_{tp:02d}" + (f"_{pp:03d}" if layout.pp > 1 else "")
    own = folder / f"iter_{STEP:07d}" / name
    own.mkdir(parents=True, exist_ok=True)
    if layout.distributed:
        optimizer.save_parameter_state(str(own / "distrib_optim.pt"))
    if parallel_state.get_data_parallel_rank() == 0:
        state.update({name: chunk.state_dict_for_save_checkpoint()
                      for name, chunk in chunks.items()},
                     optimizer=optimizer.state_dict(), rng_state=rng_state,
                     num_floating_point_operations_so_far=0)
        torch.save(state, own / "model_optim_rng.pt")
    if torch.distributed.get_rank() == 0:
        (folder / "latest_checkpointed_iteration.txt").write_text(str(STEP))


def make_layout(**sizes):
    layout = types.SimpleNamespace(
        **{"dp": 1, "tp": 1, "pp": 1, "vpp": None, "bucket_size": None, "sharding": None, **sizes})
    layout.distributed = layout.dp > 1
    return layout


CHECKPOINTS = [
    # folder, model, layout
    ("gpt2_single", "gpt2", dict()),
    ("gpt2_tp2_pp2", "gpt2", dict(tp=2, pp=2)),
    ("llama3_tied_pp2", "llama3_tied", dict(pp=2)),
    ("llama3_untied_single", "llama3_untied", dict()),
    # Not tied: with several buckets, megatron-core 0.16.1 stores other elements than those of the
    # states of some parameters.
    ("llama3_untied_dp2_tp2_pp2", "llama3_untied",
     dict(dp=2, tp=2, pp=2, sharding="fully_reshardable")),
    ("llama3_bf16_pp2_vpp2", "llama3_bf16", dict(pp=2, vpp=2)),
    ("legacy_gpt2_tp2_pp2", "gpt2", dict(tp=2, pp=2, sharding="legacy")),
    ("legacy_llama3_tied_pp2_vpp2", "llama3_bf16", dict(pp=2, vpp=2, sharding="legacy")),
    ("legacy_llama3_untied_dp2_tp2", "llama3_untied",
     dict(dp=2, tp=2, bucket_size=512, sharding="legacy")),
    ("legacy_llama3_bf16_dp2_pp2_vpp2", "llama3_bf16",
     dict(dp=2, pp=2, vpp=2, sharding="legacy")),
    ("buckets_llama3_untied_dp2_tp2_pp2", "llama3_untied",
     dict(dp=2, tp=2, pp=2, bucket_size=512, sharding="dp_reshardable")),
    ("buckets_llama3_bf16_dp2_pp2_vpp2", "llama3_bf16",
     dict(dp=2, pp=2, vpp=2, sharding="dp_reshardable")),
    ("gathered_llama3_bf16_dp2_tp2_pp2", "llama3_bf16",
     dict(dp=2, tp=2, pp=2, sharding="dp_zero_gather_scatter")),
]

# Written only where they are asked for by name: ../pack_folder.py packs them for ../corpus.
SEEDS = [
    ("seed_buckets", "llama3_small", dict(dp=2, sharding="dp_reshardable")),
    ("seed_gathered", "llama3_small", dict(dp=2, sharding="dp_zero_gather_scatter")),
    ("seed_ranks", "llama3_small", dict(dp=2, bucket_size=512, sharding="legacy")),
]


def main():
    root = pathlib.Path(sys.argv[1])
    wanted = sys.argv[2:]
    fork = torch.multiprocessing.get_context("fork")  # torch is imported once for all ranks
    for i, (name, model, sizes) in enumerate(CHECKPOINTS + SEEDS):
        if name not in (wanted or [folder for folder, *_ in CHECKPOINTS]):
            continue
        layout = make_layout(**sizes)
        folder = root / name
        folder.mkdir(parents=True)
        run_ranks(fork, save_rank, layout, (folder, 29600 + i, model, layout), name)
    for model in ("gpt2", "llama3_tied", "llama3_untied", "llama3_bf16"):
        values = Shape(model).values()
        safetensors.torch.save_file(
            {name + (f".{state}" if state else ""): tensor
             for state in STATES for name, tensor in values[state].items()},
            root / f"{model}.safetensors")


if __name__ == "__main__":
    main()
