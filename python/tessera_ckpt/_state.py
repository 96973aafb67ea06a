"""A program's state, nested dicts of tensors and values, as the library sees it: logical tensors,
and the boxes of them in this process's memory."""

from __future__ import annotations

import base64
import json
import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from . import _tensors
from ._library import (READ_ONLY, Handle, InvalidArgumentError, MismatchError, UnimplementedError,
                       lib, numbers)

WEIGHT, MASTER_WEIGHT, OPTIMIZER_STATE, BUFFER = 1, 2, 3, 4

# A component of a name that says so.
_OPTIMIZER = ("optimizer", "optimizers", "optim")

# The entry of a checkpoint that holds what is not a tensor.
VALUES = "tessera_ckpt.values"


class FlatShard(NamedTuple):
    """Elements [begin, begin + len(data)) of the row-major flattening of a tensor of `shape`, as
    FSDP1 and ZeRO cut their flat buffers. `data` has one dim and is contiguous."""

    data: Any
    begin: int
    shape: Tuple[int, ...]


class Box(NamedTuple):
    """A part of a tensor of `global_shape`, which begins at `offset`."""

    data: Any
    offset: Tuple[int, ...]
    global_shape: Tuple[int, ...]


class Boxes(NamedTuple):
    """Several parts of a tensor: (data, offset)."""

    parts: List[Tuple[Any, Tuple[int, ...]]]
    global_shape: Tuple[int, ...]


class _Value(NamedTuple):
    """A leaf that is not a tensor, and the container and the key at which it stands."""

    name: str
    container: Any
    key: Any
    value: Any


class Leaves(NamedTuple):
    tensors: Dict[str, Any]
    values: List[_Value]


# ---- From nested dicts to names.

def flatten(state: Any) -> Leaves:
    """The leaves of nested dicts (and lists that hold tensors or dicts) by their names: keys joined
    by dots, as torch.distributed.checkpoint has them."""
    if not isinstance(state, Mapping):
        raise InvalidArgumentError(f"state: expected a dict, not {type(state).__name__}")
    leaves = Leaves({}, [])
    _walk(state, "", leaves, set())
    seen = set(leaves.tensors)
    for value in leaves.values:
        if value.name in seen:
            raise InvalidArgumentError(f"state: two leaves have the name {value.name}")
        seen.add(value.name)
    return leaves


def _walk(node: Any, prefix: str, leaves: Leaves, above: set) -> None:
    if id(node) in above:
        raise InvalidArgumentError(f"state: {prefix or 'it'} contains itself")
    above.add(id(node))
    items: Iterable[Tuple[Any, Any]] = (
        node.items() if isinstance(node, Mapping) else enumerate(node))
    for key, child in items:
        if not isinstance(key, (str, int)) or isinstance(key, bool):
            raise InvalidArgumentError(
                f"state: a key of {prefix or 'it'} is {key!r}; expected a text or a number")
        name = f"{prefix}.{key}" if prefix else str(key)
        if is_leaf_tensor(child):
            if name in leaves.tensors:
                raise InvalidArgumentError(f"state: two leaves have the name {name}")
            leaves.tensors[name] = child
        elif _is_branch(child):
            _walk(child, name, leaves, above)
        else:
            leaves.values.append(_Value(name, node, key, child))
    above.discard(id(node))


def is_leaf_tensor(value: Any) -> bool:
    """Whether a leaf is a tensor, or a part of one."""
    return (isinstance(value, (FlatShard, Box, Boxes)) or _is_sharded(value)
            or _tensors.is_tensor(value))


def _is_branch(value: Any, depth: int = 0) -> bool:
    """Dicts are branches; so are lists with a tensor or a branch inside, and tuples with a tensor.
    """
    if depth > 100:
        return False  # it contains itself, which encoding it reports
    if isinstance(value, Mapping):
        return True
    if isinstance(value, list):
        return any(is_leaf_tensor(v) or _is_branch(v, depth + 1) for v in value)
    return isinstance(value, tuple) and any(is_leaf_tensor(v) for v in value)


# ---- From leaves to boxes.

def _is_sharded(value: Any) -> bool:
    """DTensor, torch's ShardedTensor, and whatever else describes its parts as they do."""
    return hasattr(value, "__create_chunk_list__") and (
        hasattr(value, "to_local") or hasattr(value, "local_shards")) or (
            hasattr(value, "local_shards") and hasattr(value, "sharded_tensor_metadata")) or (
                hasattr(value, "local_shards") and callable(getattr(value, "metadata", None)))


