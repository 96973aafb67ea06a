"""Writes the checkpoint flat_gpt2_dp2_tp2 in this folder with megatron-core 0.11, on the CPU.

PYTHONPATH=/path/to/megatron-core-0.11 make_old_fixtures.py FOLDER

That release expects numpy and torch of its time: what it misses of newer ones is made up for here.
"""

import numpy
import torch.distributed.checkpoint.filesystem as torch_files

numpy.product = numpy.prod
write_item = torch_files._write_item
torch_files._write_item = lambda stream, data, item, key: write_item(
    torch_files._StorageWriterTransforms(), stream, data, item, key,
    torch_files.SerializationFormat.TORCH_SAVE)

import make_fixtures  # noqa: E402  (megatron-core takes what is there when it is imported)

make_fixtures.CHECKPOINTS = [
    ("flat_gpt2_dp2_tp2", "gpt2", dict(dp=2, tp=2, sharding="fully_sharded_model_space")),
]

if __name__ == "__main__":
    make_fixtures.main()
