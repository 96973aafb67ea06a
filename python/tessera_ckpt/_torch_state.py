"""What a training with torch consists of, as the adapters of torch's tools save it."""

from __future__ import annotations

import random
import sys
from typing import Any, Dict, Sequence

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def training_state(models: Sequence[Any], optimizers: Sequence[Any]) -> Dict[str, Any]:
    """The weights and the state of the optimizers, by the names of the parameters, under whatever
    sharding they have. Several models are one whose name is their number."""
    weights, moments = get_state_dict(_joined(models), list(optimizers))
    return {"model": weights, "optimizer": moments}


def set_training_state(models: Sequence[Any], optimizers: Sequence[Any],
                       state: Dict[str, Any]) -> None:
    """Puts back what training_state() returned, after a load into it."""
    set_state_dict(_joined(models), list(optimizers), model_state_dict=state["model"],
                   optim_state_dict=state["optimizer"])


def _joined(models: Sequence[Any]) -> Any:
    return models[0] if len(models) == 1 else torch.nn.ModuleList(models)


def random_states() -> Dict[str, Any]:
    """The states of this process's generators, to be saved `per_rank`."""
    states: Dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    accelerator = _accelerator()
    if accelerator:
        states[accelerator] = _generators(accelerator).get_rng_state_all()
    return states


def set_random_states(states: Dict[str, Any]) -> None:
    """Puts back what random_states() returned."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
    for accelerator in states.keys() - {"python", "torch", "numpy"}:
        if _generators(accelerator) is not None:  # of a machine with other accelerators
            _generators(accelerator).set_rng_state_all(states[accelerator])


def _accelerator() -> str:
    """The type of this process's accelerator whose generators torch knows, such as "cuda" or "xpu";
    empty without one."""
    if torch.cuda.is_available():
        return "cuda"
    accelerators: Any = getattr(torch, "accelerator", None)  # since torch 2.6
    is_there = accelerators is not None and accelerators.is_available()
    device = accelerators.current_accelerator() if is_there else None
    return device.type if device and hasattr(_generators(device.type), "get_rng_state_all") else ""


def _generators(accelerator: str) -> Any:
    """The module with the functions of an accelerator's generators."""
    module = getattr(torch, accelerator, None)
    return module if hasattr(module, "get_rng_state_all") else getattr(module, "random", None)
