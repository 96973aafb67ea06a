"""A folder whose newest checkpoint alone counts, for tools that name the place of each save."""

from __future__ import annotations

import json
from typing import Any

from . import _checkpoints
from ._checkpoints import PathLike, SaveReport
from ._group import group_of, together
from ._library import DataLossError, integer


def save_in_place(path: PathLike, step: int, state: Any, group: Any = None,
                  **options: Any) -> SaveReport:
    """Saves so that a load of the folder `path` finds this checkpoint, and then deletes those that
    were there. Whatever happens, the folder has the old one or the new one.

    Args:
      step: of the training. Where the folder has it, or a later one, as after training has gone
        back, the checkpoint takes the next number.
      options: of tessera_ckpt.save().
    """
    with together(group_of(group)) as free:
        found = _checkpoints.latest(path)
        number = integer(step, "step")
        free.value = number if found is None else max(number, found.step + 1)
    return _checkpoints.save(path, free.value, state, group, keep=1, **options)


def are_processes_of(path: PathLike, entry: str, processes: int) -> bool:
    """Whether as many processes have saved a checkpoint, by an entry of it. Collective."""
    with together(group_of(None)):
        stored = _checkpoints.open(path).entry(entry)
        try:
            saved = json.loads(stored)
        except (ValueError, RecursionError) as error:
            raise DataLossError(f"the entry {entry} is no number: {error}") from None
    return bool(saved == processes)