class _Part(NamedTuple):
    data: Any
    offset: Tuple[int, ...]


def _parts(value: Any, name: str) -> Tuple[Tuple[int, ...], List[_Part], Any]:
    """The global shape, this process's parts, and something with the dtype."""
    if isinstance(value, Box):
        return tuple(value.global_shape), [_Part(value.data, tuple(value.offset))], value.data
    if isinstance(value, Boxes):
        parts = [_Part(data, tuple(offset)) for data, offset in value.parts]
        return tuple(value.global_shape), parts, parts[0].data
    if hasattr(value, "to_local"):
        if any(placement.is_partial() for placement in value.placements):
            raise UnimplementedError(f"{name}: a DTensor with a partial placement is not the "
                                     "tensor yet: redistribute it")
        local = value.to_local()
        if hasattr(local, "wait"):
            local = local.wait()
        chunks = value.__create_chunk_list__()
        parts = [_Part(local, tuple(chunk.offsets)) for chunk in chunks]
        if len(parts) > 1:
            raise UnimplementedError(f"{name}: a DTensor of {len(parts)} parts on one rank")
        return tuple(value.shape), parts if local.numel() > 0 else [], local
    if hasattr(value, "local_shards"):
        shards = value.local_shards()
        metadata = value.metadata()
        parts = [_Part(shard.tensor, tuple(shard.metadata.shard_offsets)) for shard in shards]
        dtype_of = parts[0].data if parts else _NoElements(metadata.tensor_properties.dtype)
        return tuple(metadata.size), parts, dtype_of
    return tuple(value.shape), [_Part(value, (0,) * len(value.shape))], value


class _NoElements(NamedTuple):
    """In place of a tensor's part on a rank that has none."""

    dtype: Any


def role_of(name: str) -> int:
    """State of the optimizer is what stands below a key that says so."""
    return OPTIMIZER_STATE if any(part in _OPTIMIZER for part in name.split(".")) else WEIGHT


class Description:
    """The library's description of a state, and what keeps its memory alive."""

    def __init__(self, leaves: Mapping[str, Any], *,
                 entries: Optional[Mapping[str, bytes]] = None, program: str = "",
                 role: Callable[[str], int] = role_of) -> None:
        self.handle = Handle(lib.state_create, lib.state_free)
        self.copy_back: List[Callable[[], None]] = []
        self._owners: List[Any] = []
        self._names: Dict[Tuple[Any, ...], str] = {}
        for name, value in leaves.items():
            self._add(name, value, role(name))
        for key, data in (entries or {}).items():
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise InvalidArgumentError(
                    f"entry {key}: expected bytes, not {type(data).__name__}")
            lib.state_set_entry(self.handle, _name(key), bytes(data), len(bytes(data)))
        if program:
            lib.state_set_program(self.handle, program.encode("utf-8", "replace"))

    def _add(self, name: str, value: Any, role: int) -> None:
        if isinstance(value, FlatShard):
            return self._add_flat(name, value, role)
        shape, parts, dtype_of = _parts(value, name)
        if isinstance(dtype_of, _NoElements):
            dtype = _tensors.DTYPES.get(str(dtype_of.dtype).replace("torch.", ""), 0)
        else:
            first = _tensors.memory_of(dtype_of, name)
            dtype = first.dtype
            if first.identity is not None and len(parts) <= 1:
                identity = (first.identity, shape, parts[0].offset if parts else None)
                if self._names.setdefault(identity, name) != name:  # tied parameters
                    self._owners.append(first.owner)
                    lib.state_add_alias(self.handle, _name(name), _name(self._names[identity]))
                    return None
        lib.state_add_tensor(self.handle, _name(name), role, dtype, len(shape), numbers(shape))
        for part in parts:
            memory = first if part.data is dtype_of else _tensors.memory_of(part.data, name)
            if len(part.offset) != len(memory.shape):
                raise InvalidArgumentError(f"{name}: a part of {len(memory.shape)} dims, and the "
                                           f"tensor has {len(shape)}")
            lib.state_add_shard(self.handle, memory.address, -1, numbers(part.offset),
                                numbers(memory.shape), numbers(memory.strides),
                                READ_ONLY if memory.read_only else 0)
            self._keep(memory, name)
        return None

    def _add_flat(self, name: str, flat: FlatShard, role: int) -> None:
        memory = _tensors.memory_of(flat.data, name)
        if len(memory.shape) != 1 or not memory.is_contiguous:
            raise InvalidArgumentError(f"{name}: a flat part has one dim and is contiguous")
        shape = tuple(flat.shape)
        lib.state_add_tensor(self.handle, _name(name), role, memory.dtype, len(shape),
                             numbers(shape))
        if memory.shape[0] > 0:
            lib.state_add_flat_range(self.handle, memory.address, numbers((0,) * len(shape)),
                                     numbers(shape), flat.begin, flat.begin + memory.shape[0],
                                     READ_ONLY if memory.read_only else 0)
        self._keep(memory, name)

    def _keep(self, memory: _tensors.Memory, name: str) -> None:
        self._owners.append(memory.owner)
        if memory.copy_back is not None:
            self.copy_back.append(memory.copy_back)

    def finish_load(self) -> None:
        """Copies what was loaded to tensors that are not in the memory of the host."""
        for copy in self.copy_back:
            copy()


