"""Where the elements of a tensor are in memory: of numpy, torch, JAX, or any library that speaks
DLPack.

Nothing is copied, unless the tensor is the negative of what is in memory. Neither numpy
nor torch is imported here: a tensor of theirs can only be given by a program that has done it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import enum
import hashlib
import importlib
import math
import sys
from collections.abc import Mapping
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from ._library import InvalidArgumentError, UnimplementedError

# By the names that numpy and torch give them, to the numbers of the library.
DTYPES = {
    "float64": 1, "float32": 2, "float16": 3, "bfloat16": 4, "int64": 5, "int32": 6, "int16": 7,
    "int8": 8, "uint8": 9, "bool": 10, "uint16": 11, "uint32": 12, "uint64": 13,
    "float8_e4m3fn": 14, "float8_e5m2": 15,
}
DTYPE_NAMES = {number: name for name, number in DTYPES.items()}
_ITEM_BYTES = {1: 8, 2: 4, 3: 2, 4: 2, 5: 8, 6: 4, 7: 2, 8: 1, 9: 1, 10: 1, 11: 2, 12: 4, 13: 8,
               14: 1, 15: 1}

# What the context of a tensor that consists of others may have that is not of its elements.
_OF_THE_TENSOR = ("device", "requires_grad", "storage_offset")

# A DLPack dtype's code and bits, to the numbers of the library.
_DLPACK_DTYPES = {(0, 64): 5, (0, 32): 6, (0, 16): 7, (0, 8): 8, (1, 64): 13, (1, 32): 12,
                  (1, 16): 11, (1, 8): 9, (2, 64): 1, (2, 32): 2, (2, 16): 3, (4, 16): 4,
                  (6, 8): 10}
_DLPACK_HOST = (1, 3, 11)  # devices: CPU, and memory pinned for CUDA and ROCm


class Elements(NamedTuple):
    """Which elements a tensor shows. Two tensors are one if theirs are equal."""

    device: str
    address: int  # on the device; where there are no elements, of what all views have in common
    negative: bool  # whether the tensor shows the negative of what is in memory
    dtype: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]


class Memory(NamedTuple):
    """Elements in this process's memory, or in that of a device."""

    address: int  # of the first element
    dtype: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]  # in elements
    read_only: bool
    owner: Any  # while it lives, so does the memory
    elements: Optional[Elements]  # None for an array without any, or memory for a new tensor
    # What follows a load, if anything does. Returns None, or a new tensor that takes the place of
    # one that cannot be written to.
    finish: Optional[Callable[[], Any]] = None
    on_device: Any = None  # the tensor of torch that is there: the address is not this process's

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides)):
            if extent != 1 and stride != expected:
                return 0 in self.shape
            expected *= extent
        return True


def torch_of(value: Any) -> Any:
    """The torch that `value` is a tensor of; None for anything else."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None


def inner_tensors(value: Any) -> Optional[Dict[str, Any]]:
    """The tensors by which a subclass of torch's, such as torchao's, represents its elements; None
    for anything else."""
    kind = type(value)
    if torch_of(value) is None or not hasattr(kind, "__tensor_flatten__") or value.is_nested or (
            hasattr(kind, "wait")):  # for a collective: it is a tensor by then
        return None
    return {name: getattr(value, name) for name in value.__tensor_flatten__()[0]}


def outer_of(value: Any) -> Dict[str, Any]:
    """What a tensor that consists of others is besides these, as values. Of what its class adds,
    which may be anything, what is the same in every process counts."""
    torch: Any = torch_of(value)
    exact = (enum.Enum, torch.dtype, torch.layout)

    def told(each: Any) -> Any:
        if dataclasses.is_dataclass(each) and not isinstance(each, type):
            each = vars(each)
        if isinstance(each, Mapping):
            return {str(key): told(item) for key, item in each.items()
                    if key not in _OF_THE_TENSOR}
        if isinstance(each, (list, tuple)):
            return [told(item) for item in each]
        if each is None or type(each) in (bool, int, float, str):
            return each
        return str(each) if isinstance(each, exact) else type(each).__qualname__

    strides = value.stride() if value.layout == torch.strided else ()
    return {"class": type(value).__qualname__, "shape": list(value.shape),
            "strides": list(strides), "dtype": str(value.dtype),
            "context": told(value.__tensor_flatten__()[1])}


def is_plain(value: Any) -> bool:
    """Whether `value` is a tensor of torch, and of no class of another library's."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)


