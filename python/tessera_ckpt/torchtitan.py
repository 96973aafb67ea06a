"""torchtitan's checkpoints as Tessera's. A configuration of torchtitan names the manager:

    from tessera_ckpt.torchtitan import CheckpointManager

    config.checkpoint = CheckpointManager.Config(enable=True, interval=500, async_mode="async")

It does what torchtitan's own manager does, with the same settings. Weights for Hugging Face are
written and read as there.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from . import _checkpoints
from .dcp import Reader, Writer


titan: Any = importlib.import_module("torchtitan.components.checkpointer.dcp")


class CheckpointManager(titan.CheckpointManager):  # type: ignore[misc]
    """torchtitan's CheckpointManager, with checkpoints of Tessera."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.CheckpointManager.Config):  # type: ignore[misc]
        """Its settings."""

    def dcp_save(self, state_dict: Any, checkpoint_id: str, async_mode: Any,
                 enable_garbage_collection: bool = False, to_hf: bool = False) -> Any:
        if to_hf:
            return super().dcp_save(state_dict, checkpoint_id, async_mode,
                                    enable_garbage_collection, to_hf)
        if async_mode == titan.AsyncMode.ASYNC_WITH_PINNED_MEM:
            raise ValueError("tessera_ckpt saves with async_mode \"disabled\" or \"async\"")
        writer = Writer(checkpoint_id)
        if async_mode == titan.AsyncMode.ASYNC:
            saved = async_save(state_dict, storage_writer=writer, process_group=self.pg)
        else:
            saved = save(state_dict, storage_writer=writer)
        if enable_garbage_collection:
            titan.GarbageCollection.collect("GC collection invoked by checkpointer.")
        return saved

    def dcp_load(self, state_dict: Any, checkpoint_id: str, from_hf: bool,
                 from_quantized: bool) -> None:
        if from_hf:
            super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
            return
        load(state_dict, storage_reader=Reader(checkpoint_id))
        if titan.MODEL in self.states:
            self.states[titan.MODEL].load_state_dict(state_dict)

    def _find_load_step(self, folder: str = "") -> int:
        found = _checkpoints.latest(folder or self.folder)
        return -1 if found is None else found.step

    def _create_checkpoint_id(self, step: int, folder: str = "") -> str:
        return f"{(folder or self.folder).rstrip('/')}/step-{step:08d}"

    def _purge_stale_checkpoints(self) -> None:
        if self._should_purge():
            _checkpoints.Folder(self.folder).prune(self.keep_latest_k)
