"""Writes testdata/: state dicts in each form that paddle.save() has had, and damaged ones.

Needs numpy and paddlepaddle 2.6: python make_testdata.py
"""

import os
import pickle
import warnings

import numpy as np
import paddle
from paddle.framework import io_utils

warnings.simplefilter("ignore")
out = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "testdata")
os.makedirs(out, exist_ok=True)
a = np.arange(12, dtype="float32").reshape(3, 4)
b = np.arange(5, dtype="float32")


def path(name):
    return os.path.join(out, name)


def named(array, name):
    tensor = paddle.to_tensor(array)
    tensor.name = name
    return tensor


def write(name, value, protocol=4):
    with open(path(name), "wb") as f:
        pickle.dump(value, f, protocol=protocol)


# A dict of tensors: arrays and a table of their names.
paddle.save({"a": named(a, "linear_0.w_0"), "b": named(b, "linear_0.b_0")},
            path("weights.pdparams"))
# A dict of tensors and other things: pairs of names and arrays.
paddle.save({"linear_0.w_0_moment1_0": named(a, "linear_0.w_0_moment1_0"),
             "master_weights": {"linear_0.w_0": named(a + 1, "linear_0.w_0_fp32_master_0")},
             "LR_Scheduler": {"last_epoch": 7, "last_lr": 0.1}}, path("states.pdopt"))
paddle.save({"a": named(a, "x").astype("bfloat16")}, path("bfloat16.pdparams"))
paddle.save({}, path("empty.pdparams"))

# Protocol 3 divides arrays beyond 1 GiB: here, beyond 20 bytes.
big = {"a@@.0": a.reshape(-1)[:5], "a@@.1": a.reshape(-1)[5:10], "a@@.2": a.reshape(-1)[10:],
       "b": b, "StructuredToParameterName@@": {"a": "linear_0.w_0"},
       "UnpackBigParamInfor@@": {
           "a": {"OriginShape": a.shape, "slices": ["a@@.0", "a@@.1", "a@@.2"]}}}
assert np.array_equal(io_utils._pack_loaded_dict(dict(big))["a"], a)
write("parts.pdparams", big, protocol=3)
write("protocol2.pdparams", {"a": a}, protocol=2)
write("protocol5.pdparams", {"a": a, "f": np.asfortranarray(a)}, protocol=5)
write("fortran.pdparams", {"a": np.asfortranarray(a)})

with open(path("weights.pdparams"), "rb") as f:
    good = f.read()


def damaged(name, old, new):
    assert good.count(old) >= 1
    with open(path(name), "wb") as f:
        f.write(good.replace(old, new, 1))


damaged("bad_shape.pdparams", b"K\x03K\x04\x86", b"K\x03K\x05\x86")
damaged("bad_big_endian.pdparams", b"\x8c\x01<", b"\x8c\x01>")
damaged("bad_dtype.pdparams", b"\x8c\x02f4", b"\x8c\x02V4")
del big["a@@.1"]
write("bad_part.pdparams", big)
write("bad_root.pdparams", [a])