def is_tensor(value: Any) -> bool:
    """Whether `value` has elements in memory that memory_of() finds, or describes an array."""
    return (torch_of(value) is not None or hasattr(type(value), "__dlpack__")
            or hasattr(type(value), "__array_interface__") or is_jax(value)
            ) and not _is_scalar(value)


def _is_scalar(value: Any) -> bool:
    """numpy's numbers are values, not arrays."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def check_layout(value: Any, name: str) -> None:
    """Refuses a tensor of torch whose elements are those of several others. `name`: for
    messages."""
    torch = torch_of(value)
    if torch is None:
        return
    if value.is_nested:
        kind, instead = "nested ones", "the list of its unbind()"
    elif value.is_quantized:
        kind, instead = "quantized ones", "its int_repr(), its scales and its zero points"
    elif value.layout != torch.strided:
        kind, instead = str(value.layout), "its to_dense(), or its indices and its values"
    else:
        return
    raise UnimplementedError(
        f"{name}: only dense tensors are supported, not {kind}; save {instead}")


def memory_of(value: Any, name: str) -> Memory:
    """The memory of a tensor. `name`: for messages."""
    if torch_of(value) is not None:
        return _torch_memory(value, name)
    if isinstance(value, JaxPart):
        return _numpy_memory(value.on_host(name), name)
    numpy = sys.modules.get("numpy")
    if is_jax(value):
        value = numpy.asarray(value)  # type: ignore[union-attr]
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _numpy_memory(value, name)
    if hasattr(type(value), "__dlpack__"):
        return _dlpack_memory(value, name)
    raise InvalidArgumentError(f"{name}: {type(value).__name__} is no tensor")


def memory_to_fill(value: Any, name: str) -> Memory:
    """The memory of a tensor that is to be loaded. For an array of JAX, or a read-only one of
    numpy: memory of which a new array is made."""
    if isinstance(value, JaxPart):
        return value.memory_to_fill(name)
    if torch_of(value) is not None:
        return _torch_memory(value, name, to_fill=True)
    if is_jax(value):
        _, (part, *more) = jax_parts(value)
        if more:
            raise UnimplementedError(f"{name}: a part of a tensor is an array of several parts")
        return part.memory_to_fill(name)
    memory = memory_of(value, name)
    numpy = sys.modules.get("numpy")
    if not memory.read_only or numpy is None or not isinstance(value, numpy.ndarray):
        return memory
    buffer = numpy.empty_like(value, subok=False)

    def finish() -> Any:
        buffer.flags.writeable = False
        return buffer.view(type(value))

    return _numpy_memory(buffer, name)._replace(elements=None, finish=finish)


def is_jax(value: Any) -> bool:
    """Whether `value` is an array of JAX, or describes one (jax.ShapeDtypeStruct)."""
    jax = sys.modules.get("jax")
    kinds = (getattr(jax, "Array", None), getattr(jax, "ShapeDtypeStruct", None))
    return jax is not None and isinstance(value, tuple(kind for kind in kinds if kind is not None))


class JaxPart(NamedTuple):
    """Elements of an array of JAX that this process has, on one device or on several. Those of a
    key are the words that it is made of (jax.random.key_data)."""

    array: Any  # all of it
    offset: Tuple[int, ...]
    shape: Tuple[int, ...]
    shard: Any  # the elements, on one device; None of an array that is only described
    buffers: Dict[Tuple[int, ...], Any]  # by the offset: what is loaded, of all parts

    @property
    def whole(self) -> Any:
        """The array, where this is all of it."""
        return self.array if self.shape[:self.array.ndim] == self.array.shape else None

    def on_host(self, name: str) -> Any:
        """The elements, as an array of numpy."""
        if self.shard is None:
            raise InvalidArgumentError(f"{name}: a {type(self.array).__name__} has no elements")
        is_key = _key_shape(self.array) is not None
        jax, numpy = sys.modules["jax"], sys.modules["numpy"]
        return numpy.asarray(jax.random.key_data(self.shard) if is_key else self.shard)

    def memory_to_fill(self, name: str) -> Memory:
        """Memory of its own. Once that of all parts is filled, an array is made of it."""
        dtype = self.array.dtype if _key_shape(self.array) is None else "uint32"
        buffer = self.buffers[self.offset] = _aligned(self.shape, dtype)
        is_last = self.offset == list(self.buffers)[-1]
        finish = lambda: _jax_array(self.array, self.buffers) if is_last else None  # noqa: E731
        return _numpy_memory(buffer, name)._replace(elements=None, finish=finish)


def jax_parts(value: Any) -> Tuple[Tuple[int, ...], List[JaxPart]]:
    """The shape of an array of JAX, and the parts of it that this process has: replicas once."""
    jax = sys.modules["jax"]
    key_shape = _key_shape(value) or ()
    shards = {}
    if isinstance(value, jax.Array):
        shards = {_offset(shard.index)[:value.ndim]: shard.data  # that of a key counts its words
                  for shard in value.addressable_shards}
        boxes = {offset: tuple(shard.shape) for offset, shard in shards.items()}
    elif value.sharding is None:
        boxes = {(0,) * len(value.shape): tuple(value.shape)}
    else:
        indices = value.sharding.addressable_devices_indices_map(value.shape).values()
        boxes = {_offset(index): value.sharding.shard_shape(value.shape) for index in indices}
    inner = (0,) * len(key_shape)
    buffers = {offset + inner: None for offset in boxes}
    return (*value.shape, *key_shape), [
        JaxPart(value, offset + inner, (*shape, *key_shape), shards.get(offset), buffers)
        for offset, shape in boxes.items()]


def _aligned(shape: Tuple[int, ...], dtype: Any) -> Any:
    """A new array of numpy that an array of JAX on a CPU takes over without a copy."""
    numpy = sys.modules["numpy"]
    dtype = numpy.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = numpy.empty(size + 63, "uint8")
    first = -memory.ctypes.data % 64
    return memory[first:first + size].view(dtype).reshape(shape)


def _offset(index: Tuple[slice, ...]) -> Tuple[int, ...]:
    return tuple(each.start or 0 for each in index)


def _key_shape(value: Any) -> Optional[Tuple[int, ...]]:
    """That of a key's words; None for an array of numbers."""
    jax = sys.modules["jax"]
    if not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return None
    key = jax.ShapeDtypeStruct((), value.dtype)
    shape: Tuple[int, ...] = jax.eval_shape(jax.random.key_data, key).shape
    return shape


