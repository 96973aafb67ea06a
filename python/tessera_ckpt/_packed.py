"""Large values as tensors, whose elements go through the data files: bytes, texts, and lists and
tuples of ints, of floats or of bytes. An entry says of which type each was; checkpoint/FORMAT.md.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import json
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set

from . import _tensors
from ._library import DataLossError, MismatchError, UnimplementedError

# The entry of a checkpoint that has the types, by the names of the tensors.
PACKED = "tessera_ckpt.packed"

# Values of fewer bytes are stored as texts, with the others.
MIN_BYTES = 1 << 16

_MAX_NAME_BYTES = 1 << 12

_OF_BYTES = " of bytes"

_U8, _I64, _F64 = (_tensors.DTYPES[name] for name in ("uint8", "int64", "float64"))
_CODES = {_I64: "q", _F64: "d"}  # of array.array


class Packed(NamedTuple):
    """A value as a tensor."""

    kind: str  # its type
    memory: _tensors.Memory


def pack(value: Any, name: str) -> Optional[Packed]:
    """The value as a tensor, if it is large enough and of a type that can be packed; a copy, unless
    the value cannot change."""
    kind = type(value)
    if kind not in (bytes, bytearray, str, list, tuple) or not _is_name_of_tensor(name):
        return None
    kinds = set(map(type, value)) if kind in (list, tuple) else None
    of_bytes = kinds == {bytes}
    if kinds is not None and not of_bytes:
        return _pack_numbers(value, kinds) if len(value) >= max(MIN_BYTES // 8, 1) else None
    if (sum(map(len, value)) if of_bytes else len(value)) < max(MIN_BYTES, 1):
        return None
    data = _joined(value) if of_bytes else (
        value.encode("utf-8", "surrogatepass") if kind is str else bytes(value))
    address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    return Packed(kind.__name__ + (_OF_BYTES if of_bytes else ""),
                  _memory(address, _U8, len(data), data))


def _joined(items: Any) -> bytes:
    """Items of bytes as one: their number, their lengths, and then all of them."""
    lengths = array.array("q", [len(items), *map(len, items)])
    return b"".join([lengths.tobytes(), *items])


def _split(data: bytearray) -> List[bytes]:
    """The items. A ValueError if they are not exactly what the data has."""
    count = int.from_bytes(data[:8], "little")
    lengths = array.array("q", bytes(data[8:8 * (1 + count)]))
    ends = list(itertools.accumulate(lengths, initial=8 * (1 + count)))
    if len(lengths) != count or min(lengths, default=0) < 0 or ends[-1] != len(data):
        raise ValueError(f"{count} items do not have {len(data)} bytes")
    view = memoryview(data)
    return [bytes(view[begin:end]) for begin, end in zip(ends, ends[1:])]


def _pack_numbers(items: Any, kinds: Set[type]) -> Optional[Packed]:
    dtype = _I64 if kinds == {int} else _F64 if kinds == {float} else None
    if dtype is None:
        return None
    try:
        numbers = array.array(_CODES[dtype], items)
    except OverflowError:  # an int of more than 64 bits
        return None
    memory = _memory(numbers.buffer_info()[0], dtype, len(numbers), numbers)
    return Packed(type(items).__name__, memory)


def _memory(address: int, dtype: int, count: int, owner: Any) -> _tensors.Memory:
    return _tensors.Memory(address, dtype, (count,), (1,), False, owner, None)


def _is_name_of_tensor(name: str) -> bool:
    """The names of values may be others, too."""
    return (0 < len(name.encode("utf-8", "replace")) <= _MAX_NAME_BYTES and "@[" not in name
            and name != "__metadata__" and all(c >= " " and c != "\x7f" for c in name))


class ToFill(NamedTuple):
    """Memory for a packed value that is loaded."""

    memory: _tensors.Memory
    finish: Callable[[], Any]  # returns the value


def to_fill(kind: str, dtype: str, shape: Any, name: str) -> ToFill:
    """Memory for a value of that type, which was stored as such a tensor."""
    number = _tensors.DTYPES[dtype]
    if kind not in _MAKE:
        raise UnimplementedError(f"value {name}: packed as {kind!r}, which this version does not "
                                 "know")
    if len(shape) != 1 or (number not in _CODES if kind in ("list", "tuple") else number != _U8):
        raise DataLossError(f"value {name}: a {kind} cannot be a tensor of {dtype} {tuple(shape)}")
    if number in _CODES:
        numbers = array.array(_CODES[number], bytes(8)) * shape[0]
        memory = _memory(numbers.buffer_info()[0], number, shape[0], numbers)
        return ToFill(memory, lambda: _MAKE[kind](numbers))
    data = bytearray(shape[0])
    view = (ctypes.c_char * len(data)).from_buffer(data)
    return ToFill(_memory(ctypes.addressof(view), number, shape[0], view),
                  lambda: _made_of_bytes(kind, data, name))


def _made_of_bytes(kind: str, data: bytearray, name: str) -> Any:
    try:
        return _MAKE[kind](data)
    except ValueError as error:  # no UTF-8, or no items
        raise DataLossError(f"value {name}: {error}") from None


_MAKE: Dict[str, Callable[[Any], Any]] = {
    "bytes": bytes,
    "bytearray": lambda data: data,
    "str": lambda data: data.decode("utf-8", "surrogatepass"),
    "list": list,
    "tuple": tuple,
    "list" + _OF_BYTES: _split,
    "tuple" + _OF_BYTES: lambda data: tuple(_split(data)),
}


def encode(kinds: Mapping[str, str]) -> bytes:
    """The entry."""
    return json.dumps(kinds, ensure_ascii=False).encode()


def decode(stored: bytes) -> Dict[str, str]:
    """The types, by the names of the tensors."""
    try:
        kinds = json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise DataLossError(f"the entry {PACKED} is no JSON: {error}") from None
    if not isinstance(kinds, dict) or not all(isinstance(kind, str) for kind in kinds.values()):
        raise DataLossError(f"the entry {PACKED} has no types")
    return kinds


def merge(by_rank: Mapping[int, bytes]) -> bytes:
    """The types of all ranks."""
    merged: Dict[str, str] = {}
    for rank, stored in by_rank.items():
        for name, kind in (decode(stored) if stored else {}).items():
            if merged.setdefault(name, kind) != kind:
                raise MismatchError(f"value {name}: a {kind} on rank {rank}, and a {merged[name]} "
                                    "on another")
    return encode(merged)
