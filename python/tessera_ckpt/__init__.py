"""Checkpoints that fit any topology: atomic, checksummed, verified on every read.

    import tessera_ckpt

    tessera_ckpt.save("/runs/a", step, {"model": model.state_dict(), "step": step})
    tessera_ckpt.load("/runs/a", state)      # in place, under any sharding

See docs/python.md. The package needs neither numpy nor torch; it takes tensors of both, and of
whatever speaks DLPack, without a copy.
"""

from ._async_saver import AsyncSaver, SaveOutcome
from ._checkpoints import (Checkpoint, CheckpointInfo, Folder, LoadReport, SaveReport, latest,
                           list_checkpoints, load, open, open_foreign, prune, save)
from ._group import ALONE
from ._library import (AbortedError, AccessError, AlreadyExistsError, CancelledError, DataLossError,
                       DeadlineExceededError, InternalError, InvalidArgumentError, MismatchError,
                       NotFoundError, ResourceExhaustedError, TesseraError, UnavailableError,
                       UnimplementedError)
from ._manager import CheckpointManager, Decision
from ._operations import (ConvertReport, Damage, DiffReport, VerifyReport, convert, diff, verify)
from ._state import Box, FlatShard, TensorInfo
from ._transport import Transport
from ._version import __version__

__all__ = [
    "ALONE", "AbortedError", "AccessError", "AlreadyExistsError", "AsyncSaver", "Box",
    "CancelledError", "Checkpoint", "CheckpointInfo", "CheckpointManager", "ConvertReport",
    "Damage", "DataLossError", "DeadlineExceededError", "Decision", "DiffReport", "FlatShard",
    "Folder", "InternalError", "InvalidArgumentError", "LoadReport", "MismatchError",
    "NotFoundError", "ResourceExhaustedError", "SaveOutcome", "SaveReport", "TensorInfo",
    "TesseraError", "Transport", "UnavailableError", "UnimplementedError", "VerifyReport",
    "__version__", "convert", "diff", "latest", "list_checkpoints", "load", "open", "open_foreign",
    "prune", "save", "verify",
]
