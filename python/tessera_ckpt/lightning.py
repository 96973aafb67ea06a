"""Checkpoints of Lightning's Trainer as Tessera's:

    from tessera_ckpt.lightning import TesseraCheckpointIO

    trainer = Trainer(plugins=[TesseraCheckpointIO()])
    trainer.fit(model, ckpt_path="last")

The path that Lightning gives, such as "last.ckpt", becomes a folder with one checkpoint, which
every other call of this package takes, too. No pickle is written or read: what cannot be stored as
data, such as an object among the hyperparameters, is refused by its name.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Dict, Optional

from . import _checkpoints
from ._group import ALONE
from ._library import NotFoundError
from ._replace import save_in_place

# The package "pytorch_lightning" has classes of its own.
_FABRIC = "lightning_fabric" if (
    "lightning_fabric" in sys.modules and "lightning" not in sys.modules) else "lightning.fabric"
_Base: Any = importlib.import_module(f"{_FABRIC}.plugins.io.torch_io").TorchCheckpointIO


class TesseraCheckpointIO(_Base):
    """Saves and loads for strategies that give one process all of the state: a single device, and
    DDP. It goes with Lightning's AsyncCheckpointIO."""

    def save_checkpoint(self, checkpoint: Dict[str, Any], path: Any,
                        storage_options: Optional[Any] = None) -> None:
        """Saves; what was at the path is deleted once the new checkpoint is complete."""
        if storage_options is not None:
            raise TypeError("TesseraCheckpointIO takes no storage_options")
        save_in_place(path, checkpoint.get("global_step", 0), checkpoint, ALONE,
                      program="lightning")

    def load_checkpoint(self, path: Any, map_location: Optional[Any] = None,
                        weights_only: Optional[bool] = None) -> Dict[str, Any]:
        """The saved dict, with tensors in the memory of the host, from where Lightning copies them.
        Files that Lightning itself has saved are loaded as it does."""
        if os.path.isfile(path):
            return super().load_checkpoint(path, map_location or (lambda storage, _: storage),
                                           weights_only)
        try:
            return _checkpoints.load(path, None, ALONE, framework="torch")
        except NotFoundError as error:
            raise FileNotFoundError(str(error)) from error
