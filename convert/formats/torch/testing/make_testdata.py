"""Writes testdata/: files of torch.save(), each with its tensors in a safetensors file.

  make_testdata.py FOLDER

NAME.pt is read by read_test; NAME.safetensors holds the same tensors under the names that the
reader gives them. Needs numpy 2, torch and safetensors.
"""

import argparse
import collections
import io
import pathlib
import pickle
import struct
import sys
import tarfile
import zipfile

import numpy as np
import torch
from safetensors.torch import save_file

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def numbers(*shape, start=0):
    count = 1
    for extent in shape:
        count *= extent
    return (torch.arange(count, dtype=torch.float32) * 0.25 + start).reshape(shape)


def all_dtypes():
    values = torch.tensor([[0.0, 1.0, 2.0], [3.0, 5.0, 8.0]])
    return {str(dtype).removeprefix("torch."): values.to(dtype) for dtype in DTYPES}


def views():
    base = numbers(6, 4)
    channels = numbers(2, 3, 4, 5).to(memory_format=torch.channels_last)
    return {
        "base": base,
        "transposed": base.t(),
        "rows": base[2:5],
        "columns": base[:, 1:3],
        "every_second": base[::2],
        "one": base[3, 2],
        "same": base,
        "same_again": base[:],
        "flat": base.view(-1),
        "channels_last": channels,
        "permuted": numbers(2, 3, 4).permute(2, 0, 1),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(1.5),
    }


def training():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2, bias=False)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    state = model.state_dict()
    state["tied.weight"] = state["0.weight"]
    return {
        "model": state,
        "optimizer": optimizer.state_dict(),
        "parameters": list(model[2].parameters()),
        "args": argparse.Namespace(lr=1e-3, layers=[1, 2]),
        "step": 2,
        "losses": [0.5, 0.25],
        "shape": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "defaults": collections.defaultdict(list, {"tensors": [torch.ones(2)]}),
        "rng": torch.get_rng_state()[:16].clone(),
        (1, 2): "a key that is a tuple",
    }


def before_0_1_10():
    base = numbers(6, 4)
    return collections.OrderedDict(
        weight=base,
        transposed=base.t(),
        columns=base[:, 1:3],
        rows=base[2:5],
        same=base,
        bias=numbers(3, start=2.5).double(),
        steps=torch.arange(5),
        half=numbers(2).half(),
        mask=torch.tensor([1, 0, 1], dtype=torch.uint8),
        nested={"step": 7, "moments": [numbers(2, 2), numbers(1)]},
    )


def unread():
    return {
        "good": numbers(2),
        "complex": torch.zeros(2, dtype=torch.complex64),
        "sparse": torch.eye(3).to_sparse(),
        "quantized": torch.quantize_per_tensor(numbers(3), 0.1, 0, torch.qint8),
        "expanded": numbers(1).expand(1000, 1000),
        "negated": torch.zeros(2, dtype=torch.complex64).conj().imag,
    }


