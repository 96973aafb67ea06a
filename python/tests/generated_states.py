"""States of programs, made at random: containers, values, and tensors that share memory in every
way that numpy, and torch and JAX where they are installed, have."""

import collections
import dataclasses
import decimal
import enum
import functools
import math
import random
import time
import types
import typing

import numpy as np
from tessera_ckpt import Box, FlatShard

try:
    import torch
except ImportError:
    torch = None
try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = jnp = None

BASE_BYTES = 1 << 11


class Moments(typing.NamedTuple):
    count: typing.Any
    mu: typing.Any
    nu: typing.Any


Empty = collections.namedtuple("Empty", "")


def local_class():
    class Local(typing.NamedTuple):
        first: typing.Any
        second: typing.Any

    return Local


Local = local_class()  # which its name does not lead to


@dataclasses.dataclass
class Record:
    a: int = 1


class Color(enum.IntEnum):
    RED = 1


class Word(str):
    pass


class Items(tuple):
    pass


class Pair(collections.namedtuple("Pair", "a b")):
    pass


class OnlyDLPack:
    """A tensor of which nothing but DLPack is known."""

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def marked_pair():
    pair = Pair(1, 2)
    pair.more = 3
    return pair


# What a save refuses, by name.
REFUSED = [
    lambda: {1, 2}, lambda: frozenset(), object, Record, lambda: Color.RED, lambda: Word("x"),
    lambda: Items((1, 2)), lambda: decimal.Decimal(1), lambda: range(3), lambda: time.gmtime(0),
    marked_pair, lambda: memoryview(b"x"), lambda: np.str_("x"), lambda: np.datetime64("2020"),
    lambda: np.longdouble(1), lambda: np.array(["x"]), lambda: np.array([object()]),
    lambda: np.ones(3, ">f4"), lambda: np.ones(2, complex), lambda: np.ma.masked_array([1.0, 2.0]),
    lambda: np.zeros(3, [("a", "i1"), ("b", "f4")])["b"], lambda: collections.deque([1]),
    lambda: (collections.Counter("a"), 1), lambda: (collections.defaultdict(int),), lambda: len,
]
# Leaves that take elements from memory which others share, by dtype.
NUMPY_DTYPES = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "u2", "u4", "u8", "?")
TORCH_DTYPES = ()
if torch is not None:
    TORCH_DTYPES = tuple(getattr(torch, name) for name in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
        "bool", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
    ) if hasattr(torch, name))
    REFUSED += [
        lambda: torch.eye(3).to_sparse(), lambda: torch.ones(3, device="meta"),
        lambda: torch.ones(2, dtype=torch.complex64), lambda: torch.nn.Linear(1, 1),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.ones(2, 2).max(0), lambda: torch.float32, lambda: torch.device("cpu"),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch._efficientzerotensor(3), lambda: torch.nn.LazyLinear(3).weight,
    ]
if jax is not None:
    REFUSED += [lambda: jnp.ones(2, complex), lambda: jnp.bfloat16]


class Memory:
    """Pieces of memory, of which leaves show parts. Two with different contents have one layout.
    `device`: a FakeDevice, which has every other piece of torch's."""

    def __init__(self, seed, fill=None, device=None):
        self._random = random.Random(seed)
        self._fill, self._device = fill, device
        self.pieces = {}

    def bytes(self, kind, number):
        """A piece, as an array of bytes of that library; `kind` has "?" where they are 0 or 1."""
        key = kind, number
        if key not in self.pieces:
            data = bytearray(self._random.randbytes(BASE_BYTES) if self._fill is None else
                             bytes([self._fill]) * BASE_BYTES)
            if "?" in kind and self._fill is None:
                data = bytearray(byte & 1 for byte in data)
            array = np.frombuffer(data, "u1")
            if "torch" in kind:
                array = torch.from_numpy(array.copy())
            if self._is_on_device(key):
                self._device.put(array)
            self.pieces[key] = array
        return self.pieces[key]

    def _is_on_device(self, key):
        return self._device is not None and "torch" in key[0] and key[1] % 2 == 0

    def invert(self):
        """Changes all. What is on the device changes behind what was enqueued there."""
        for key, piece in self.pieces.items():
            if self._is_on_device(key):
                self._device.kernel(functools.partial(piece.bitwise_xor_, 255))
            else:
                piece ^= 255

    def contents(self):
        return {key: np.asarray(piece).tobytes() for key, piece in self.pieces.items()}


