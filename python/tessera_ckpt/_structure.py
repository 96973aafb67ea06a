"""The containers of a state, which a load without a state makes again, as does a conversion to a
format of nested dicts (convert/core/saved_values.h)."""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict
from typing import Any, Callable, Container, Dict, Mapping, Tuple

from . import _state, _values
from ._library import LOGGER, DataLossError, MismatchError, TesseraError

# The entry of a checkpoint that holds them.
STRUCTURE = "tessera_ckpt.structure"

# An attribute of an OrderedDict, and where it is beside the items.
_METADATA = "_metadata"

# That of a save by torch.distributed.checkpoint: the places of the names in nested dicts.
PLACES = "torch.distributed.checkpoint"


def encode(state: Any, per_rank: _state.PerRank, packed: Container[str] = ()) -> bytes:
    """JSON of the same form as that of values: leaves are null, and tensors {"!": "tensor"}.
    `packed`: the values that are stored as tensors."""
    return _encoded(_skeleton(state, "", per_rank, packed))


def merge(by_rank: Mapping[int, bytes]) -> bytes:
    """The containers of all ranks."""
    each = [json.loads(stored) for stored in by_rank.values() if stored]
    merged = each[0] if each else {"!": "dict", "value": []}
    for other in each[1:]:
        merged = _merged(merged, other, "")
    return _encoded(merged)


