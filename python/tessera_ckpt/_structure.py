"""The containers of a state, which a conversion to a format of nested dicts makes again
(convert/core/saved_values.h). A load does not need them: it has the state that it is given."""

from __future__ import annotations

import json
from typing import Any, Mapping

from . import _state

# The entry of a checkpoint that holds them.
STRUCTURE = "tessera_ckpt.structure"


def encode(state: Any) -> bytes:
    """JSON of the same form as that of values: leaves are null, and tensors {"!": "tensor"}."""
    return json.dumps(_skeleton(state), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _skeleton(node: Any) -> Any:
    if _state.is_leaf_tensor(node):
        return {"!": "tensor"}
    if not _state._is_branch(node):
        return None
    if isinstance(node, Mapping):
        return {"!": "dict", "value": [[key, _skeleton(child)] for key, child in node.items()]}
    items = [_skeleton(child) for child in node]
    return {"!": "tuple", "value": items} if isinstance(node, tuple) else items