class Leaf:
    """A tensor to be made in a memory."""

    def __init__(self, kind, dtype, number, offset, shape, strides, form):
        self.kind, self.dtype, self.number, self.offset = kind, dtype, number, offset
        self.shape, self.strides, self.form = shape, strides, form

    def view(self, memory):
        """The elements, without what the form adds."""
        piece = memory.bytes(self.kind, self.number)
        if "torch" in self.kind:
            rest = piece[self.offset:]
            size = self.dtype.itemsize
            return rest[:rest.numel() // size * size].view(self.dtype).as_strided(
                self.shape, self.strides)
        size = np.dtype(self.dtype).itemsize
        return np.ndarray(self.shape, self.dtype, piece.data, self.offset,
                          tuple(stride * size for stride in self.strides))

    def make(self, memory):
        view = self.view(memory)
        if self.form == "negative":  # of a complex view
            return view.conj().imag
        if self.form == "real":
            return view.real
        if self.form == "imaginary":
            return view.imag
        if self.form == "parameter":
            return torch.nn.Parameter(view)
        if self.form == "gradient":
            return view.requires_grad_()
        if self.form == "read-only":
            view.flags.writeable = False
        elif self.form == "matrix":
            return view.view(np.matrix)
        elif self.form == "dlpack":
            return OnlyDLPack(view)
        elif self.form == "box":
            return Box(view, (0,) * view.ndim, view.shape)
        elif self.form == "flat":
            return FlatShard(view, 0, (1, view.size))
        elif self.form == "jax":
            return jnp.array(view)
        elif self.form == "jax weak":
            return jnp.asarray(float(memory.bytes(self.kind, self.number)[0]))
        elif self.form == "jax bf16":
            return jnp.array(view).view(jnp.bfloat16)
        return view

    @property
    def is_filled(self):
        """Whether a load writes into the memory."""
        return self.form != "read-only" and not self.form.startswith("jax")

    def mark(self, memory):
        """Sets all bits of the elements."""
        view = self.view(memory)
        if self.form in ("negative", "real", "imaginary"):
            view = view.real if self.form == "real" else view.imag
        if "torch" in self.kind:
            bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
            view = view.view(bits[view.element_size()])
            for dim, stride in enumerate(view.stride()):
                if stride == 0 and view.shape[dim] > 1:
                    view = view.narrow(dim, 0, 1)
            view.fill_(-1 if view.dtype != torch.uint8 else 255)
        else:
            view.view(f"u{view.itemsize}")[...] = ~np.zeros((), f"u{view.itemsize}")