def _jax_array(like: Any, buffers: Dict[Tuple[int, ...], Any]) -> Any:
    """An array of JAX where `like` is, which takes part in promotions of dtypes as that does."""
    jax = sys.modules["jax"]
    key_shape = _key_shape(like)

    def put(buffer: Any, place: Any) -> Any:
        array = jax.device_put(buffer, place)
        if key_shape is None:
            return array
        implementation: List[Any] = []
        jax.eval_shape(lambda key: implementation.append(jax.random.key_impl(key)), like)
        return jax.random.wrap_key_data(array, impl=implementation[0])

    sharding = like.sharding
    if sharding is None or not getattr(like, "committed", True):
        buffer, = buffers.values()
        new = put(buffer, None)
    else:
        inner = (0,) * len(key_shape or ())
        indices = sharding.addressable_devices_indices_map(like.shape)
        new = jax.make_array_from_single_device_arrays(like.shape, sharding, [
            put(buffers[_offset(index) + inner], jax.sharding.SingleDeviceSharding(
                device, memory_kind=sharding.memory_kind)) for device, index in indices.items()])
    if not getattr(like, "weak_type", False):
        return new
    return jax.numpy.zeros_like(like).at[...].set(new)


def _dtype(dtype_name: str, name: str) -> int:
    if dtype_name not in DTYPES:
        advice = ("; save its .real and its .imag" if dtype_name.startswith("complex") else
                  "; save its view as uint8" if dtype_name.startswith(("float4", "float8")) else "")
        raise UnimplementedError(
            f"{name}: elements of dtype {dtype_name} are not supported{advice}")
    return DTYPES[dtype_name]


def device_of(tensor: Any) -> Any:
    """Where the elements of a tensor of torch are."""
    return tensor.device


