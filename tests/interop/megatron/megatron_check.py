"""megatron-core loads what `ckpt convert --to=megatron` writes.

megatron_check.py CKPT FIXTURES, where FIXTURES is this folder.
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.multiprocessing
from megatron.core import dist_checkpointing, parallel_state

import make_fixtures as fixtures


def without_extra_states(state):
    """Transformer Engine's states of its modules, which the modules of this model do not have."""
    return {key: value for key, value in state.items() if not key.endswith("_extra_state")}


def allow_steps(optimizer):
    """Lets the distributed optimizer load although torch's AdamW has a step for each parameter."""
    if not hasattr(optimizer, "_set_main_param_and_optimizer_states"):
        return
    set_states = optimizer._set_main_param_and_optimizer_states
    step = torch.tensor(float(fixtures.STEP))
    optimizer._set_main_param_and_optimizer_states = lambda parameter, states: set_states(
        parameter, {"step": step, **states})


def check_rank(rank, folder, port, model, layout):
    fixtures.start_rank(rank, port, layout)
    shape = fixtures.Shape(model)
    config, chunks = fixtures.build_model(shape, layout, torch.float32)
    expected = fixtures.fill(chunks, shape, layout, shape.values())
    _, optimizer = fixtures.build_optimizer(chunks, config, layout, torch.float32, expected)
    metadata = {"distrib_optim_sharding_type": "fully_reshardable",
                "chained_optim_avoid_prefix": True}
    (inner,) = optimizer.chained_optimizers
    allow_steps(inner)
    with torch.no_grad():
        for parameter in expected:
            parameter.zero_()
        for main, state in inner.optimizer.state.items():
            for tensor in (main, state["exp_avg"], state["exp_avg_sq"]):
                tensor.zero_()
    model_state = without_extra_states(chunks[0].sharded_state_dict(metadata=metadata))
    optimizer_state = optimizer.sharded_state_dict(model_state, is_loading=True, metadata=metadata)
    loaded = dist_checkpointing.load({"model": model_state, "optimizer": optimizer_state},
                                     str(folder))
    chunks[0].load_state_dict(loaded["model"], strict=False)
    optimizer.load_state_dict(loaded["optimizer"])
    assert loaded["iteration"] == fixtures.STEP
    assert loaded["args"].consumed_train_samples == fixtures.SAMPLES
    compared = 0
    for parameter, own in expected.items():
        assert torch.equal(parameter, own[""])
        if layout.dp > 1:
            place = inner._get_model_param_range_map(parameter)["param"] if (
                parameter in inner.model_param_gbuf_map) else None
            if place is None:
                continue
            found = inner._get_main_param_and_optimizer_states(parameter)
            for key, source in (("param", "master"), ("exp_avg", "exp_avg"),
                                ("exp_avg_sq", "exp_avg_sq")):
                assert torch.equal(found[key], own[source].reshape(-1)[place.start:place.end])
                compared += 1
        else:
            for key in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(inner.optimizer.state[parameter][key], own[key])
                compared += 1
    assert compared > 0
    torch.distributed.barrier()


def main():
    ckpt, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    fork = torch.multiprocessing.get_context("fork")
    cases = [("gpt2_tp2_pp2", "gpt2", dict()), ("gpt2_single", "gpt2", dict(tp=2, pp=2)),
             ("llama3_tied_pp2", "llama3_tied", dict(tp=2)),
             ("llama3_untied_dp2_tp2_pp2", "llama3_untied", dict(dp=2, pp=2))]
    for i, (name, model, sizes) in enumerate(cases):
        layout = fixtures.make_layout(**sizes)
        with tempfile.TemporaryDirectory() as scratch:
            ours, theirs = scratch + "/ours", scratch + "/theirs"
            subprocess.run([ckpt, "convert", folder / name, ours, "--to=tessera",
                            "--topology=tp2_pp2"], check=True)
            subprocess.run([ckpt, "convert", ours, theirs, "--to=megatron"], check=True)
            fixtures.run_ranks(fork, check_rank, layout, (theirs, 29700 + i, model, layout), name)
        print(f"{name}: megatron-core has what was written")


if __name__ == "__main__":
    main()
