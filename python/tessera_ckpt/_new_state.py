"""States, and parts of them, that a load makes as they were saved."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, MutableMapping, NamedTuple, Optional, Tuple

from . import _state, _structure, _tensors
from ._library import MismatchError


class Contents(NamedTuple):
    """What a checkpoint has, by name."""

    entries: Mapping[str, bytes]  # those that tell the containers
    tensors: Mapping[str, _state.TensorInfo]
    values: List[str]


class _Leaves:
    """Makes what takes the places of leaves until they are loaded: tensors without contents, and
    None for values."""

    def __init__(self, contents: Contents, framework: Optional[str]) -> None:
        self._library, self._contents = _tensors.framework_named(framework), contents
        self._values = frozenset(contents.values)
        self._tensors: Dict[str, Any] = {}  # tied ones are one
        self.seen: Dict[str, None] = {}
        self.missing: List[str] = []

    def make(self, name: str, is_tensor: bool) -> Any:
        self.seen[name] = None
        info = self._contents.tensors.get(name) if is_tensor else None
        if info is None and name not in self._values:
            self.missing.append(name)
            return _structure.ABSENT
        if info is None:
            return None
        first = info.alias_of or name
        if first not in self._tensors:
            self._tensors[first] = _tensors.empty_of(self._library, info.dtype, info.shape, name)
        return self._tensors[first]


def whole(contents: Contents, per_rank: _state.PerRank, framework: Optional[str]
          ) -> Tuple[Dict[Any, Any], List[str]]:
    """A state like the saved one, and the leaves of its containers that were not saved. What the
    stored containers do not name is beside them."""
    leaves = _Leaves(contents, framework)
    state: Dict[Any, Any] = {}
    if _structure.STRUCTURE in contents.entries:
        state = _structure.decode(contents.entries[_structure.STRUCTURE], leaves.make, per_rank)
    elif _structure.PLACES in contents.entries:
        state = _structure.decode_places(contents.entries[_structure.PLACES],
                                         contents.tensors.__contains__, leaves.make)
    for name in [*contents.tensors, *contents.values]:
        if name not in leaves.seen and not per_rank.is_of_another(name):
            state[name] = leaves.make(name, name in contents.tensors)
    return state, leaves.missing


class OptimizerState(NamedTuple):
    """The state of an optimizer that has taken no step: what is saved of it fills the dict."""

    place: MutableMapping[Any, Any]
    name: str
    made: Dict[Any, Any]  # what is to be loaded


def of_optimizers(contents: Contents, state: Any, per_rank: _state.PerRank,
                  framework: Optional[str], allow_unexpected: bool) -> List[OptimizerState]:
    """Those of `state` of which something is saved. Whole moments do not fit a state that has parts
    of tensors: unless what is saved may be left out, that is an error."""
    found: List[OptimizerState] = []
    for place, name, keys in _without_steps(state, "", (), per_rank):
        saved = [each for each in [*contents.tensors, *contents.values]
                 if each.startswith(f"{name}.")]
        made = None if any(map(_state.is_part, _state.flatten(state, per_rank).tensors.values())
                           ) else _branch(contents, name, keys, per_rank, framework)
        if made is not None:
            found.append(OptimizerState(place, name, made))
        elif saved and not allow_unexpected:
            raise MismatchError(
                f"{name}: is empty, as before the optimizer's first step, and the checkpoint has "
                f"{len(saved)} tensors and values of it: take the state from "
                "torch.distributed.checkpoint.state_dict.get_state_dict(), which makes them")
    return found


def _branch(contents: Contents, name: str, keys: Tuple[Any, ...], per_rank: _state.PerRank,
            framework: Optional[str]) -> Optional[Dict[Any, Any]]:
    """A dict of the saved state; None if the checkpoint does not tell of it."""
    if _structure.STRUCTURE not in contents.entries:
        return None
    leaves = _Leaves(contents, framework)

    def leaf(each: str, is_tensor: bool) -> Any:
        return leaves.make(each, is_tensor) if each.startswith(f"{name}.") else _structure.ABSENT

    made: Any = _structure.decode(contents.entries[_structure.STRUCTURE], leaf, per_rank)
    try:
        for key in keys:
            made = made[key]
    except (LookupError, TypeError):
        return None
    return made if isinstance(made, dict) else None


def _without_steps(node: Any, name: str, keys: Tuple[Any, ...], per_rank: _state.PerRank
                   ) -> Iterator[Tuple[MutableMapping[Any, Any], str, Tuple[Any, ...]]]:
    """The empty dicts "state" beside "param_groups", with their names and the keys to them."""
    for key, child_name, child in _state.children(node, name, per_rank):
        if key == "state" and isinstance(child, MutableMapping) and not child and (
                isinstance(node, Mapping) and "param_groups" in node):
            yield child, child_name, (*keys, key)
        elif isinstance(child, (Mapping, list, tuple)) and not _state.is_leaf_tensor(child) and (
                _state.is_branch(child)):
            yield from _without_steps(child, child_name, (*keys, key), per_rank)
