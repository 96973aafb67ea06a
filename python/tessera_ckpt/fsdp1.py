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

from typing import Any, Container, Dict, Iterator, Mapping, MutableMapping, NamedTuple, Tuple

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from ._library import InvalidArgumentError, UnimplementedError
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


def model_state(model: Any, leave_out_extra_state: bool = False) -> Dict[str, Any]:
    """The parameters, and, replicated on every rank, what FSDP does not shard: buffers, and
    parameters of modules that it ignores.

    Args:
      leave_out_extra_state: whether modules may have state of get_extra_state(), which is not
        among this, and which the program saves and puts back by itself.
    """
    state: Dict[str, Any] = {}
    for name, module in model.named_modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state and (
                not leave_out_extra_state):
            raise UnimplementedError(
                f"{_clean(name)}: what get_extra_state() of {type(module).__name__} returns is not "
                "loaded into the module: save it by yourself, and give leave_out_extra_state=True")
    for part in _ranges(model):
        state[part.name] = _part(part.flat._local_shard, part)
    for name, value in model.named_buffers():
        state[_clean(name)] = value
    state.update(_ignored(model, state))
    return state


def _ignored(model: Any, flat: Container[str]) -> Dict[str, Any]:
    """The parameters that are in no flat one, by name."""
    named = ((_clean(name), value) for name, value in model.named_parameters())
    return {name: value for name, value in named
            if name not in flat and not name.split(".")[-1].startswith("_flat_param")}


def optimizer_state(model: Any, optimizer: Any) -> Dict[str, Any]:
    """The optimizer's state by the names of the parameters, and its groups. A load into it changes
    the optimizer, learning rates and other numbers included. An optimizer that has taken no step
    yet has none: to load into it, take one with learning rate 0 before."""
    state: Dict[str, Dict[str, Any]] = {}
    owners = set()
    for part in _ranges(model):
        owner = part.flat if part.original is None else part.original
        owners.add(owner)
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
    for name, parameter in _ignored(model, state).items():
        owners.add(parameter)
        saved = optimizer.state.get(parameter, {})
        state[name] = _Live(saved, saved)
    for other in optimizer.state.keys() - owners:
        what = (f"a parameter of shape {tuple(other.shape)}" if isinstance(other, torch.Tensor)
                else repr(other))
        raise InvalidArgumentError(
            f"the optimizer has state of {what} that the model does not have")
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
