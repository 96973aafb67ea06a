"""Writes the checkpoints in this folder with InternEvo's own code.

    python make_fixtures.py

Needs torch, numpy, einops, safetensors and the package InternEvo 0.5.2 (--no-deps is enough). Its
models, its HybridZeroOptimizer and its CheckpointManager run here for one rank after the other, on
the CPU: the class below answers what they ask of the process groups. Nothing is trained: weights
and moments are random numbers, and each rank gets those of them that its parameters are. The wheel
leaves out internlm.core.parallel.comm, which moves data between ranks and which nothing here needs.

Two kinds of checkpoints are newer than the package. Those of weight parallelism by one axis are the
package's, under the names that later releases give them. The folders of universal checkpoints are
written by torch.distributed.checkpoint from dicts such as the public code of InternEvo makes.

state*.safetensors has what all folders of that model hold, consolidated: weights, moments and fp32
weights under the names of Hugging Face's LlamaForCausalLM.
"""

import importlib.abc
import importlib.machinery
import pathlib
import shutil
import sys
import tempfile
import types

import torch
import torch.distributed.checkpoint
from einops import rearrange
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
STEP = 3


class _Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that are not there: each name in them is a function that returns its argument."""

    PREFIXES = ("internlm.core.parallel.comm", "rotary_emb", "pynvml", "GPUtil")

    def find_spec(self, name, path, target=None):
        if name.startswith(self.PREFIXES):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda value=None, *_, **__: value

        module = types.ModuleType(spec.name)
        module.__getattr__ = attribute
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Missing())

import internlm.utils.common as common  # noqa: E402

common.get_current_device = lambda: torch.device("cpu")

from internlm.checkpoint import checkpoint_manager as manager  # noqa: E402
from internlm.core.context import ParallelMode  # noqa: E402
from internlm.core.context import global_context as gpc  # noqa: E402
from internlm.core.context.parallel_context import Config  # noqa: E402
from internlm.core.naive_amp import NaiveAMPModel, set_fp32_attr_to_module  # noqa: E402
from internlm.core.parallel.shard import (  # noqa: E402
    partition_uniform,
    pipeline_parallel_sharding_wrapper,
)
from internlm.core.trainer import TrainState  # noqa: E402
from internlm.data.tokenized.batch_sampler import StaticBatchSampler  # noqa: E402
from internlm.model.modeling_internlm2 import InternLM2  # noqa: E402
from internlm.model.modeling_llama import Llama2  # noqa: E402
from internlm.model.ops.norm import RMSNorm  # noqa: E402
from internlm.solver.optimizer import HybridZeroOptimizer, hybrid_zero_optim  # noqa: E402
from internlm.train.utils import create_param_groups  # noqa: E402
from internlm.utils import storage_manager  # noqa: E402

hybrid_zero_optim.get_current_device = common.get_current_device
HybridZeroOptimizer._attach_reduction_hook = lambda self: None  # messages of the backward pass
torch.distributed.barrier = lambda *_, **__: None
for device_call in ("synchronize", "current_stream", "empty_cache"):
    setattr(manager.internlm_accelerator, device_call, lambda *_: None)


class NoTimers:
    def __call__(self, name):
        return types.SimpleNamespace(start=lambda: None, stop=lambda: None)

    def log(self, *_, **__):
        pass


manager.timer = NoTimers()

MODEL = dict(checkpoint=False, num_attention_heads=4, num_kv_attention_heads=2, vocab_size=20,
             embed_grad_scale=1, parallel_output=True, hidden_size=16, num_layers=4, mlp_ratio=0.75,
             multiple_of=4, apply_post_layer_norm=False, no_bias=True, norm_type="rmsnorm",
             qk_interleaved=False, layer_norm_epsilon=1e-5, max_position_embeddings=24,
             rope_base=50000, dtype=torch.bfloat16)


class Ranks:
    """The process groups of one rank: pipeline ranks are the outermost, tensor ranks the inmost."""

    def __init__(self, tp, pp, dp, zero):
        self.sizes = {ParallelMode.TENSOR: tp, ParallelMode.PIPELINE: pp, ParallelMode.DATA: dp,
                      ParallelMode.ZERO1: zero, ParallelMode.WEIGHT_DATA: dp,
                      ParallelMode.EXPERT_DATA: dp, ParallelMode.GLOBAL: tp * pp * dp}
        self.mode = "mtp"
        self.go_to(0)

    def go_to(self, rank):
        tp, dp = self.sizes[ParallelMode.TENSOR], self.sizes[ParallelMode.DATA]
        data = rank // tp % dp
        self.rank = rank
        self.ranks = {ParallelMode.TENSOR: rank % tp, ParallelMode.DATA: data,
                      ParallelMode.WEIGHT: rank % tp,
                      ParallelMode.ZERO1: data % self.sizes[ParallelMode.ZERO1],
                      ParallelMode.PIPELINE: rank // (tp * dp), ParallelMode.GLOBAL: rank}
        gpc.get_world_size = lambda mode: self.sizes.get(mode, 1)
        gpc.get_local_rank = lambda mode: self.ranks.get(mode, 0)
        gpc.get_global_rank = lambda: rank
        gpc.is_rank_for_log = lambda: rank == 0
        gpc.is_initialized = lambda mode: False
        gpc._tensor_parallel_size = tp
        gpc.tensor_parallel_size = tp

    def configure(self, model, fp32_norm):
        gpc._config = Config(dict(
            model=model, use_fp32_norm=fp32_norm, data=dict(total_steps=10), resume_tb_folder=None,
            tensorboard_folder=None, adam=dict(lr=1e-3),
            parallel=dict(zero1=dict(size=self.sizes[ParallelMode.ZERO1], fsdp=False),
                          tensor=dict(size=self.sizes[ParallelMode.TENSOR], mode=self.mode))))


def build(ranks, kind, model, fp32_norm):
    """The current rank's part of the model, as internlm.train.initialize_model() makes it."""
    ranks.configure(Config(dict(model)), fp32_norm)
    kwargs = {key: value for key, value in model.items()
              if key not in ("num_layers", "num_chunks", "checkpoint")}
    built = pipeline_parallel_sharding_wrapper(
        model["num_layers"], model.get("num_chunks", 1), lambda **all_: kind(**all_),
        torch.device("cpu"), **kwargs)
    chunks = list(built) if isinstance(built, torch.nn.ModuleList) else [built]
    wrapped = []
    for chunk in chunks:
        for module in chunk.modules():
            if fp32_norm and isinstance(module, RMSNorm):
                set_fp32_attr_to_module(module)
        wrapped.append(NaiveAMPModel(model=chunk, output_to_fp32=False, dtype=model["dtype"],
                                     sync_buffer=False))
    return (torch.nn.ModuleList(wrapped) if len(wrapped) > 1 else wrapped[0]), chunks


