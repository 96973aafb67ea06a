"""The state of an Accelerator of Hugging Face's accelerate, in one checkpoint:

    from tessera_ckpt.accelerate import load_state, save_state

    save_state(accelerator, "/runs/a/latest")     # in place of accelerator.save_state(...)
    load_state(accelerator, "/runs/a/latest")     # at any number of processes

What accelerator.save_state() puts into several files is saved at once: a save into a folder that
has a checkpoint leaves the old one or the new one, whatever happens. Nothing is pickled. Hooks of
register_save_state_pre_hook() are not called: they are told of files that do not exist.
"""

from __future__ import annotations

import json
from typing import Any, Dict

from accelerate.utils import DistributedType

from . import _checkpoints
from ._checkpoints import LoadReport, PathLike, SaveReport
from ._library import UnimplementedError
from ._replace import are_processes_of, save_in_place
from ._torch_state import (random_states, set_random_states, set_training_state,
                           training_state)

# How many processes have saved states of their own.
_PROCESSES = "accelerate.processes"


def _state(accelerator: Any) -> Dict[str, Any]:
    if accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise UnimplementedError(f"{accelerator.distributed_type} has checkpoints of its own, "
                                 "which tessera_ckpt.convert() reads")
    optimizers = [getattr(each, "optimizer", each) for each in accelerator._optimizers]
    state = training_state(accelerator._models, optimizers)
    state["schedulers"] = [each.state_dict() for each in accelerator._schedulers]
    state["objects"] = [each.state_dict() for each in accelerator._custom_objects]
    state["scaler"] = accelerator.scaler.state_dict() if accelerator.scaler is not None else None
    state["accelerator_step"] = accelerator.step
    state["random"] = random_states()
    state["dataloaders"] = [each.state_dict() if getattr(each, "use_stateful_dataloader", False)
                            else None for each in accelerator._dataloaders]
    return state


def save_state(accelerator: Any, output_dir: PathLike, step: int = 0) -> SaveReport:
    """Saves the prepared models, optimizers, schedulers and dataloaders, the registered objects,
    the scaler, and the generators of each process. Every process calls it.

    Args:
      output_dir: a folder, whose newest checkpoint this becomes and whose others are deleted.
      step: of the training; by default the next number in the folder.
    """
    return save_in_place(output_dir, step, _state(accelerator), program="accelerate",
                         per_rank=["random", "dataloaders"],
                         entries={_PROCESSES: json.dumps(accelerator.num_processes).encode()})


def load_state(accelerator: Any, input_dir: PathLike) -> LoadReport:
    """Loads what save_state() has saved. At another number of processes, the generators and the
    stateful dataloaders stay as they are."""
    state = _state(accelerator)
    same = are_processes_of(input_dir, _PROCESSES, accelerator.num_processes)
    if not same:
        del state["random"], state["dataloaders"]
    report = _checkpoints.load(input_dir, state,
                               allow_unexpected=not same and ["random", "dataloaders"])
    optimizers = [getattr(each, "optimizer", each) for each in accelerator._optimizers]
    set_training_state(accelerator._models, optimizers, state)
    for scheduler, saved in zip(accelerator._schedulers, state["schedulers"]):
        scheduler.load_state_dict(saved)
    for each, saved in zip(accelerator._custom_objects, state["objects"]):
        each.load_state_dict(saved)
    if accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(state["scaler"])
    accelerator.step = state["accelerator_step"]
    for loader, saved in zip(accelerator._dataloaders, state.get("dataloaders", [])):
        if saved is not None:
            loader.load_state_dict(saved)
    if same:
        set_random_states(state["random"])
    return report
