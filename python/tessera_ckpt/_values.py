"""Values, which are the leaves of a state that are not tensors, as JSON: checkpoint/FORMAT.md says
how each type is stored. What is decoded has the type that was encoded; other types are refused."""

from __future__ import annotations

import base64
import enum
import importlib
import json
import math
import sys
from collections import OrderedDict, UserString, namedtuple
from collections.abc import Collection
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ._library import (LOGGER, DataLossError, InvalidArgumentError, MismatchError,
                       UnimplementedError)

MAX_DEPTH = 100

# Scalars of numpy that a Python number holds exactly.
_NUMPY = frozenset((
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128"))


def is_namedtuple(kind: type) -> bool:
    """Whether a class was made by NamedTuple or namedtuple, or is derived from one that was."""
    fields = getattr(kind, "_fields", None)
    return (issubclass(kind, tuple) and isinstance(fields, tuple)
            and all(isinstance(field, str) for field in fields))


# ---- To JSON.

def encode_all(values: Mapping[str, Any]) -> bytes:
    """Values by name, as one JSON text."""
    for name in values:
        if not _is_unicode(name):
            raise InvalidArgumentError(f"the name {name!r} is not valid Unicode")
    return json.dumps({name: encode(value, name) for name, value in values.items()},
                      ensure_ascii=False).encode("utf-8")


def encode(value: Any, name: str, depth: int = 0) -> Any:
    """A value as what json.dumps() takes. `name`: for messages."""
    if depth > MAX_DEPTH:
        raise InvalidArgumentError(
            f"{name}: contains itself, or more than {MAX_DEPTH} levels of lists, tuples and dicts")
    kind: Any = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else _tagged("int", hex(value))
    if kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    if kind is complex:
        return _tagged("complex", [encode(value.real, name), encode(value.imag, name)])
    if kind is str:
        return value if _is_unicode(value) else _tagged(
            "text", base64.b64encode(value.encode("utf-8", "surrogatepass")).decode())
    if kind in (bytes, bytearray):
        return _tagged(kind.__name__, base64.b64encode(value).decode())
    if kind in (dict, OrderedDict):
        return _tagged(kind.__name__, [
            [encode(key, name, depth + 1), encode(item, name, depth + 1)]
            for key, item in value.items()])
    if kind is list:
        return _encoded_items(value, name, depth)
    if issubclass(kind, tuple):
        items = _encoded_items(value, name, depth)
        if kind is getattr(sys.modules.get("torch"), "Size", None):
            return _tagged("torch.Size", items)
        check_tuple(value, name)
        return tagged_tuple(kind, items)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.name in _NUMPY:
        return _tagged("numpy", encode(value.item(), name), dtype=value.dtype.name)
    raise UnimplementedError(_refusal(value, name))


def _encoded_items(items: Any, name: str, depth: int) -> Any:
    return list(items) if _is_json(items) else [encode(item, name, depth + 1) for item in items]


def _is_json(items: Any) -> bool:
    """Whether all items are of one type, and as JSON has them: so they need not be looked at one by
    one."""
    kinds = set(map(type, items))
    if kinds == {int}:
        return bool(-(1 << 63) <= min(items) and max(items) < 1 << 63)
    if kinds == {float}:
        return all(map(math.isfinite, items))
    return kinds <= {bool} or (kinds == {str} and _is_unicode("".join(items)))


def tagged_tuple(kind: Any, items: List[Any]) -> Dict[str, Any]:
    """The items of a tuple or a namedtuple of that class, which are encoded already."""
    if kind is tuple:
        return _tagged("tuple", items)
    return _tagged("namedtuple", items, module=kind.__module__, name=kind.__qualname__,
                   fields=list(kind._fields))


def check_tuple(value: Any, name: str) -> None:
    """Refuses a tuple that tuple_like() would not make again."""
    kind = type(value)
    if kind is not tuple and not (is_namedtuple(kind) and len(value) == len(kind._fields)
                                  and not getattr(value, "__dict__", None)):
        raise UnimplementedError(_refusal(value, name))


def tuple_like(kind: type, items: Any) -> Any:
    """A tuple or a namedtuple of that class; no code of the class runs."""
    return tuple.__new__(kind, items)


def _tagged(kind: str, value: Any, **more: Any) -> Dict[str, Any]:
    return {"!": kind, "value": value, **more}


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# What a program saves in place of an object with such an attribute: the first one counts.
_SAVE_INSTEAD = (
    ("state_dict", "what its state_dict() returns"),
    ("get_state", "what its get_state() returns"),
    ("bit_generator", "its bit_generator.state"),
    ("isoformat", "what its isoformat() returns"),
    ("__dataclass_fields__", "a dict of its fields"),
    ("_value_", "its value"),  # of an Enum
    ("__fspath__", "str(...) of it"),
    ("is_floating_point", "str(...) of it"),  # of a torch.dtype
    ("total_seconds", "what its total_seconds() returns"),
)

# What makes a value of one that is of such a type.
_MADE_BY = (*((each, each.__name__) for each in (int, float, complex, str, bytes, tuple, list,
                                                 OrderedDict, dict)),
            (UserString, "str"), (memoryview, "bytes"), (Mapping, "dict"), (Collection, "list"))


def has(value: Any, attribute: str) -> bool:
    """Whether an object, which may be anything, has an attribute that can be looked at."""
    try:
        return hasattr(value, attribute)
    except Exception:
        return False


def _refusal(value: Any, name: str) -> str:
    kind = type(value)
    instead = [*(text for attribute, text in _SAVE_INSTEAD if has(value, attribute)),
               *(f"{made_by}(...) of it" for base, made_by in _MADE_BY if isinstance(value, base))]
    advice = f"; save {instead[0]}" if instead and not isinstance(value, type) else ""
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return (f"{name}: a value of type {module}{kind.__qualname__} cannot be saved, because a load "
            "could not make it again: only tensors, None, numbers (of numpy, too), texts, bytes, "
            f"and lists, tuples, namedtuples and dicts of them can{advice}")


def merge(by_rank: Mapping[int, bytes]) -> bytes:
    """The values of all ranks. Those that have one of the same name must have the same one."""
    merged: Dict[str, Any] = {}
    first: Dict[str, int] = {}
    for rank, values in by_rank.items():
        for name, stored in (stored_values(values) if values else {}).items():
            if name not in merged:
                merged[name], first[name] = stored, rank
            elif json.dumps(stored) != json.dumps(merged[name]):
                each = [f"rank {of}: {_shown(value)}"
                        for of, value in ((first[name], merged[name]), (rank, stored))]
                raise MismatchError(
                    f"value {name}: the ranks have different ones ({'; '.join(each)}): name it in "
                    "per_rank=, or save it under a key of each rank")
    return json.dumps(merged, ensure_ascii=False).encode("utf-8")


def _shown(stored: Any) -> str:
    text = repr(decode(stored, "", types=Types.PLAIN))
    return text if len(text) <= 60 else f"{text[:60]}..."


# ---- From JSON.

def stored_values(text: bytes) -> Dict[str, Any]:
    """The values of an entry by name, not decoded yet."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataLossError(f"the values are no JSON: {error}") from None
    if not isinstance(stored, dict):
        raise DataLossError("the values are no JSON object")
    return stored


class Types(enum.Enum):
    """What becomes of values whose type a program does not have."""

    EXACT = "an error"
    MADE = "a namedtuple whose class is not found gets a new one; otherwise an error"
    PLAIN = "as MADE, and without its library a number is one of Python, a torch.Size a tuple"


def decode(stored: Any, name: str, like: Any = None, types: Types = Types.EXACT) -> Any:
    """A value from what JSON has of it.

    Args:
      name: for messages.
      like: what stands in its place in the program's state: classes of namedtuples are looked for
        there, and then in the modules that are loaded.
    """
    try:
        return _decode(stored, name, like, types)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError,
            RecursionError) as error:
        raise DataLossError(
            f"value {name}: is not stored as this package does: {error!r}") from None


def _decode(stored: Any, name: str, like: Any, types: Types) -> Any:
    if isinstance(stored, list):
        return _items(stored, name, like, types)
    if not isinstance(stored, dict):
        return stored
    kind, value = stored["!"], stored["value"]
    if kind in _SIMPLE:
        return _SIMPLE[kind](value)
    if kind in ("dict", "OrderedDict"):
        made: Any = {} if kind == "dict" else OrderedDict()
        for key, item in value:
            key = _decode(key, name, None, types)
            place = like.get(key) if isinstance(like, Mapping) else None
            made[key] = _decode(item, name, place, types)
        return made
    if kind == "tuple":
        items = _items(value, name, like, types)
        # Namedtuples were stored as tuples once.
        given = type(like)
        same = is_namedtuple(given) and len(given._fields) == len(items)
        return tuple_like(given if same else tuple, items)
    if kind == "namedtuple":
        found = namedtuple_class(stored, like)
        if found is None and types is Types.EXACT:
            raise MismatchError(
                f"value {name}: saved as a namedtuple {stored['module']}.{stored['name']}"
                f"({', '.join(stored['fields'])}), and there is no such class in the state that is "
                f"loaded, which has a {type(like).__name__} in its place, or in a module")
        return tuple_like(found or made_class(stored), _items(value, name, like, types))
    if kind == "numpy":
        number = _decode(value, name, None, types)
        numpy = _module("numpy", name, types)
        if stored["dtype"] not in _NUMPY:
            raise ValueError(f"dtype {stored['dtype']!r}")
        return number if numpy is None else numpy.dtype(stored["dtype"]).type(number)
    if kind == "torch.Size":
        torch = _module("torch", name, types)
        return tuple(value) if torch is None else torch.Size(value)
    raise UnimplementedError(f"value {name}: of kind {kind!r}, which this version does not know")


def _items(stored: Any, name: str, like: Any, types: Types) -> Any:
    if set(map(type, stored)).isdisjoint((list, dict)):
        return list(stored)
    given = like if isinstance(like, (list, tuple)) else ()
    return [_decode(item, name, given[i] if i < len(given) else None, types)
            for i, item in enumerate(stored)]


def _complex(parts: Any) -> complex:
    real, imag = (_decode(part, "", None, Types.EXACT) for part in parts)
    return complex(real, imag)


_SIMPLE: Dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(value, 16),
    "float": float,
    "complex": _complex,
    "text": lambda value: base64.b64decode(value).decode("utf-8", "surrogatepass"),
    "bytes": base64.b64decode,
    "bytearray": lambda value: bytearray(base64.b64decode(value)),
}


def namedtuple_class(stored: Mapping[str, Any], like: Any = None) -> Optional[type]:
    """The class of a namedtuple; None where it is found neither in `like` nor in a module."""
    fields = tuple(stored["fields"])
    if is_namedtuple(type(like)) and type(like)._fields == fields:
        return type(like)
    found: Any = sys.modules.get(stored["module"])
    for part in stored["name"].split("."):
        found = getattr(found, "__dict__", {}).get(part)
    is_class = isinstance(found, type) and is_namedtuple(found)
    return found if is_class and found._fields == fields else None


# Classes that were made, by module, name and fields: equal types stay equal.
_made: Dict[Tuple[str, ...], type] = {}


def made_class(stored: Mapping[str, Any]) -> type:
    """A new class with the name and the fields of one that is not found."""
    module, name, fields = stored["module"], stored["name"], tuple(stored["fields"])
    if (module, name, *fields) not in _made:
        LOGGER.info("there is no class %s.%s: a namedtuple is made", module, name)
        make: Any = namedtuple
        made = make(name.rpartition(".")[2], fields, rename=True, module=module)
        made.__qualname__ = name
        _made[(module, name, *fields)] = made
    return _made[(module, name, *fields)]


def _module(module: str, name: str, types: Types) -> Any:
    """None where it is not there, unless it is needed."""
    if module in sys.modules or types is Types.PLAIN:
        return sys.modules.get(module)
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UnimplementedError(f"value {name}: was saved as a type of {module}, which is not "
                                 "installed") from None