class States:
    """Makes states. A state is described once, and built in any memory. `for_torch`: only what
    torch.distributed.checkpoint restores: keys that are texts, arrays that can be written to."""

    def __init__(self, seed, for_torch=False):
        self.random = random.Random(seed)
        self.for_torch = for_torch
        self.leaves = []
        self.refused = []  # paths
        self.refused_as_values = []  # paths of dicts that a tuple may hold beside tensors only

    def description(self):
        """A nested description: ("dict", type, [(key, ...)]), ("tuple", type, [...]), leaves, and
        ("value", ...)."""
        return self._container("dict", ("",), 0)

    def _pick(self, *choices):
        return self.random.choice(choices)

    def _key(self):
        key = self._pick(
            f"w{self.random.randrange(60)}", f"w{self.random.randrange(60)}", "a.b", "a/b", "b",
            "täst", "0", 0, self.random.randrange(40), -1, 1 << 70, "weight", "optimizer", " x ",
            f"{self.random.randrange(40)}")
        return str(key) if self.for_torch else key

    def _node(self, path, depth):
        roll = self.random.random()
        if depth < 5 and roll < 0.35:
            kind = self._pick("dict", "list", "tuple", "dict", "tuple")
            return self._container(kind, path, depth)
        if roll < 0.65:
            return self._tensor()
        if roll > 0.995:
            self.refused.append(path)
            return "refused", self.random.choice(REFUSED)
        return "value", self._value(0), self.random.random() < 0.5

    def _container(self, kind, path, depth):
        count = self.random.randrange(6)
        if kind == "dict":
            keys = list(dict.fromkeys(self._key() for _ in range(count + (depth == 0))))
            made = dict if depth == 0 else self._pick(
                dict, dict, collections.OrderedDict, "default", types.MappingProxyType)
            if made in ("default", types.MappingProxyType):
                self.refused_as_values.append(path)
            return kind, made, [(key, self._node(path + (key,), depth + 1)) for key in keys]
        made = list
        if kind == "tuple":
            made, count = self._pick((tuple, count), (tuple, count), (Moments, 3), (Empty, 0),
                                     (Local, 2), (Pair, 2))
        return kind, made, [self._node(path + (i,), depth + 1) for i in range(count)]

    def _tensor(self):
        if self.leaves and self.random.random() < 0.1:  # tied
            leaf = self.random.choice(self.leaves)
            self.leaves.append(leaf)
            return leaf
        libraries = ["numpy"] * 2 + ["torch"] * 3 * (torch is not None) + ["jax"] * (
            jax is not None)
        leaf = getattr(self, f"_{self.random.choice(libraries)}_leaf")()
        self.leaves.append(leaf)
        return leaf

    def _box(self, item_bytes, negative_strides, alignment):
        """An offset, a shape and strides within a piece of memory."""
        while True:
            dims = self.random.randrange(5)
            shape = [self._pick(1, 2, 3, 4, 5, 1, 2, 0, 7) for _ in range(dims)]
            strides, step = [0] * dims, self._pick(1, 1, 1, 2, 3)
            for dim in self.random.sample(range(dims), dims) if self.random.random() < 0.5 else (
                    reversed(range(dims))):
                strides[dim] = step
                step *= max(shape[dim], 1)
            if self.random.random() < 0.25 and dims > 0:  # expanded, overlapping, or with gaps
                strides[self.random.randrange(dims)] = self.random.randrange(0, 4)
            if negative_strides and self.random.random() < 0.3:
                strides = [stride * self._pick(1, -1) for stride in strides]
            reach = [(extent - 1) * stride for extent, stride in zip(shape, strides)]
            first = -sum(r for r in reach if r < 0) * item_bytes
            last = (sum(r for r in reach if r > 0) + 1) * item_bytes
            places = range((first + alignment - 1) // alignment * alignment, BASE_BYTES - last,
                           alignment)
            if len(places) > 0:
                # Near the beginning, where others are, too.
                return places[min(self.random.randrange(40), len(places) - 1)], shape, strides

    def _contiguous(self, item_bytes):
        count = self.random.randrange(9)
        return self.random.randrange(20) * item_bytes, [count], [1]

    def _numpy_leaf(self):
        dtype = self.random.choice(NUMPY_DTYPES)
        size = np.dtype(dtype).itemsize
        form = self._pick(*[""] * 6, "read-only", "matrix", "dlpack", "box", "flat")
        if (form == "dlpack" and dtype == "?") or (form == "read-only" and self.for_torch):
            form = ""
        kind = "numpy?" if dtype == "?" else "numpy"
        number = self.random.randrange(3)
        if form == "flat":
            return Leaf(kind, dtype, number, *self._contiguous(size), form)
        offset, shape, strides = self._box(size, True, self._pick(size, size, 1))
        if form == "matrix":
            shape, strides = [2, 3], [self._pick(3, 4, -5), 1]
            offset = 100 * size
        if form == "dlpack" and offset % size:
            offset -= offset % size
        return Leaf(kind, dtype, number, offset, shape, strides, form)

    def _torch_leaf(self):
        dtype = self.random.choice(TORCH_DTYPES)
        form = self._pick("", "", "", "parameter", "gradient", "negative", "negative", "real",
                          "imaginary")
        if form in ("negative", "real", "imaginary"):
            dtype = self._pick(torch.complex64, torch.complex128)
        elif not dtype.is_floating_point:
            form = ""
        kind = "torch?" if dtype == torch.bool else "torch"
        return Leaf(kind, dtype, self.random.randrange(3), *self._box(dtype.itemsize, False, 16),
                    form)

    def _jax_leaf(self):
        form = self._pick("jax", "jax", "jax weak", "jax bf16")
        dtype = "u2" if form == "jax bf16" else self._pick("f4", "i4", "u1", "f2", "i8", "?")
        kind = "numpy?" if dtype == "?" else "numpy"
        return Leaf(kind, dtype, 7, *self._box(np.dtype(dtype).itemsize, True, 8), form)

    # ---- Values.

    def _float(self):
        return self._pick(0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 5e-324, 0.1,
                          1.7976931348623157e308, self.random.random())

    def _value(self, depth):
        rng = self.random
        if depth < 4 and rng.random() < 0.3:
            children = [self._value(depth + 1) for _ in range(rng.randrange(4))]
            roll = rng.randrange(6)
            if roll == 0:
                return children
            if roll == 1:
                return tuple(children)
            if roll == 2:
                kind = self._pick(dict, collections.OrderedDict)
                # In a tuple, because a dict elsewhere is a branch.
                return (kind((self._value_key(), child) for child in children),)
            if roll == 3:
                return Moments(*(children + [1, 2, 3])[:3])
            if roll == 4:
                return Local(*(children + [1, 2])[:2])
            return self._pick(Empty(), Pair(1, tuple(children)))
        choices = [
            None, True, False, 0, -1, rng.randrange(1 << 40), 1 << 63, -(1 << 63), (1 << 63) - 1,
            -(1 << 63) - 1, 1 << 200, -(10 ** 5000), self._float(), self._float(),
            complex(self._float(), self._float()), "", "text", "täst\n\"\\", "\ud800",
            "\ud83d\ude00", "\0", b"", b"\0\xff", bytearray(b"ab"), "!", [], (),
            ({"!": "float", "value": "nan"},), "x" * 30, "täst" * 9, "x\ud800" * 9, b"\0\xff" * 9,
            bytearray(b"a\n") * 9, [rng.randrange(-(1 << 63), 1 << 63) for _ in range(5)],
            tuple(self._float() for _ in range(6)), [self._float() for _ in range(4)],
            [True, False] * 4, [0, 1, True, 2, 3], [1, 2.0, 3, 4], [1 << 63, 2, 3, 4],
            ["a", "b\ud800", "\udc00"], ("\ud800", "\udc00"), [None] * 4, (3, 4, 5, -1)]
        scalar = np.dtype(rng.choice(["f8", "f4", "f2", "i8", "i4", "i1", "u8", "u2", "?", "c8",
                                      "c16"])).type
        choices += [scalar(1), scalar(0), np.float64(self._float()), np.float32(math.nan),
                    np.uint64((1 << 64) - 1)]
        if torch is not None:
            choices += [torch.Size([3, 4]), torch.Size([])]
        return rng.choice(choices)

    def _value_key(self):
        return self._pick("a", "b.c", 1, "1", 2.5, None, (1, "x"), b"k", True, -0.0, "\udc80",
                          np.float32(0.5), Moments(1, 2, 3))