def _torch_memory(tensor: Any, name: str, to_fill: bool = False) -> Memory:
    torch = torch_of(tensor)
    if hasattr(tensor, "wait"):  # for a collective
        tensor = tensor.wait()
    if (type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
            or torch._C._functorch.is_functorch_wrapped_tensor(tensor)):
        kind = type(tensor)
        raise UnimplementedError(f"{name}: the elements of a {kind.__module__}.{kind.__qualname__} "
                                 "are not in its own memory")
    check_layout(tensor, name)
    if tensor.device.type == "meta":
        raise InvalidArgumentError(f"{name}: a tensor on the meta device has no elements; the "
                                   "model's to_empty() makes memory for them")
    dtype = _dtype(str(tensor.dtype).replace("torch.", ""), name)
    host = target = tensor.detach()
    if type(target) is not torch.Tensor:
        host = target = target.as_subclass(torch.Tensor)
    device = device_of(target)
    on_device = target if device.type != "cpu" else None
    negative = host.is_neg() or host.is_conj()
    is_copy = negative and on_device is None
    if is_copy and to_fill:
        host = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")
    elif is_copy:
        host = host.resolve_neg().resolve_conj()
    address = host.data_ptr()
    if address == 0 and host.numel() > 0:
        raise UnimplementedError(f"{name}: a {type(tensor).__name__} whose elements have no memory")
    finish: Any = None
    if is_copy or to_fill:
        finish = (lambda: _copy_to(target, host)) if is_copy else (lambda: _mark_changed(target))
    # Tied tensors have one storage on a rank that has no elements of them, too.
    place = target.data_ptr() if host.numel() > 0 else target.untyped_storage()._cdata
    elements = Elements(str(device), place, negative, dtype, tuple(tensor.shape),
                        tuple(tensor.stride()))
    return Memory(address, dtype, tuple(host.shape), tuple(host.stride()), False, host, elements,
                  finish, on_device)


def _mark_changed(tensor: Any) -> None:
    """Counts a change, as torch's own operations do: a backward pass that needs the elements of
    before is an error then."""
    increment = getattr(torch_of(tensor).autograd.graph, "increment_version", None)
    if increment is not None and not tensor.is_inference():
        increment(tensor)


def _copy_to(target: Any, host: Any) -> None:
    """Copies to a tensor, once to an element that stands in it several times."""
    for dim, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[dim] > 1:
            target, host = target.narrow(dim, 0, 1), host.narrow(dim, 0, 1)
    with torch_of(target).inference_mode(target.is_inference()):
        target.copy_(host)


def _numpy_memory(array: Any, name: str) -> Memory:
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())
    if isinstance(array, masked):
        raise UnimplementedError(f"{name}: an array with a mask is not supported: save its data "
                                 "and its mask")
    if not array.dtype.isnative:
        raise UnimplementedError(f"{name}: elements of another byte order are not supported")
    dtype = _dtype(array.dtype.name, name)
    item_bytes = array.dtype.itemsize
    if any(stride % item_bytes for stride in array.strides):
        raise UnimplementedError(f"{name}: strides {array.strides} are no multiples of an element")
    address, read_only = array.__array_interface__["data"]
    strides = tuple(stride // item_bytes for stride in array.strides)
    return _host_memory(address, dtype, array.shape, strides, read_only, array)


def _host_memory(address: int, dtype: int, shape: Tuple[int, ...], strides: Tuple[int, ...],
                 read_only: bool, owner: Any) -> Memory:
    elements = None if 0 in shape else Elements("cpu", address, False, dtype, shape, strides)
    return Memory(address, dtype, shape, strides, read_only, owner, elements)


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


def _pointer_in(capsule: Any, capsule_name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, capsule_name))


def _is_capsule(capsule: Any, capsule_name: bytes) -> bool:
    check = ctypes.pythonapi.PyCapsule_IsValid
    check.restype, check.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
    return bool(check(capsule, capsule_name))


