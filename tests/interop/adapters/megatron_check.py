"""Models and optimizers of Megatron-Core, over gloo and without a GPU: saved at one tensor and
pipeline parallelism, loaded at others.

  megatron_check.py
"""

import os
import socket
import subprocess
import sys
import tempfile

import megatron.core
import tessera_ckpt
import tessera_ckpt.megatron
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import (ShardedObject, ShardedTensor,
                                                      is_main_replica)
from megatron.core.dist_checkpointing.optimizer import (get_param_id_to_sharded_param_map,
                                                        optim_state_to_sharding_state)
from megatron.core.dist_checkpointing.validation import StrictHandling
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig

VOCABULARY = 96


def build(tp, pp, vocabulary=VOCABULARY):
    """A model and its optimizer, whose state is not that of a new one."""
    config = TransformerConfig(num_layers=4, hidden_size=32, num_attention_heads=4,
                               use_cpu_initialization=True, tensor_model_parallel_size=tp,
                               pipeline_model_parallel_size=pp, pipeline_dtype=torch.float32)
    model = GPTModel(config, get_gpt_layer_local_spec(), vocabulary, 16,
                     pre_process=parallel_state.is_pipeline_first_stage(),
                     post_process=parallel_state.is_pipeline_last_stage(),
                     share_embeddings_and_output_weights=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 0.1 + number)
        parameter.grad += torch.rand(parameter.shape)
    optimizer.step()
    return model, optimizer


def sharded(model, optimizer, step):
    weights = model.sharded_state_dict()
    moments = optimizer.state_dict()
    optim_state_to_sharding_state(
        moments, get_param_id_to_sharded_param_map(weights, model.parameters()),
        exclude_keys=("step",))
    rank, size = dist.get_rank(), dist.get_world_size()
    return {"model": weights, "optimizer": moments, "iteration": step,
            "rng": ShardedObject("rng", {"rank": rank, "state": torch.arange(3) + rank}, (size,),
                                 (rank,))}


def whole(state, replicas=True):
    """What all ranks have, each tensor by its key. Collective."""
    mine = {}
    for each in dist_checkpointing.dict_utils.nested_values(state):
        if isinstance(each, ShardedTensor) and (replicas or is_main_replica(each.replica_id)):
            mine[each.key, tuple(each.global_offset)] = (
                each.data.clone(), each.global_shape, each.prepend_axis_num)
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    found = {}
    for (key, offset), (data, shape, prepend) in (pair for m in gathered for pair in m.items()):
        target = found.setdefault(key, torch.full(shape, float("nan")))
        box = data.view((1,) * prepend + data.shape)
        target[tuple(slice(o, o + n) for o, n in zip(offset, box.shape))] = box
    assert all(not value.isnan().any() for value in found.values())
    return found


def rank(phase, tp, pp, folder):
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(int(tp), int(pp))
    torch.manual_seed(dist.get_rank() + (phase == "save") * 100)
    model, optimizer = build(int(tp), int(pp))
    place = f"{folder}/iter_0000007"
    if phase == "save":
        state = sharded(model, optimizer, 7)
        golden = whole(state, replicas=False)  # Megatron saves one, whatever the others have
        if dist.get_rank() == 0:
            os.makedirs(place)
            torch.save(golden, f"{folder}/golden")
        dist.barrier()
        dist_checkpointing.save(state, place, ("tessera_ckpt", 1))
        tensors = tessera_ckpt.open(place).tensors
        for name, value in golden.items():
            assert tuple(value.shape) == tensors[name].shape, name
        assert tessera_ckpt.latest(place).step == 7
    else:
        golden = torch.load(f"{folder}/golden")
        state = sharded(model, optimizer, 0)
        before = state["rng"]
        if dist.get_world_size() != 4:
            del state["rng"]  # Megatron's objects are those of so many ranks
        loaded, left_out, not_saved = dist_checkpointing.load(state, place,
                                                              strict=StrictHandling.RETURN_ALL)
        assert left_out == ({"rng"} if dist.get_world_size() != 4 else set()), left_out
        assert not not_saved and loaded["iteration"] == 7, not_saved
        model.load_state_dict(loaded["model"])
        for each in loaded["optimizer"]["state"].values():
            each["step"] = torch.tensor(1.0)  # Megatron has one for all
        optimizer.load_state_dict(loaded["optimizer"])
        found = whole(sharded(model, optimizer, 7))
        assert found.keys() == golden.keys()
        assert all(torch.equal(found[name], value) for name, value in golden.items())
        if dist.get_world_size() == 4:
            assert loaded["rng"]["rank"] == before.data["rank"] == dist.get_rank()
            assert torch.equal(loaded["rng"]["state"], torch.arange(3) + dist.get_rank())
        # A vocabulary with more padding has zeros there, as Megatron's own loads make them.
        name = "embedding.word_embeddings.weight"
        padded = ShardedTensor.from_rank_offsets(
            name, torch.full((VOCABULARY + 8, 32), 5.0), replica_id=dist.get_rank(),
            allow_shape_mismatch=True)
        dist_checkpointing.load({"w": padded}, place, validate_access_integrity=False)
        assert torch.equal(padded.data[:VOCABULARY], golden[name]), name
        assert (padded.data[VOCABULARY:] == 0).all(), padded.data[VOCABULARY:]
        plain = dist_checkpointing.load_plain_tensors(place)
        assert all(torch.equal(plain[name], value) for name, value in golden.items())
        if dist.get_rank() == 0:
            print(f"loaded at tp{tp}_pp{pp} of {dist.get_world_size()}: {len(golden)} tensors "
                  "equal", flush=True)
    dist.destroy_process_group()


def run(size, *arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1",
                  WORLD_SIZE=str(size))
    processes = [subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, *map(str, arguments)],
        env=dict(common, RANK=str(i), LOCAL_RANK=str(i))) for i in range(size)]
    codes = [process.wait(timeout=300) for process in processes]
    assert codes == [0] * size, (arguments, codes)


def main():
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        run(4, "save", 2, 2, folder)
        run(4, "load", 2, 2, folder)
        run(2, "load", 1, 2, folder)
        run(1, "load", 1, 1, folder)
        run(4, "load", 4, 1, folder)
        assert tessera_ckpt.verify(f"{folder}/iter_0000007", digests=True)
    print(f"megatron-core {megatron.core.__version__}, torch {torch.__version__}: all good")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank(*sys.argv[1:])
    else:
        main()