def local_part(full, shape, rank):
    """The part with this shape of a parameter that is cut along one dim."""
    for dim, extent in enumerate(shape):
        if extent != full.shape[dim]:
            return full.narrow(dim, rank * extent, extent)
    return full


def full_state(kind, model):
    """Random fp32 weights and moments of the whole model, under InternEvo's names."""
    ranks = Ranks(1, 1, 1, 1)
    torch.manual_seed(7)
    _, (chunk,) = build(ranks, kind, model, False)
    state = {}
    for name, parameter in chunk.named_parameters():
        base = 1.0 if "norm" in name else 0.0
        state[name] = {"weight": base + 0.1 * torch.randn(parameter.shape),
                       "exp_avg": 1e-3 * torch.randn(parameter.shape),
                       "exp_avg_sq": 1e-6 * torch.rand(parameter.shape)}
    return state


def logical_names(state, model):
    """The same under Hugging Face's names."""
    heads, groups = model["num_attention_heads"], model["num_kv_attention_heads"]
    size = model["hidden_size"] // heads
    simple = {"wo": "self_attn.o_proj", "wv": "self_attn.v_proj", "w1": "mlp.gate_proj",
              "w2": "mlp.down_proj", "w3": "mlp.up_proj", "attention_norm": "input_layernorm",
              "ffn_norm": "post_attention_layernorm"}
    result = {}

    def add(name, tensors):
        for key, tensor in tensors.items():
            suffix = {"weight": "", "master": ".master"}.get(key, "." + key)
            result[name + suffix] = tensor.contiguous().clone()

    def halves(tensor):
        """Rotary rows by pairs -> by halves."""
        if not model.get("qk_interleaved", False):
            return tensor
        return rearrange(tensor, "(h d two) c -> (h two d) c", d=size // 2, two=2)

    for name, tensors in state.items():
        parts = name.split(".")
        if parts[0] != "layers":
            add({"tok_embeddings": "model.embed_tokens.weight", "norm": "model.norm.weight",
                 "output": "lm_head.weight"}[parts[0]], tensors)
            continue
        prefix = f"model.layers.{parts[1]}."
        if parts[-2] == "wqkv":
            split = {key: rearrange(tensor, "(h gs d) c -> gs h d c", h=groups, d=size)
                     for key, tensor in tensors.items()}
            q = {k: rearrange(t[:-2], "gs h d c -> (h gs d) c") for k, t in split.items()}
            for letter, one in (("q", q),
                                ("k", {k: t[-2].flatten(0, 1) for k, t in split.items()}),
                                ("v", {k: t[-1].flatten(0, 1) for k, t in split.items()})):
                if letter != "v":
                    one = {k: halves(t) for k, t in one.items()}
                add(prefix + f"self_attn.{letter}_proj.weight", one)
        elif parts[-2] in ("wq", "wk"):
            add(prefix + f"self_attn.{parts[-2][1]}_proj.weight",
                {k: halves(t) for k, t in tensors.items()})
        else:
            add(prefix + simple[parts[-2]] + ".weight", tensors)
    return result


def sampler_after(steps, dp):
    """InternEvo's sampler after steps of 4 of 20 samples for each data-parallel rank: those of two
    ranks begin a second epoch. As in load_new_batch()."""
    sampler = StaticBatchSampler([range(20)], batch_size=4, rampup_batch_size=None, micro_bsz=1,
                                 seed=1024, data_rank=0, data_world_size=dp)
    batches = iter(sampler)
    for _ in range(steps):
        try:
            next(batches)
        except StopIteration:
            sampler.batch_count = sampler.num_consumed_samples_in_epoch = 0
            batches = iter(sampler)
            next(batches)
    return sampler


def write(name, full, kind, model, tp=1, pp=1, dp=1, zero=1, fp32_norm=False, wp=False):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    ranks = Ranks(tp, pp, dp, zero)
    if wp:
        ranks.mode = "isp"
        ranks.sizes[ParallelMode.WEIGHT] = tp
    starts = partition_uniform(model["num_layers"], pp, model.get("num_chunks", 1))
    for rank in range(tp * pp * dp):
        ranks.go_to(rank)
        wrapped, chunks = build(ranks, kind, model, fp32_norm)
        tensor_rank = ranks.ranks[ParallelMode.TENSOR]
        values = {}  # by id of the parameter
        for chunk, (start, _) in zip(chunks, starts[ranks.ranks[ParallelMode.PIPELINE]]):
            for local_name, parameter in chunk.named_parameters():
                parts = local_name.split(".")
                if parts[0] == "layers":
                    parts[1] = str(int(parts[1]) + start)
                values[id(parameter)] = {
                    key: local_part(tensor, parameter.shape, tensor_rank)
                    for key, tensor in full[".".join(parts)].items()}
        with torch.no_grad():
            for parameter in wrapped.parameters():
                parameter.copy_(values[id(parameter)]["weight"])
        adam = torch.optim.AdamW(params=create_param_groups(wrapped, 0.01), lr=1e-3,
                                 betas=(0.9, 0.95), eps=1e-8)
        scaler = dict(fp16=dict(initial_scale=2**16, min_scale=1, growth_interval=1000),
                      growth_factor=2, backoff_factor=0.5, max_scale=2**24, hysteresis=2)
        optimizer = HybridZeroOptimizer(
            adam, grad_scal_cfg=Config(scaler),
            zero_cfg=Config(dict(overlap_sync_grad=False, overlap_sync_param=False,
                                 reduce_bucket_size=2**20, clip_grad_norm=1.0)))
        for group, flat in optimizer._fp32_flat_param_groups_of_current_rank.items():
            owned = optimizer._param_store.get_fp16_params_by_rank_group(
                optimizer.zero_local_rank[group], group)

            def flatten(key):
                return torch.cat([values[id(p)][key].reshape(-1) for p in owned])

            with torch.no_grad():
                flat.copy_(flatten("weight"))
            adam.state[flat] = {"step": torch.tensor(float(STEP)), "exp_avg": flatten("exp_avg"),
                                "exp_avg_sq": flatten("exp_avg_sq")}
        train_state = TrainState(gpc.config, sampler_after(STEP, dp))
        train_state.batch_count, train_state.step_count = STEP - 1, STEP
        train_state.num_consumed_tokens = STEP * 4 * 24 * dp
        scheduler = torch.optim.lr_scheduler.ConstantLR(adam, factor=1.0)
        scheduler.last_epoch = STEP
        saver = types.SimpleNamespace(
            set_save_folder=lambda *_: None,
            storage_manager=storage_manager.get_storage_manager())
        gpc.config.parallel.tensor["mode"] = "mtp"
        inner = wrapped.model if hasattr(wrapped, "model") else wrapped
        manager.CheckpointManager.save_checkpoint(
            saver, folder=f"local:{folder}", model=inner, optimizer=optimizer, scheduler=scheduler,
            train_state=train_state, model_config=gpc.config.model, model_config_file="model = ...")
    for file in folder.glob("*_tp*") if wp else []:
        if not file.name.startswith("gpus"):
            file.rename(folder / file.name.replace("_tp", "_wp"))


# ------------------------------------------------------------------------------- universal folders

class GlobalPlanner(torch.distributed.checkpoint.DefaultSavePlanner):
    """Writes parts of tensors, as InternEvo's planner does."""

    def __init__(self, boxes):
        super().__init__(flatten_state_dict=False)
        self.boxes = boxes  # name: (key in the state dict, offset, whole shape)

    def create_local_plan(self):
        from torch.distributed.checkpoint import metadata, planner

        items = []
        for key, (name, offset, whole) in self.boxes.items():
            tensor = self.state_dict[key]
            items.append(planner.WriteItem(
                index=metadata.MetadataIndex(name, torch.Size(offset)),
                type=planner.WriteItemType.SHARD,
                tensor_data=planner.TensorWriteData(
                    chunk=metadata.ChunkStorageMetadata(torch.Size(offset), tensor.size()),
                    properties=metadata.TensorProperties.create_from_tensor(tensor),
                    size=torch.Size(whole))))
        self.plan = planner.SavePlan(items)
        return self.plan

    def lookup_object(self, index):
        for key, (name, offset, _) in self.boxes.items():
            if name == index.fqn and torch.Size(offset) == index.offset:
                return self.state_dict[key]
        raise KeyError(index)


def save_parts(folder, kind, model, tensors, tp):
    """One folder of DCP, whose tensors are those of `tp` ranks."""
    shapes = {}
    ranks = Ranks(tp, 1, 1, 1)
    _, (chunk,) = build(ranks, kind, model, False)
    for name, parameter in chunk.named_parameters():
        shapes[name] = parameter.shape
    state, boxes = {}, {}
    for name, (parameter, tensor) in tensors.items():
        shape = shapes[parameter]
        for rank in range(tp):
            offset = [0] * len(shape)
            for dim, extent in enumerate(shape):
                if extent != tensor.shape[dim]:
                    offset[dim] = rank * extent
            part = local_part(tensor, shape, rank).clone()
            state[f"{name}@{rank}"] = part
            boxes[f"{name}@{rank}"] = (name, offset, tensor.shape)
            if shape == tensor.shape:
                break
    torch.distributed.checkpoint.save(
        state, storage_writer=torch.distributed.checkpoint.FileSystemWriter(folder),
        planner=GlobalPlanner(boxes), no_dist=True)


def write_universal(name, full, kind, model, like):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rounded = {name: t["weight"] if "norm" in name else t["weight"].to(torch.bfloat16)
               for name, t in full.items()}
    save_parts(folder / "model", kind, model, {name: (name, t) for name, t in rounded.items()}, 2)
    states = {}
    for parameter, tensors in full.items():
        states[parameter] = (parameter, tensors["weight"])
        for moment in ("exp_avg", "exp_avg_sq"):
            states[f"{parameter}.{moment}"] = (parameter, tensors[moment])
    save_parts(folder / "optimizer", kind, model, states, 2)
    torch.save({"grad_scaler": {}, "step": torch.tensor(float(STEP)), "param_groups": []},
               folder / "global_optimizer_state.pt")
    for file in ("context.pt", "schedulder.pt", "sampler.pt", "model_config.pt", f"{STEP}.step"):
        shutil.copy(HERE / like / file, folder / file)


def main():
    scratch = tempfile.mkdtemp()
    storage_manager.init_storage_manager(True, scratch, False)
    full = full_state(InternLM2, MODEL)
    state = {name: dict(t, master=t["weight"], weight=t["weight"].to(torch.bfloat16))
             for name, t in full.items()}
    save_file(logical_names(state, MODEL), HERE / "state.safetensors")
    write("tp1", full, InternLM2, MODEL)
    write("zo2", full, InternLM2, MODEL, dp=2, zero=2)
    write("tp2", full, InternLM2, MODEL, tp=2, dp=2)
    write("pp2", full, InternLM2, MODEL, pp=2)
    write("tp2_pp2_zo2", full, InternLM2, MODEL, tp=2, pp=2, dp=2, zero=2)
    write("wp2", full, InternLM2, MODEL, tp=2, wp=True)
    write("pp2_vpp2", full, InternLM2, dict(MODEL, num_chunks=2), pp=2)
    # Matrices of their own, rotary pairs, fp32 norms, or fp32 all over.
    llama = dict(MODEL, num_layers=2, qk_interleaved=True)
    del llama["max_position_embeddings"]
    full = full_state(Llama2, llama)
    state = {name: dict(t, master=t["weight"],
                        weight=t["weight"].to(torch.float32 if "norm" in name else torch.bfloat16))
             for name, t in full.items()}
    save_file(logical_names(state, llama), HERE / "llama.safetensors")
    write("llama_tp2_zo2", full, Llama2, llama, tp=2, dp=2, zero=2, fp32_norm=True)
    write("llama_fp32", full, Llama2, dict(llama, dtype=torch.float32))
    write_universal("llama_universal", full, Llama2, llama, "llama_tp2_zo2")
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