def build(description, memory, scramble=False):
    """A state. `scramble`: with other values, of the same structure where a type cannot be found
    otherwise."""
    if isinstance(description, Leaf):
        return description.make(memory)
    kind, made = description[:2]
    if kind == "refused":
        return made()
    if kind == "value":
        if not scramble:
            return made
        return 77 if description[2] and not mentions(made, Local) else scrambled(made)
    if kind == "dict":
        items = [(key, build(child, memory, scramble)) for key, child in description[2]]
        if scramble and made is not collections.OrderedDict:
            items.reverse()
        if made == "default":
            return collections.defaultdict(list, items)
        return made(dict(items)) if made is types.MappingProxyType else made(items)
    children = [build(child, memory, scramble) for child in description[2]]
    return made(*children) if hasattr(made, "_fields") else made(children)


def mentions(value, kind):
    if isinstance(value, kind):
        return True
    if isinstance(value, dict):
        return any(mentions(item, kind) for item in [*value.keys(), *value.values()])
    return isinstance(value, (list, tuple)) and any(mentions(item, kind) for item in value)


def scrambled(value):
    if isinstance(value, list):
        return [scrambled(item) for item in value]
    if hasattr(type(value), "_fields"):
        return type(value)(*map(scrambled, value))
    if type(value) is tuple:
        return tuple(map(scrambled, value))
    if isinstance(value, dict):
        return type(value)((key, scrambled(item)) for key, item in value.items())
    return "other" if value == 77 else 77


