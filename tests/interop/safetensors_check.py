"""The data files of a checkpoint, read by the safetensors Python package.

  safetensors_check.py CHECKPOINT_DIRECTORY    checks the golden state (tests/golden/golden_state.h)
  safetensors_check.py --write FILE            writes the file that python_written_test reads
"""

import glob
import os
import re
import sys

import safetensors
import torch
from safetensors.torch import save_file

# Name, dtype, shape, in the order of golden_state.h.
GOLDEN = [
    ("wte.weight", torch.bfloat16, (7, 4)),
    ("h.0.mlp.weight", torch.float32, (5, 6)),
    ("h.0.mlp.bias", torch.float32, (5,)),
    ("h.0.mask", torch.uint8, (3,)),
    ("steps", torch.int64, ()),
    ("exp_avg.h.0.mlp.weight", torch.float32, (5, 6)),
    ("master.wte.weight", torch.float32, (7, 4)),
]


def golden_value(index, dtype, shape):
    count = 1
    for extent in shape:
        count *= extent
    values = [((i * 3 + index * 5) % 31) * 0.5 for i in range(count)]
    return torch.tensor(values, dtype=torch.float64).to(dtype).reshape(shape)


def read_all(directory):
    """Whole tensors, put together from all files: name -> (tensor, elements found)."""
    shapes = {name: (dtype, shape) for name, dtype, shape in GOLDEN}
    found = {}
    for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
        with safetensors.safe_open(path, framework="pt") as file:
            for key in file.keys():
                value = file.get_tensor(key)
                match = re.fullmatch(r"(.*)@\[([0-9:,]*)\]", key)
                name = match.group(1) if match else key
                dtype, shape = shapes[name]
                assert value.dtype == dtype, (key, value.dtype)
                whole, elements = found.setdefault(name, [torch.zeros(shape, dtype=dtype), 0])
                box = ...
                if match:
                    ranges = [part.split(":") for part in match.group(2).split(",")]
                    box = tuple(slice(int(begin), int(end)) for begin, end in ranges)
                assert whole[box].shape == value.shape, (key, value.shape)
                whole[box] = value
                found[name][1] = elements + value.numel()
    return found


def check(directory):
    found = read_all(directory)
    for index, (name, dtype, shape) in enumerate(GOLDEN):
        whole, elements = found.pop(name)
        assert elements == whole.numel(), (name, elements)
        expected = golden_value(index, dtype, shape)
        assert torch.equal(whole, expected), (name, whole, expected)
        print(f"{name}: {elements} elements of {dtype} equal")
    assert not found, found


def write(path):
    tensors = {name: golden_value(i, dtype, shape) for i, (name, dtype, shape) in enumerate(GOLDEN)}
    save_file(tensors, path, metadata={"written_by": "safetensors " + safetensors.__version__})


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--write":
        write(sys.argv[2])
    elif len(sys.argv) == 2:
        check(sys.argv[1])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