def _encoded(skeleton: Any) -> bytes:
    return json.dumps(skeleton, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _dict(items: Any, kind: str = "dict") -> Any:
    return {"!": kind, "value": items}


def _skeleton(node: Any, name: str, per_rank: _state.PerRank, packed: Container[str]) -> Any:
    if _state.is_leaf_tensor(node):
        return {"!": "tensor"}
    if not _state.is_branch(node):  # of which one may have the name of a leaf
        return {"!": "tensor"} if name in packed else None
    items = []
    for key, child_name, child in _state.children(node, name, per_rank):
        skeleton = _skeleton(child, child_name, per_rank, packed)
        if per_rank.begins_at(name, child_name):
            skeleton = _dict([[f"rank_{per_rank.rank}", skeleton]])
        items.append([key, skeleton])
    if isinstance(node, OrderedDict):
        return {**_dict(items, "OrderedDict"), **_metadata(node, name)}
    if not isinstance(node, (list, tuple)):
        return _dict(items)
    values = [skeleton for _, skeleton in items]
    return _values.tagged_tuple(type(node), values) if isinstance(node, tuple) else values


def _metadata(node: Any, name: str) -> Dict[str, Any]:
    """The versions of modules, which torch has as an attribute of a state_dict()."""
    found, kept = getattr(node, "__dict__", {}), {}
    with contextlib.suppress(TesseraError):
        kept = {key: _values.encode(found[key], name) for key in found if key == _METADATA}
    if lost := sorted(map(str, found.keys() - kept)):
        LOGGER.warning("%s: the attributes %s of an OrderedDict are not saved",
                       name or "state", ", ".join(lost))
    return kept


_DICTS, _TUPLES = ("dict", "OrderedDict"), ("tuple", "namedtuple")


def _merged(a: Any, b: Any, name: str) -> Any:
    if a == b:
        return a
    if isinstance(a, dict) and isinstance(b, dict) and a["!"] in _DICTS and b["!"] in _DICTS:
        children = {json.dumps(key): [key, child] for key, child in a["value"]}
        for key, child in b["value"]:
            mine = children.get(json.dumps(key))
            children[json.dumps(key)] = [key, child if mine is None else _merged(
                mine[1], child, f"{name}.{key}")]
        kind = "OrderedDict" if "OrderedDict" in (a["!"], b["!"]) else "dict"
        return {**a, **_dict(list(children.values()), kind), **_merged_metadata(a, b)}
    if isinstance(a, dict) and isinstance(b, dict) and a["!"] in _TUPLES and b["!"] in _TUPLES:
        return {**a, "value": _merged(a["value"], b["value"], name)}
    if isinstance(a, list) and isinstance(b, list):
        both = [_merged(*pair, f"{name}.{i}") for i, pair in enumerate(zip(a, b))]
        return both + (a if len(a) > len(b) else b)[len(both):]
    raise MismatchError(f"{name[1:]}: is a leaf, or a container of another kind, on another rank")


def _merged_metadata(a: Any, b: Any) -> Dict[str, Any]:
    """Of two state_dict()s. A rank may have something of its own in the place of a module that it
    lacks, so nothing is refused here: the first rank's entry of a module stays, unless another one
    has a higher version."""
    both = [each[_METADATA] for each in (a, b) if _METADATA in each]
    if not all(isinstance(each, dict) and each["!"] in _DICTS for each in both):
        return {_METADATA: both[0]}
    modules: Dict[str, Any] = {}
    for key, entry in (item for each in both for item in each["value"]):
        mine = modules.setdefault(json.dumps(key), [key, entry])
        if _version(entry) > _version(mine[1]):
            mine[1] = entry
    return {_METADATA: {**both[0], "value": list(modules.values())}} if both else {}


def _version(entry: Any) -> int:
    """That of a module's entry; -1 if it has none."""
    items = entry["value"] if isinstance(entry, dict) and entry["!"] in _DICTS else []
    return next((item for key, item in items if key == "version" and isinstance(item, int)), -1)


# ---- From the stored containers to a state.

ABSENT = object()  # in place of a leaf that is to be left out

_Leaf = Callable[[str, bool], Any]


def decode(stored: bytes, leaf: _Leaf, per_rank: _state.PerRank) -> Dict[Any, Any]:
    """The state that encode() was given, of the rank of `per_rank`. `leaf` returns what stands in
    the place of a leaf, by its name and whether it is a tensor."""
    return _checked(STRUCTURE, lambda: _made(json.loads(stored), "", leaf, per_rank))


def decode_places(stored: bytes, is_tensor: Callable[[str], bool], leaf: _Leaf) -> Dict[Any, Any]:
    """The same, of the entry PLACES."""
    return _checked(PLACES, lambda: _made(_of_places(decode_paths(stored), is_tensor), "", leaf,
                                          _state.PerRank()))


def decode_paths(stored: bytes) -> Dict[str, Tuple[Any, ...]]:
    """The keys to each leaf, by its name, of the entry PLACES."""
    return _checked(PLACES, lambda: {name: tuple(path)
                                     for name, path in json.loads(stored).items()})


def _checked(entry: str, make: Callable[[], Any]) -> Dict[Any, Any]:
    try:
        state = make()
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataLossError(
            f"the entry {entry} is not as this package stores it: {error!r}") from None
    if not isinstance(state, dict):
        raise DataLossError(f"the entry {entry} has no dict")
    return state


def _of_places(places: Any, is_tensor: Callable[[str], bool]) -> Any:
    """The containers, from the path of each leaf: keys of dicts and positions in lists."""
    root: Dict[Any, Any] = {}
    for name, path in places.items():
        node = root
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = {"!": "tensor"} if is_tensor(name) else None

    def skeleton(node: Any) -> Any:
        if node is None or node == {"!": "tensor"}:
            return node
        if node is not root and all(isinstance(key, int) for key in node):
            return [skeleton(node.get(i)) for i in range(len(node))]
        return _dict([[key, skeleton(child)] for key, child in node.items()])

    return skeleton(root)


def _made(skeleton: Any, name: str, leaf: _Leaf, per_rank: _state.PerRank) -> Any:
    if skeleton is None or skeleton == {"!": "tensor"}:
        return leaf(name, skeleton is not None)
    kind = "list" if isinstance(skeleton, list) else skeleton["!"]
    items = skeleton if isinstance(skeleton, list) else skeleton["value"]
    if kind in _DICTS:
        made: Dict[Any, Any] = OrderedDict() if kind == "OrderedDict" else {}
        for key, child in items:
            item = _child(child, name, key, leaf, per_rank)
            if item is not ABSENT:
                made[key] = item
        if kind == "OrderedDict" and _METADATA in skeleton:
            setattr(made, _METADATA, _values.decode(skeleton[_METADATA], name))
        return made
    values = [_child(child, name, i, leaf, per_rank) for i, child in enumerate(items)]
    values = [None if value is ABSENT else value for value in values]
    if kind == "list":
        return values
    if kind == "tuple":
        return tuple(values)
    if kind == "namedtuple":
        found = _values.namedtuple_class(skeleton) or _values.made_class(skeleton)
        return _values.tuple_like(found, values)
    raise ValueError(f"a container {kind!r}")


def _child(skeleton: Any, prefix: str, key: Any, leaf: _Leaf, per_rank: _state.PerRank) -> Any:
    if not isinstance(key, (str, int)):
        raise ValueError(f"a key {key!r}")
    plain = _state.child_name(prefix, key)
    name = per_rank.name(prefix, plain)
    if per_rank.begins_at(prefix, name):
        # One that has none is told by a name that no leaf has.
        skeleton = dict(skeleton["value"]).get(f"rank_{per_rank.rank}")
    return _made(skeleton, name, leaf, per_rank)
