"""The containers of a state, which a conversion to a format of nested dicts makes again
(convert/core/saved_values.h). A load does not need them: it has the state that it is given."""

from __future__ import annotations

import json
from typing import Any, Mapping

from . import _state
from ._library import MismatchError

# The entry of a checkpoint that holds them.
STRUCTURE = "tessera_ckpt.structure"


def encode(state: Any, per_rank: _state.PerRank) -> bytes:
    """JSON of the same form as that of values: leaves are null, and tensors {"!": "tensor"}."""
    return _encoded(_skeleton(state, "", per_rank))


def unite(by_rank: Mapping[int, bytes]) -> bytes:
    """The containers of all ranks."""
    each = [json.loads(stored) for stored in by_rank.values() if stored]
    united = each[0] if each else {"!": "dict", "value": []}
    for other in each[1:]:
        united = _united(united, other, "")
    return _encoded(united)


def _encoded(skeleton: Any) -> bytes:
    return json.dumps(skeleton, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _dict(items: Any) -> Any:
    return {"!": "dict", "value": items}


def _skeleton(node: Any, name: str, per_rank: _state.PerRank) -> Any:
    if _state.is_leaf_tensor(node):
        return {"!": "tensor"}
    if not _state.is_branch(node):
        return None
    items = []
    for key, child_name, child in _state.children(node, name, per_rank):
        skeleton = _skeleton(child, child_name, per_rank)
        if per_rank.begins_at(name, child_name):
            skeleton = _dict([[f"rank_{per_rank.rank}", skeleton]])
        items.append([key, skeleton])
    if not isinstance(node, (list, tuple)):
        return _dict(items)
    values = [skeleton for _, skeleton in items]
    return {"!": "tuple", "value": values} if isinstance(node, tuple) else values


def _united(a: Any, b: Any, name: str) -> Any:
    if a == b:
        return a
    if isinstance(a, dict) and isinstance(b, dict) and a["!"] == b["!"] == "dict":
        children = {json.dumps(key): [key, child] for key, child in a["value"]}
        for key, child in b["value"]:
            mine = children.get(json.dumps(key))
            children[json.dumps(key)] = [key, child if mine is None else _united(
                mine[1], child, f"{name}.{key}")]
        return _dict(list(children.values()))
    if isinstance(a, dict) and isinstance(b, dict) and a["!"] == b["!"] == "tuple":
        return {"!": "tuple", "value": _united(a["value"], b["value"], name)}
    if isinstance(a, list) and isinstance(b, list):
        both = [_united(*pair, f"{name}.{i}") for i, pair in enumerate(zip(a, b))]
        return both + (a if len(a) > len(b) else b)[len(both):]
    raise MismatchError(f"{name[1:]}: is a leaf, or a container of another kind, on another rank")