def _dlpack_memory(value: Any, name: str) -> Memory:
    if int(value.__dlpack_device__()[0]) not in _DLPACK_HOST:
        raise UnimplementedError(f"{name}: only tensors in the memory of the host are supported")
    try:
        capsule = value.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = value.__dlpack__()
    read_only = False
    if _is_capsule(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer_in(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise UnimplementedError(f"{name}: version {versioned.major} of DLPack is not known")
        tensor, read_only = versioned.tensor, bool(versioned.flags & 1)
    elif _is_capsule(capsule, b"dltensor"):
        tensor = _DLTensor.from_address(_pointer_in(capsule, b"dltensor"))
    else:
        raise InvalidArgumentError(f"{name}: __dlpack__() returned no capsule of DLPack")
    dtype = _DLPACK_DTYPES.get((tensor.code, tensor.bits), 0) if tensor.lanes == 1 else 0
    if dtype == 0:
        raise UnimplementedError(
            f"{name}: DLPack's dtype {tensor.code} of {tensor.bits} bits is not supported")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    else:
        strides = contiguous_strides(shape)
    address = (tensor.data or 0) + tensor.byte_offset
    # The capsule, which nobody takes over, frees the tensor with itself.
    return _host_memory(address, dtype, shape, strides, read_only, (value, capsule))


# Whole numbers, of which a tensor may be the state of something.
_WHOLE = frozenset((5, 6, 7, 8, 9, 10, 11, 12, 13))
_MOST_DIGESTED = 1 << 16


def is_digested(memory: Memory) -> bool:
    """Whether it is a small tensor of whole numbers, which all ranks must have alike."""
    size = math.prod(memory.shape) * item_bytes(memory.dtype)
    return memory.dtype in _WHOLE and size <= _MOST_DIGESTED and memory.is_contiguous


def digest_of_all(memory: Memory) -> str:
    """A digest of contiguous elements, on the host."""
    size = math.prod(memory.shape) * item_bytes(memory.dtype)
    return digest_of_bytes((ctypes.c_char * size).from_address(memory.address) if size else b"")


def digest_of_bytes(elements: Any) -> str:
    """A digest of elements."""
    return hashlib.sha1(elements).hexdigest()


def contiguous_strides(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    """Those of a row-major tensor."""
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= max(extent, 1)
    return tuple(reversed(strides))


def item_bytes(dtype: int) -> int:
    """The size of an element."""
    return _ITEM_BYTES[dtype]


def span_of(elements: Union[Elements, Memory]) -> Tuple[int, int]:
    """The addresses of the first byte and behind the last one."""
    reach = [(extent - 1) * stride for extent, stride in zip(elements.shape, elements.strides)]
    size = item_bytes(elements.dtype)
    return (elements.address + size * sum(r for r in reach if r < 0),
            elements.address + size * (sum(r for r in reach if r > 0) + 1))


def empty(dtype: int, shape: Tuple[int, ...]) -> Any:
    """A new array of numpy, or, of a dtype that numpy has not, a tensor of torch."""
    name = DTYPE_NAMES[dtype]
    numpy: Any = None
    with contextlib.suppress(ImportError):
        numpy = importlib.import_module("numpy")
    if numpy is not None and hasattr(numpy, name if name != "bool" else "bool_"):
        return numpy.empty(shape, dtype=name)
    try:
        import torch
    except ImportError:
        raise UnimplementedError(
            f"elements of dtype {name} need numpy or torch; or give the memory, as `out`"
        ) from None
    return torch.empty(shape, dtype=getattr(torch, name))


def framework_named(name: Optional[str]) -> str:
    """The library whose tensors a load without a state makes; by default torch, where the program
    has imported it, and otherwise numpy."""
    if name is None:
        return "torch" if "torch" in sys.modules else "numpy"
    if name not in ("torch", "numpy"):
        raise InvalidArgumentError(f"framework: expected \"torch\" or \"numpy\", not {name!r}")
    return name


def empty_of(framework: str, dtype_name: str, shape: Tuple[int, ...], name: str) -> Any:
    """A new tensor of that library. `name`: for messages."""
    try:
        library = importlib.import_module(framework)
        if framework == "torch":
            return library.empty(shape, dtype=getattr(library, dtype_name))
        named = dtype_name if dtype_name != "bool" else "bool_"
        if not hasattr(library, named):  # bfloat16 and float8
            return library.empty(shape, getattr(importlib.import_module("ml_dtypes"), named))
        return library.empty(shape, dtype_name)
    except (ImportError, AttributeError) as error:
        raise UnimplementedError(
            f"tensor {name}: {framework} has no elements of dtype {dtype_name} here: {error}; "
            "framework= says whose tensors are made: \"torch\", or \"numpy\", which has bfloat16 "
            "and float8 where ml_dtypes is installed") from None