# ---- Comparing.

def bits(tensor):
    """The elements of a tensor, in row-major order."""
    if isinstance(tensor, OnlyDLPack):
        tensor = tensor.array
    if torch is not None and isinstance(tensor, torch.Tensor):
        whole = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()).reshape(-1)
        return whole.view(torch.uint8).numpy().tobytes() if whole.numel() else b""
    return np.asarray(tensor).tobytes()


def is_tensor(value):
    return isinstance(value, (np.ndarray, OnlyDLPack)) or (
        torch is not None and isinstance(value, torch.Tensor)) or (
            jax is not None and isinstance(value, jax.Array))


def difference(a, b, path="state"):
    """Where two states differ, in types or in bits; "" if they do not. One NaN is another."""
    if type(a) is not type(b):
        return f"{path}: {type(a)} is {type(b)}"
    if is_tensor(a):
        for name in ("shape", "dtype", "requires_grad", "weak_type"):
            if getattr(a, name, None) != getattr(b, name, None):
                return f"{path}: {name} {getattr(a, name)} is {getattr(b, name)}"
        if isinstance(a, np.ndarray) and a.flags.writeable != b.flags.writeable:
            return f"{path}: writeable {a.flags.writeable} is {b.flags.writeable}"
        return "" if bits(a) == bits(b) else f"{path}: elements {a} are {b}"
    if isinstance(a, (dict, types.MappingProxyType)):
        keys = {(type(key), key): key for key in a}
        if keys.keys() != {(type(key), key) for key in b}:
            return f"{path}: keys {list(a)} are {list(b)}"
        if isinstance(a, collections.OrderedDict) and list(a) != list(b):
            return f"{path}: order {list(a)} is {list(b)}"
        found = (difference(a[key], b[key], f"{path}.{key}") for key in a)
        return next((text for text in found if text), "")
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{path}: {len(a)} items are {len(b)}"
        found = (difference(x, y, f"{path}.{i}") for i, (x, y) in enumerate(zip(a, b)))
        return next((text for text in found if text), "")
    if isinstance(a, (float, complex, np.inexact)):
        return "" if repr(a) == repr(b) else f"{path}: {a!r} is {b!r}"
    if type(a) is int:
        a, b = hex(a), hex(b)  # of any size
    return "" if a == b else f"{path}: {a!r} is {b!r}"


def portable(value):
    """A state as a load without a state gives it back, in a form that difference() compares:
    tensors are what they hold, dicts are dicts, and namedtuples whose class is not found are told
    by their names."""
    if isinstance(value, (Box, FlatShard)):
        dtype, shape, elements = portable(value.data)
        return dtype, tuple(value.global_shape if isinstance(value, Box) else value.shape), elements
    if is_tensor(value):
        array = value.array if isinstance(value, OnlyDLPack) else value
        return str(array.dtype).replace("torch.", ""), tuple(array.shape), bits(value)
    if isinstance(value, (dict, types.MappingProxyType)):
        kind = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
        return kind((key, portable(child)) for key, child in value.items())
    if isinstance(value, (list, tuple)):
        kind, children = type(value), [portable(child) for child in value]
        if "<locals>" in kind.__qualname__:
            return (kind.__module__, kind.__qualname__, kind._fields, *children)
        return kind(*children) if hasattr(kind, "_fields") else kind(children)
    return value


def tensors_of(value, path=()):
    """The tensors of a state, each with its path."""
    if is_tensor(value):
        yield path, value
    elif isinstance(value, (dict, types.MappingProxyType)):
        for key in value:
            yield from tensors_of(value[key], path + (key,))
    elif isinstance(value, (list, tuple)):
        for i, child in enumerate(value):
            yield from tensors_of(child, path + (i,))
