"""Writes checkpoints in this folder with old releases of megatron-core, on the CPU.

PYTHONPATH=/path/to/megatron-core-0.11 make_old_fixtures.py FOLDER flat_gpt2_dp2_tp2
PYTHONPATH=/path/to/megatron-core-0.10 make_old_fixtures.py FOLDER flat_buckets_gpt2_dp2

They expect numpy and torch of their time: what they miss of newer ones is made up for here.
"""

import numpy
import torch
import torch.distributed.checkpoint.filesystem as torch_files

numpy.product = numpy.prod
write_item = torch_files._write_item


def write_new_item(stream, data, item, key):
    if isinstance(data, torch.Tensor):
        data = data.clone()  # without the rest of its storage
    return write_item(torch_files._StorageWriterTransforms(), stream, data, item, key,
                      torch_files.SerializationFormat.TORCH_SAVE)


torch_files._write_item = write_new_item

import make_fixtures  # noqa: E402  (megatron-core takes what is there when it is imported)
from megatron.core.optimizer import distrib_optimizer  # noqa: E402


def states_of(self, parameter):
    group, order = self.model_param_group_index_map[parameter]
    main = self.optimizer.param_groups[group]["params"][order]
    return {"param": main, **self.optimizer.state[main]}


def use_apex(kind):
    """Release 0.10 wants the Adam of Apex, which has no step for each parameter."""
    fill_optimizer = make_fixtures.fill_optimizer

    def fill(inner, states, distributed):
        fill_optimizer(inner, states, distributed)
        for state in inner.optimizer.state.values():
            del state["step"]

    distrib_optimizer.HAVE_APEX_OR_TE = True
    kind._get_main_param_and_optimizer_states = states_of
    make_fixtures.fill_optimizer = fill


if not hasattr(distrib_optimizer.DistributedOptimizer, "_get_main_param_and_optimizer_states"):
    use_apex(distrib_optimizer.DistributedOptimizer)

make_fixtures.CHECKPOINTS = [
    ("flat_gpt2_dp2_tp2", "gpt2", dict(dp=2, tp=2, sharding="fully_sharded_model_space")),
    ("flat_buckets_gpt2_dp2", "gpt2",
     dict(dp=2, bucket_size=1024, sharding="fully_sharded_bucket_space")),
]

if __name__ == "__main__":
    make_fixtures.main()
