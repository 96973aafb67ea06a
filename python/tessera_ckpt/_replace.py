"""A folder whose newest checkpoint alone counts, for tools that name the place of each save."""

from __future__ import annotations

from typing import Any, Optional

from . import _checkpoints
from ._checkpoints import PathLike, SaveReport
from ._group import group_of
from ._library import TesseraError


def save_in_place(path: PathLike, step: int, state: Any, group: Any = None,
                  **options: Any) -> SaveReport:
    """Saves so that a load of the folder `path` finds this checkpoint, and then deletes those that
    were there. Whatever happens, the folder has the old one or the new one.

    Args:
      step: of the training. Where the folder has it, or a later one, as after training has gone
        back, the checkpoint takes the next number.
      options: of tessera_ckpt.save().
    """
    found_group = group_of(group)
    failed: Optional[TesseraError] = None
    try:
        found = _checkpoints.latest(path)
        step = step if found is None else max(step, found.step + 1)
    except TesseraError as error:
        failed = error
    if found_group is not None:
        step = found_group.collectives.agree(failed, step)
    elif failed is not None:
        raise failed
    return _checkpoints.save(path, step, state, group, keep=1, **options)
