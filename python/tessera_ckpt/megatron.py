"""Checkpoints of Megatron-Core's dist_checkpointing as Tessera's:

    from megatron.core import dist_checkpointing
    import tessera_ckpt.megatron

    dist_checkpointing.save(sharded_state_dict, folder, ("tessera_ckpt", 1))
    state_dict = dist_checkpointing.load(sharded_state_dict, folder)

Tensors have the names, shapes and elements that Megatron gives them, and load under any other
tensor, pipeline and data parallelism, as far as Megatron's sharded state dicts do. Beside the
checkpoint, Megatron writes what is not sharded into common.pt, and metadata.json, without which it
takes a folder for incomplete. What it shards and is no tensor is stored as torch pickles it, and
loaded with weights_only=True.
"""

from __future__ import annotations

import io
import os
import re
from typing import Any, Dict, List

import torch
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_outplace, nested_values
from megatron.core.dist_checkpointing.mapping import (CheckpointingException, ShardedObject,
                                                      ShardedTensor, is_main_replica)
from megatron.core.dist_checkpointing.strategies import base

from . import _checkpoints
from ._group import group_of, together
from ._replace import save_in_place
from ._state import Boxes

BACKEND, VERSION = "tessera_ckpt", 1

# Before the name of what is no tensor: its bytes are one.
_OBJECT = "megatron.object/"


def _box(sharded: Any, data: Any) -> Any:
    """A part with the axes that its tensor has and it does not."""
    return data.detach().view((1,) * sharded.prepend_axis_num + tuple(data.shape))


class SaveStrategy(base.SaveShardedStrategy):
    """Saves what Megatron has sharded. Collective over all ranks."""

    def __init__(self) -> None:
        super().__init__(BACKEND, VERSION)

    @property
    def can_handle_sharded_objects(self) -> bool:
        return True

    def save(self, sharded_state_dict: Any, checkpoint_dir: Any) -> None:
        state: Dict[str, Any] = {}
        with together(group_of(None)):
            for each in nested_values(sharded_state_dict):
                if not is_main_replica(each.replica_id):
                    continue
                if isinstance(each, ShardedTensor):
                    boxes = state.setdefault(each.key, Boxes([], tuple(each.global_shape)))
                    boxes.parts.append((_box(each, each.data), tuple(each.global_offset)))
                else:
                    data = io.BytesIO()
                    torch.save(each.data, data)
                    state[_OBJECT + each.unique_key] = torch.frombuffer(data.getbuffer(),
                                                                        dtype=torch.uint8)
        step = re.fullmatch(r"iter_(\d+)", os.path.basename(os.fspath(checkpoint_dir)))
        save_in_place(checkpoint_dir, int(step[1]) if step else 0, state, program="megatron-core")


class LoadStrategy(base.LoadShardedStrategy):
    """Loads what SaveStrategy, or another call of this package, has saved. Collective over all
    ranks."""

    @property
    def can_handle_sharded_objects(self) -> bool:
        return True

    def check_backend_compatibility(self, loaded_backend: Any) -> None:
        if loaded_backend != BACKEND:
            raise CheckpointingException(f"the checkpoint is one of {loaded_backend}")

    def check_version_compatibility(self, loaded_version: Any) -> None:
        if loaded_version > VERSION:
            raise CheckpointingException(f"version {loaded_version} is not known")

    def load(self, sharded_state_dict: Any, checkpoint_dir: Any) -> Any:
        state: Dict[str, Any] = {}
        padding: List[Any] = []
        with together(group_of(None)):
            saved = _checkpoints.open(checkpoint_dir).tensors
            for each in nested_values(sharded_state_dict):
                if isinstance(each, ShardedTensor):
                    if each.data is None:
                        each.init_data("cpu")
                    self._add(state, each, saved, padding)
                elif _OBJECT + each.unique_key in saved:
                    name = _OBJECT + each.unique_key
                    state[name] = torch.empty(saved[name].shape, dtype=torch.uint8)
                else:
                    raise CheckpointingException(f"{each.unique_key} is not saved")
        _checkpoints.load(checkpoint_dir, state, allow_unexpected=True)
        for rows in padding:
            rows.zero_()

        def loaded(each: Any) -> Any:
            if isinstance(each, ShardedTensor):
                return each.data
            return torch.load(io.BytesIO(state[_OBJECT + each.unique_key].numpy().tobytes()),
                              map_location="cpu", weights_only=True)

        return dict_list_map_outplace(loaded, sharded_state_dict)

    @staticmethod
    def _add(state: Dict[str, Any], each: Any, saved: Any, padding: List[Any]) -> None:
        """A part; of one whose tensor may have another shape, such as a vocabulary with padding,
        what both have. The rest is padding."""
        shape, part = tuple(each.global_shape), _box(each, each.data)
        if each.allow_shape_mismatch and each.key in saved:
            shape = saved[each.key].shape
            for dim, (extent, offset) in enumerate(zip(shape, each.global_offset)):
                kept = max(0, min(part.shape[dim], extent - offset))
                padding.append(part.narrow(dim, kept, part.shape[dim] - kept))
                part = part.narrow(dim, 0, kept)
        boxes = state.setdefault(each.key, Boxes([], shape))
        if part.numel() > 0 or not boxes.parts:
            boxes.parts.append((part, tuple(each.global_offset)))

    def load_tensors_metadata(self, checkpoint_dir: Any) -> Dict[str, Any]:
        return {name: ShardedTensor.from_rank_offsets(name, torch.empty(
            info.shape, dtype=getattr(torch, info.dtype), device="meta")).without_data()
                for name, info in _checkpoints.open(checkpoint_dir).tensors.items()
                if not name.startswith(_OBJECT)}

    def load_sharded_metadata(self, checkpoint_dir: Any) -> Dict[str, Any]:
        metadata = self.load_tensors_metadata(checkpoint_dir)
        for name in _checkpoints.open(checkpoint_dir).tensors:
            if name.startswith(_OBJECT):
                key = name[len(_OBJECT):]
                metadata[key] = ShardedObject.empty_from_unique_key(key)
        return metadata


base.register_default_strategy(base.StrategyAction.SAVE_SHARDED, BACKEND, VERSION, SaveStrategy())
base.register_default_strategy(base.StrategyAction.LOAD_SHARDED, BACKEND, VERSION, LoadStrategy())
