"""State of FullyShardedDataParallel (FSDP1): each rank's ranges of the flat parameters.

    from tessera_ckpt import fsdp1

    state = {"model": fsdp1.model_state(model),
             "optimizer": fsdp1.optimizer_state(model, optimizer)}
    tessera_ckpt.save("/runs/a", step, state)     # and load() into the same, at any number of ranks

The tensors have the names, shapes and contents that they have without FSDP, so that a checkpoint
fits every other sharding: nothing is gathered, and no rank holds more than its own part. Modules of
FSDP2 need none of this: their parameters are DTensors.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, Mapping, MutableMapping, NamedTuple, Tuple

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from ._library import InvalidArgumentError
from ._state import FlatShard

_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


class _Range(NamedTuple):
    """A parameter's part on this rank."""

    name: str
    shape: Tuple[int, ...]
    begin: int  # in the flattened parameter
    first: int  # in this rank's shard of the flat parameter
    elements: int
    flat: Any  # the flat parameter
    original: Any  # the module's own parameter, with use_orig_params


def _clean(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _ranges(model: Any) -> Iterator[_Range]:
    found = False
    for prefix, module in model.named_modules():
        handle = getattr(module, "_handle", None) if (
            isinstance(module, FullyShardedDataParallel)) else None
        if handle is None:
            continue
        found = True
        flat = handle.flat_param
        originals = flat._params if handle._use_orig_params else [None] * len(flat._fqns)
        for name, shape, info, original in zip(flat._fqns, flat._shapes, flat._shard_param_infos,
                                               originals):
            full_name = _clean(f"{prefix}.{name}" if prefix else name)
            begin = info.intra_param_start_idx if info.in_shard else 0
            yield _Range(full_name, tuple(shape), begin or 0, info.offset_in_shard or 0,
                         info.numel_in_shard if info.in_shard else 0, flat, original)
    if not found:
        raise InvalidArgumentError("the model has no flat parameters of FSDP1")


class _Live(dict):  # type: ignore[type-arg]
    """A dict of a state whose values, once a load replaces them, are replaced in the optimizer,
    too. Tensors need no such thing: they are loaded in place."""

    def __init__(self, items: Mapping[str, Any], optimizers: MutableMapping[str, Any]) -> None:
        super().__init__(items)
        self._optimizers = optimizers

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self._optimizers[key] = value


def _part(shard: Any, part: _Range) -> FlatShard:
    """A parameter's part of a tensor that is sharded as its flat parameter is."""
    return FlatShard(shard.detach().reshape(-1)[part.first:part.first + part.elements], part.begin,
                     part.shape)


def model_state(model: Any) -> Dict[str, Any]:
    """The parameters, and, replicated on every rank, what FSDP does not shard: buffers."""
    state: Dict[str, Any] = {}
    for part in _ranges(model):
        state[part.name] = _part(part.flat._local_shard, part)
    for name, value in model.named_buffers():
        state[_clean(name)] = value
    for name, value in model.named_parameters():
        clean = _clean(name)
        if clean not in state and not clean.split(".")[-1].startswith("_flat_param"):
            state[clean] = value  # of modules that are ignored
    return state


def optimizer_state(model: Any, optimizer: Any) -> Dict[str, Any]:
    """The optimizer's state by the names of the parameters, and its groups. A load into it changes
    the optimizer, learning rates and other numbers included. An optimizer that has taken no step
    yet has none: to load into it, take one with learning rate 0 before."""
    state: Dict[str, Dict[str, Any]] = {}
    names: Dict[int, str] = {}
    for part in _ranges(model):
        owner = part.flat if part.original is None else part.original
        names[id(owner)] = part.name
        saved = optimizer.state.get(owner, {})
        if not saved and part.elements == 0:
            # This rank takes no part in the parameter; the others have its state.
            saved = _like_others(optimizer, part)
        items: Dict[str, Any] = {}
        for key, value in saved.items():
            if not isinstance(value, torch.Tensor) or value.dim() == 0:
                items[key] = value
            elif part.original is None:
                items[key] = _part(value, part)
            else:
                elements = value.detach().reshape(-1)
                items[key] = FlatShard(elements, part.begin, part.shape)
        state[part.name] = _Live(items, saved)
    groups = [_Live({key: value for key, value in group.items() if key != "params"}, group)
              for group in optimizer.param_groups]
    return {"state": state, "param_groups": groups}


def _like_others(optimizer: Any, part: _Range) -> Dict[str, Any]:
    """State of the kinds that other parameters have, without elements."""
    for other in optimizer.state.values():
        if other:
            return {key: value if not isinstance(value, torch.Tensor) else (
                value.clone() if value.dim() == 0 else value.new_empty(0))
                    for key, value in other.items()}
    return {}
