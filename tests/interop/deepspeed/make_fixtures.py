"""Writes the checkpoints in this folder with DeepSpeed, and what they hold, gathered by DeepSpeed.

    python make_fixtures.py [NAME...]

Needs torch, transformers, safetensors and deepspeed 0.19; trains on the CPU over gloo. Each folder
has what DeepSpeedEngine.save_checkpoint() writes, the model's config.json, and
expected.safetensors: the fp32 weights that zero_to_fp32 gathers under the parameters' names, Adam's
moments, gathered from the running engines, as NAME.exp_avg and NAME.exp_avg_sq, and the weights
that the engines compute with as NAME.module, where they are not the fp32 weights.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 3

GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2, "n_embd": 8,
        "n_head": 2, "n_positions": 12, "vocab_size": 29, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
LLAMA3 = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2,
          "hidden_size": 8, "intermediate_size": 24, "num_attention_heads": 2,
          "num_key_value_heads": 1, "max_position_embeddings": 12, "vocab_size": 29,
          "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "attention_bias": False,
          "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None}
# Two groups of queries, for two tensor-parallel ranks.
LLAMA3_GQA = dict(LLAMA3, num_attention_heads=4, num_key_value_heads=2)

# Name: model, number of ranks, configuration of DeepSpeed.
LAYOUTS = {
    "zero1": (GPT2, 2, {"zero_optimization": {"stage": 1}}),
    "zero2_bf16": (GPT2, 3, {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}),
    "bf16_optimizer": (GPT2, 2, {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True},
                                 "data_types": {"grad_accum_dtype": "fp32"}}),
    "zero3_bf16": (LLAMA3, 3, {"zero_optimization": {"stage": 3, "sub_group_size": 300,
                                                     "stage3_param_persistence_threshold": 0},
                               "bf16": {"enabled": True}}),
    "zero3": (GPT2, 2, {"zero_optimization": {"stage": 3}}),
    "zero3_bf16_gqa": (LLAMA3_GQA, 3, {
        "zero_optimization": {"stage": 3, "sub_group_size": 300,
                              "stage3_param_persistence_threshold": 0},
        "bf16": {"enabled": True}}),
}
# Name: the parameter that is not trained.
FROZEN = {"zero3_bf16": "model.norm.weight"}
# Name: the layout that it is converted from.
UNIVERSAL = {"universal": "zero2_bf16", "universal_zero1": "zero1",
             "universal_zero3": "zero3_bf16_gqa"}


def new_model(config):
    import torch
    import transformers

    torch.manual_seed(1)
    kind = transformers.AutoConfig.for_model(config["model_type"])
    kind = type(kind).from_dict(config)
    model = transformers.AutoModelForCausalLM.from_config(kind)
    # No parameter is all zeros or ones.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape)
    return model


def train(name, rank):
    import deepspeed
    import torch
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    # An extension that would be compiled first, for faster messages.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None

    model_config, ranks, config = LAYOUTS[name]
    config = dict(config, train_micro_batch_size_per_gpu=1, gradient_accumulation_steps=1,
                  zero_allow_untested_optimizer=True)
    deepspeed.init_distributed("gloo")
    model = new_model(model_config)
    if name in FROZEN:
        model.get_parameter(FROZEN[name]).requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    torch.manual_seed(10 + rank)
    for _ in range(STEPS):
        ids = torch.randint(0, 29, (1, 12))
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    folder = HERE / name
    engine.save_checkpoint(str(folder))
    if hasattr(engine.optimizer, "_hp_optimizer_states_linked"):
        # The engine links its moments before they exist.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    # The BF16_Optimizer's checkpoints are not read by zero_to_fp32.
    gathers_weights = type(engine.optimizer).__name__ == "BF16_Optimizer"
    weights, moments = {}, {}
    for parameter_name, parameter in engine.module.named_parameters():
        if gathers_weights:
            weights[parameter_name] = safe_get_full_fp32_param(parameter).clone()
        for key in ("exp_avg", "exp_avg_sq") if parameter.requires_grad else ():
            state = safe_get_full_optimizer_state(parameter, key)
            if rank == 0:
                moments[f"{parameter_name}.{key}"] = state.clone().contiguous()
    torch.distributed.barrier()
    if rank == 0:
        write_expected(folder, engine, weights, moments)
        (folder / "config.json").write_text(json.dumps(model_config, indent=1) + "\n")
    torch.distributed.barrier()


def write_expected(folder, engine, weights, moments):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from safetensors.torch import save_file

    module = {n: p for n, p in engine.module.named_parameters()}
    if not weights:
        weights = get_fp32_state_dict_from_zero_checkpoint(str(folder))
    expected = {n: w.clone().contiguous() for n, w in weights.items() if n in module}
    expected.update(moments)
    if engine.zero_optimization_stage() < 3:
        for n, p in module.items():
            if p.dtype != expected[n].dtype:
                expected[n + ".module"] = p.detach().clone().contiguous()
    save_file(expected, folder / "expected.safetensors")


def make(name):
    shutil.rmtree(HERE / name, ignore_errors=True)
    ranks = LAYOUTS[name][1]
    children = []
    for rank in range(ranks):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29500 + os.getpid() % 1000),
                           DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
        children.append(subprocess.Popen([sys.executable, __file__, "--rank", name, str(rank)],
                                         env=environment))
    assert [child.wait() for child in children] == [0] * ranks, name
    for script in (HERE / name).glob("zero_to_*.py"):
        script.unlink()


def make_universal(name, source):
    shutil.rmtree(HERE / name, ignore_errors=True)
    (HERE / name).mkdir()
    tag = (HERE / source / "latest").read_text()
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
                    str(HERE / source / tag), "--output_folder", str(HERE / name / tag),
                    "--num_extract_workers=1", "--num_merge_workers=1", "--inject_missing_state"],
                   check=True, env=dict(os.environ, DS_ACCELERATOR="cpu"))
    for file in ("config.json", "expected.safetensors"):
        shutil.copy(HERE / source / file, HERE / name / file)


def main():
    if sys.argv[1:2] == ["--rank"]:
        train(sys.argv[2], int(sys.argv[3]))
        return
    names = sys.argv[1:] or [*LAYOUTS, *UNIVERSAL]
    for name in names:
        if name in LAYOUTS:
            make(name)
        else:
            make_universal(name, UNIVERSAL[name])


if __name__ == "__main__":
    main()