def _name(name: Any) -> bytes:
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a name is {name!r}; expected a text")
    try:
        encoded = name.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"the name {name!r} is not valid Unicode") from None
    if b"\0" in encoded:
        raise InvalidArgumentError(f"the name {name!r} has a NUL character")
    return encoded


# ---- Values.

def encode_values(values: Iterable[_Value]) -> bytes:
    """Values by name, as JSON."""
    return json.dumps({value.name: _encode(value.value, value.name) for value in values},
                      ensure_ascii=False).encode("utf-8", "surrogatepass")


def _encode(value: Any, name: str, depth: int = 0) -> Any:
    if depth > 100:
        raise InvalidArgumentError(f"{name}: is nested too deeply, or contains itself")
    if value is None or isinstance(value, (bool, int, str)):
        if isinstance(value, int) and type(value) not in (bool, int):
            return int(value)
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"!": "float", "value": repr(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"!": "bytes", "value": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_encode(item, name, depth + 1) for item in value]
    if isinstance(value, tuple):
        return {"!": "tuple", "value": [_encode(item, name, depth + 1) for item in value]}
    if isinstance(value, Mapping):
        items = [[_encode(k, name, depth + 1), _encode(v, name, depth + 1)]
                 for k, v in value.items()]
        return {"!": "dict", "value": items}
    if hasattr(value, "item") and hasattr(value, "dtype"):  # a number of numpy
        return _encode(value.item(), name, depth + 1)
    raise UnimplementedError(f"{name}: a {type(value).__name__} cannot be saved: only tensors, "
                             "numbers, texts, bytes, and lists, tuples and dicts of them can")


_DECODERS: Dict[str, Callable[[Any], Any]] = {
    "float": float,
    "bytes": base64.b64decode,
    "tuple": lambda items: tuple(_decode(item) for item in items),
    "dict": lambda items: {_decode(key): _decode(value) for key, value in items},
}


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if isinstance(value, dict):
        return _DECODERS[value["!"]](value["value"])
    return value


def decode_values(data: bytes) -> Dict[str, Any]:
    """Values by name."""
    return {name: _decode(value) for name, value in json.loads(data).items()}


def check_values(wanted: Iterable[_Value], saved: Mapping[str, Any], allow_missing: bool,
                 allow_unexpected: bool) -> Tuple[List[str], List[str]]:
    """The names that are wanted and not saved, and the reverse; an error where it is not allowed.
    """
    names = {value.name for value in wanted}
    missing = [name for name in names if name not in saved]
    unexpected = [name for name in saved if name not in names]
    lines = [] if allow_missing else [f"value {name}: wanted, not saved" for name in missing]
    lines += [] if allow_unexpected else [f"value {name}: saved, not wanted" for name in unexpected]
    if lines:
        more = [f"and {len(lines) - 10} more"] if len(lines) > 10 else []
        raise MismatchError("\n  ".join([f"{len(lines)} values do not match:"] + lines[:10] + more))
    for value in wanted:
        if value.name in saved and isinstance(value.container, tuple):
            raise InvalidArgumentError(
                f"{value.name}: stands in a tuple, which cannot be changed; use a list")
    return sorted(missing), sorted(unexpected)


def set_values(wanted: Iterable[_Value], saved: Mapping[str, Any]) -> None:
    """Puts saved values in their places."""
    for value in wanted:
        if value.name in saved:
            value.container[value.key] = saved[value.name]