def modules():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Sequential(torch.nn.BatchNorm1d(3)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(numbers(*parameter.shape))
    model.tied = model[0]
    return {"model": model, "step": 3, "rest": [{"layer": model[1]}], "good": numbers(2),
            "first": model[0].weight.detach()}


def hidden():
    """Tensors in what is left out: entries with other keys, sets, arrays of objects, a storage, and
    objects that are nested deep."""
    def nested(innermost):
        for _ in range(300):
            innermost = [innermost]
        return argparse.Namespace(lists=innermost)

    objects = np.empty(2, object)
    objects[1] = numbers(2)
    return {"keys": {("a", 1): numbers(2), 1.5: {"w": numbers(3)}, "known": numbers(1)},
            "set": {numbers(2)}, "objects": objects, "storage": numbers(2).untyped_storage(),
            "deep": nested(numbers(2)), "deep_values": nested(5)}


def of_numpy():
    matrix = np.arange(6.0).reshape(2, 3)
    return {
        "metrics": {"loss": np.float64(2.5), "scale": np.float32(0.1), "half": np.float16(-1.5),
                    "negative": np.int64(-3), "byte": np.uint8(200), "good": np.bool_(True)},
        "rng": np.random.RandomState(0).get_state(),
        "matrix": matrix,
        "fortran": np.asfortranarray(matrix),
        "zero_dim": np.array(7, "int32"),
        "empty": np.zeros((0, 2)),
        "mask": np.array([True, False]),
        "large": np.uint64(2**63),
        "complex": np.complex64(1j),
        "time": np.datetime64("2026-11-30"),
        "big_endian": np.arange(3, dtype=">i4"),
        "times": np.array(["2026-11-30"], "datetime64[D]"),
        "objects": np.array([None, 1], object),
        "texts": np.array(["a"]),
    }


def flatten(value, name=""):
    """The tensors of nested containers under dotted names."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "bfiu" and value.dtype.isnative:
        value = torch.from_numpy(value.copy("C"))
    if isinstance(value, torch.Tensor):
        yield name or "tensor", value
    elif isinstance(value, (dict, list, tuple)) and not isinstance(value, torch.Size):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in items:
            if isinstance(key, (str, int)):
                yield from flatten(child, f"{name}.{key}" if name else str(key))


def twin(value, path):
    tensors = {name: t.detach().contiguous().clone() for name, t in flatten(value)}
    save_file(tensors, path)


def repack(source, target, change):
    """The zip archive with its members changed by a function of name and data."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for member in old.infolist():
            for name, data in change(member.filename, old.read(member)):
                new.writestr(zipfile.ZipInfo(name), data)


def write_tar(value, path):
    """A file as torch.save() wrote it before version 0.1.10, in the layout that torch.load() reads:
    sys_info, pickle, tensors and storages in a tar archive, keys as texts in the pickle."""
    tensors, storages, views = {}, {}, []

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):  # pylint: disable=arguments-renamed
            if not isinstance(obj, torch.Tensor):
                return None
            key = next((k for k, t in tensors.items() if t is obj), 94000000000000 + len(tensors))
            tensors[key] = obj
            return str(key)

    def dump(obj, protocol=2):
        return pickle.dumps(obj, protocol=protocol)

    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(value)
    described = dump(len(tensors))
    for key, tensor in tensors.items():
        storage = tensor.untyped_storage()
        storage_key = 7 + storage.data_ptr()
        elements = storage.nbytes() // tensor.element_size()
        kind = {torch.float32: "Float", torch.float64: "Double", torch.int64: "Long",
                torch.float16: "Half", torch.uint8: "Byte"}[tensor.dtype]
        # A class of torch's own name, pickled by its name alone.
        head = dump((storage_key, "cpu", getattr(torch, kind + "Storage")))
        storages[storage_key] = head + struct.pack("<q", elements) + bytes(storage.tolist())
        first = tensor.storage_offset()
        if first >= 8:  # one that shows a part of another storage
            views.append((storage_key + 1, storage_key, 8, elements - 8))
            storage_key, first = storage_key + 1, first - 8
        described += dump((key, storage_key, getattr(torch, kind + "Tensor")))
        described += struct.pack("<i4x", tensor.dim())
        described += struct.pack(f"<{tensor.dim()}q", *tensor.shape)
        described += struct.pack(f"<{tensor.dim()}q", *tensor.stride())
        described += struct.pack("<q", first)
    members = {
        "sys_info": dump({"protocol_version": 1000, "little_endian": True,
                          "type_sizes": {"short": 2, "int": 4, "long": 8}}),
        "pickle": buffer.getvalue(),
        "tensors": described,
        "storages": dump(len(storages)) + b"".join(storages.values()) + dump(views),
    }
    with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as tar:
        for name, contents in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            info.mtime = 1485000000.25  # a fraction, as of a file: Python adds a record of times
            tar.addfile(info, io.BytesIO(contents))


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for name, value in {
        "dtypes": all_dtypes(),
        "views": views(),
        "training": training(),
        "root": numbers(3, 2),
        "listed": [numbers(2), (numbers(3), {"x": numbers(4)})],
    }.items():
        torch.save(value, folder / f"{name}.pt")
        twin(value, folder / f"{name}.safetensors")
        if name == "dtypes":  # torch cannot load the new dtypes from the old form
            new = ("uint1", "uint3", "uint6", "float8")
            value = {n: t for n, t in value.items() if not n.startswith(new)}
        torch.save(value, folder / f"{name}_legacy.pt", _use_new_zipfile_serialization=False)
        twin(value, folder / f"{name}_legacy.safetensors")
        loaded = torch.load(folder / f"{name}_legacy.pt", weights_only=False)
        assert [n for n, _ in flatten(loaded)] == [n for n, _ in flatten(value)]
    torch.save(numbers(3, 2), folder / "protocol4.pt", pickle_protocol=4)
    twin(numbers(3, 2), folder / "protocol4.safetensors")
    for protocol in (4, 5):
        torch.save(numbers(3, 2), folder / f"legacy_protocol{protocol}.pt",
                   pickle_protocol=protocol, _use_new_zipfile_serialization=False)
        twin(numbers(3, 2), folder / f"legacy_protocol{protocol}.safetensors")
    for protocol in (2, 4, 5):
        torch.save({f"{kind}{len(data)}": make(data) for kind, make in
                    (("bytes", bytes), ("array", bytearray)) for data in (b"", b"\0\xff")},
                   folder / f"bytes_protocol{protocol}.pt", pickle_protocol=protocol)
    for protocol in (2, 5):
        torch.save(of_numpy(), folder / f"numpy_protocol{protocol}.pt", pickle_protocol=protocol)
        twin(of_numpy(), folder / f"numpy_protocol{protocol}.safetensors")
    # By the names of numpy 1.
    repack(
        folder / "numpy_protocol2.pt",
        folder / "numpy1.pt",
        lambda n, d: [(n, d.replace(b"numpy._core.", b"numpy.core."))],
    )
    twin(of_numpy(), folder / "numpy1.safetensors")
    # Python's zipfile writes sizes into local headers, where torch writes them after the data.
    repack(folder / "views.pt", folder / "python_zip.pt", lambda n, d: [(n, d)])
    twin(views(), folder / "python_zip.safetensors")
    old = before_0_1_10()
    write_tar(old, folder / "before_0_1_10.pt")
    twin(old, folder / "before_0_1_10.safetensors")
    loaded = dict(flatten(torch.load(folder / "before_0_1_10.pt", weights_only=False)))
    assert {n: t.tolist() for n, t in loaded.items()} == {n: t.tolist() for n, t in flatten(old)}
    torch.save(unread(), folder / "unread.pt")
    torch.save(modules(), folder / "modules.pt")
    torch.save(hidden(), folder / "hidden.pt", pickle_protocol=4)
    same = numbers(2)
    nested = {"b.c": same, "d.e": numbers(2)}
    torch.save({"a": nested, "a.b": {"c": same}, "a.d": {"e": numbers(3)}},
               folder / "namesakes.pt")
    torch.save({1: numbers(2), "1": numbers(3), "": numbers(1), "below": {"": numbers(4)}},
               folder / "names.pt")
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(folder / "torchscript.pt"))
    repack(folder / "root.pt", folder / "exported.pt",
           lambda n, d: [(n.replace("data.pkl", "archive_format"), b"pt2")])
    repack(
        folder / "root.pt",
        folder / "big_endian.pt",
        lambda n, d: [(n, b"big" if n.endswith("byteorder") else d)],
    )
    # The tensor says that its storage has more elements than there are bytes.
    def cut_storage(name, data):
        return [(name, data[:-1] if "/data/" in name else data)]

    repack(folder / "root.pt", folder / "short_storage.pt", cut_storage)
    repack(
        folder / "root.pt",
        folder / "no_storage.pt",
        lambda n, d: [] if "/data/" in n else [(n, d)],
    )
    # Element 1 of shape [3, 2] with strides [2, 1] reaches beyond 6 elements.
    moved = b"QK\x01K\x03K\x02\x86"
    repack(
        folder / "root.pt",
        folder / "beyond_storage.pt",
        lambda n, d: [(n, d.replace(b"QK\x00K\x03K\x02\x86", moved))],
    )
    # Strides whose product with the shape does not fit 64 bits.
    strides = b"\x8a\x08" + struct.pack("<q", 2**62) + b"K\x01\x86"
    repack(
        folder / "root.pt",
        folder / "overflowing_strides.pt",
        lambda n, d: [(n, d.replace(b"K\x02K\x01\x86", strides))],
    )


if __name__ == "__main__":
    main()
