"""torch.distributed.checkpoint on top of Tessera's checkpoints.

    import torch.distributed.checkpoint as dcp
    from tessera_ckpt.dcp import Reader, Writer

    dcp.save(state, storage_writer=Writer("/runs/a", step=100))
    dcp.load(state, storage_reader=Reader("/runs/a"))
    dcp.save(state, checkpoint_id="/runs/b/step-100", storage_writer=Writer())
    dcp.load(state, checkpoint_id="/runs/b/step-100", storage_reader=Reader())

What dcp.save() writes is a checkpoint as tessera_ckpt.save() makes it: it exists once it is
complete, has checksums that every read verifies, and the tools and the library read it.
"""

from __future__ import annotations

import io
import json
import os
import struct
import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata,
                                                   Metadata, StorageMeta, TensorProperties,
                                                   TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import _checkpoints, _packed, _state, _values
from ._structure import PLACES, decode_paths
from ._group import ALONE, TIMEOUT_SECONDS, Group, group_of, together
from ._interrupt import cancelling
from ._library import (InvalidArgumentError, SaveOptions, TesseraError, UnimplementedError,
                       integer, lib, report)
from ._checkpoints import Checkpoint, Folder, PathLike

# Entries of a checkpoint: what torch has pickled, by name.
_BYTES = "torch.distributed.checkpoint/"

# How planners pickle, unless they have a way of their own.
_TRANSFORM = DefaultSavePlanner.transform_object

_groups: "weakref.WeakKeyDictionary[Any, Group]" = weakref.WeakKeyDictionary()


def _own_group(group: Any) -> Optional[Group]:
    """A group for saves and loads alone: dcp.async_save() works in a thread of its own. Collective
    where it is the first one."""
    if group is ALONE or not dist.is_initialized():
        return None
    key = dist.group.WORLD if group is None else group
    if key not in _groups:
        made = group_of(key, own=True)
        if made is None:
            return None
        _groups[key] = made
    return _groups[key]


def _given(path: Optional[str]) -> str:
    if path is None:
        raise InvalidArgumentError("neither a path nor a checkpoint_id was given")
    return path


class _Plain:
    """What a writer and a reader have in common: plans stay as they are, and names are paths."""

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike))


class _Values:
    """What a plan has besides tensors. Small values are stored as torch pickles them and, where
    their types are known, as this package does; large ones that can be packed only as tensors."""

    def __init__(self) -> None:
        self.pickled: Dict[str, bytes] = {}
        self.places: Dict[str, Any] = {}
        self.values: Dict[str, Any] = {}
        self.kinds: Dict[str, str] = {}
        self.packed: Dict[str, _packed.Packed] = {}

    def add(self, name: str, item: Any, planner: Any) -> None:
        plain = getattr(type(planner), "transform_object", None) is _TRANSFORM
        packed = _packed.pack(planner.lookup_object(item.index), name) if plain else None
        if packed is not None:
            self.packed[name], self.kinds[name] = packed, packed.kind
            return
        self.pickled[name] = planner.resolve_data(item).getvalue()
        try:  # readable without torch
            self.values[name] = _values.encode(planner.lookup_object(item.index), name)
        except (AttributeError, TesseraError):
            pass

    def encoded(self) -> bytes:
        """All but the packed values, for rank 0."""
        sizes = {name: len(data) for name, data in self.pickled.items()}
        head = json.dumps([sizes, self.places, self.values, self.kinds]).encode()
        return b"".join([struct.pack("<q", len(head)), head, *self.pickled.values()])

    @classmethod
    def of_ranks(cls, messages: List[bytes]) -> "_Values":
        """What these ranks have, from their encoded()."""
        made = cls()
        for message in messages:
            made._take(message)
        return made

    def _take(self, message: bytes) -> None:
        begin = 8 + struct.unpack_from("<q", message)[0]
        sizes, *others = json.loads(message[8:begin])
        for mine, its in zip((self.places, self.values, self.kinds), others):
            mine.update(its)
        for name, size in sizes.items():
            self.pickled[name] = message[begin:begin + size]
            begin += size

    def entries(self) -> Dict[str, bytes]:
        made = {_BYTES + name: data for name, data in self.pickled.items()}
        made[PLACES] = json.dumps(self.places).encode()
        made[_state.VALUES] = json.dumps(self.values).encode()
        if self.kinds:
            made[_packed.PACKED] = _packed.encode(self.kinds)
        return made


class Writer(_Plain, storage.StorageWriter):
    """Writes a checkpoint of Tessera for dcp.save() and dcp.async_save()."""

    def __init__(self, path: Optional[PathLike] = None, *, step: Optional[int] = None,
                 group: Any = None, overwrite: bool = False,
                 timeout_seconds: float = TIMEOUT_SECONDS, s3_endpoint: str = "") -> None:
        """Collective over the group.

        Args:
          path: a folder, which has one or several checkpoints; or a checkpoint in it, by the name
            that it gets there: ".../step-00000100". The checkpoint_id of a save replaces it.
          step: of the training; by default what the last part of the path says, as in "step-100",
            or else the next one in the folder.
          group: the ranks that save; by default all. tessera_ckpt.ALONE goes with no_dist=True.
          overwrite: as for tessera_ckpt.save().
        """
        self._group = _own_group(group)
        self._timeout_seconds, self._s3_endpoint = timeout_seconds, s3_endpoint
        self._overwrite = bool(overwrite)
        self._path, self._step = None if path is None else os.fspath(path), step

    def __reduce__(self) -> Any:
        raise UnimplementedError("a Writer saves in the process that made it: dcp.async_save() "
                                 "takes it with AsyncCheckpointerType.THREAD")

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            self._path = os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, use_collectives: bool = True,
                              **kwargs: Any) -> None:
        if not use_collectives and self._group is not None:  # torch would make one of each rank
            raise InvalidArgumentError("use_collectives=False: the ranks save one checkpoint, and "
                                       "agree on it; tessera_ckpt.ALONE saves one of each rank")

    def write_data(self, plan: Any, planner: Any) -> "Future[List[WriteResult]]":
        """Saves, together with the other ranks."""
        group, mine = self._group, _Values()
        if group is not None:
            group.collectives.timeout_seconds = self._timeout_seconds
        with together(group) as agreed:
            name, in_path = _checkpoints.place(_given(self._path))
            step = in_path if self._step is None else self._step
            if name != self._path and step != in_path:
                raise InvalidArgumentError(f"{self._path} is not that of step {step}")
            boxes = self._resolve(plan, planner, mine)
            description = _state.Description(boxes, program="torch.distributed.checkpoint")
            for value, packed in mine.packed.items():
                description.add_packed(value, packed.memory)
            folder = Folder(name, create=True, s3_endpoint=self._s3_endpoint)
            if step is None and _checkpoints.is_first(group):
                saved = folder.list()
                step = saved[-1].step + 1 if saved else 0
            agreed.value = None if step is None else integer(step, "step")
            encoded = b"" if group is None else mine.encoded()
        step = agreed.value
        values = [] if group is None else group.collectives.gather(encoded, self._timeout_seconds)
        with together(group):
            description.set_entries(
                (mine if group is None else _Values.of_ranks(values)).entries())
        with cancelling() as cancelled:
            options = SaveOptions(group=None if group is None else group.pointer(),
                                  timeout_seconds=self._timeout_seconds, cancelled=cancelled,
                                  overwrite=self._overwrite)
            found = report(lib.folder_save, folder.handle, step, description.handle, options)
        _checkpoints.save_report(folder, step, found)
        future: "Future[List[WriteResult]]" = Future()
        future.set_result([WriteResult(index=item.index, size_in_bytes=0, storage_data=None)
                           for item in plan.items])
        return future

    def finish(self, metadata: Any, results: Any) -> None:
        """The checkpoint is complete already."""

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=_given(self._path))

    @staticmethod
    def _resolve(plan: Any, planner: Any, values: _Values) -> Dict[str, Any]:
        """This rank's boxes; adds what else it has to save to the values."""
        parts: Dict[str, _state.Boxes] = {}
        for item in plan.items:
            name = item.index.fqn
            if item.type == WriteItemType.BYTE_IO:
                values.add(name, item, planner)
                continue
            data, chunk = planner.resolve_data(item), item.tensor_data.chunk
            if tuple(data.shape) != tuple(chunk.sizes):
                raise InvalidArgumentError(f"{name}: a part of shape {tuple(data.shape)}, planned "
                                           f"was {tuple(chunk.sizes)}")
            boxes = parts.setdefault(name, _state.Boxes([], tuple(item.tensor_data.size)))
            boxes.parts.append((data, tuple(chunk.offsets)))
        if isinstance(plan.planner_data, dict):
            values.places = {name: list(path) for name, path in plan.planner_data.items()}
        return parts


class Reader(_Plain, storage.StorageReader):
    """Reads a checkpoint of Tessera, whatever has saved it, for dcp.load()."""

    def __init__(self, path: Optional[PathLike] = None, *, group: Any = None,
                 verify_digests: bool = False, s3_endpoint: str = "") -> None:
        """Collective over the group.

        Args:
          path: a checkpoint, or a folder of them, which stands for the one that open() finds there.
            The checkpoint_id of a load replaces it.
          group: the ranks that load; by default all. tessera_ckpt.ALONE goes with no_dist=True.
          verify_digests: compares what is in memory afterwards with the saved digests, too.
        """
        self._group = _own_group(group)
        self._path = None if path is None else os.fspath(path)
        self._s3_endpoint = s3_endpoint
        self._verify_digests = verify_digests
        self._checkpoint: Optional[Checkpoint] = None

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            self._path = os.fspath(checkpoint_id)
        self._checkpoint = None

    def _open(self) -> Checkpoint:
        path = _given(self._path)
        if self._group is not None:
            path = _checkpoints._agree_on_name(path, self._s3_endpoint, self._group)
        return _checkpoints.open(path, s3_endpoint=self._s3_endpoint)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        checkpoint = self._checkpoint = self._open()
        found: Dict[str, Any] = {}
        for name, info in checkpoint.tensors.items():
            size = torch.Size(info.shape)
            whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
            found[name] = TensorStorageMetadata(
                properties=TensorProperties(dtype=getattr(torch, info.dtype)), size=size,
                chunks=[whole])
        entries = checkpoint._entry_names
        for entry in entries:
            if entry.startswith(_BYTES):
                found[entry[len(_BYTES):]] = BytesStorageMetadata()
        for name in [*checkpoint._stored_values(), *checkpoint._packed]:
            found.setdefault(name, BytesStorageMetadata())
        paths = decode_paths(checkpoint.entry(PLACES)) if PLACES in entries else {}
        return Metadata(state_dict_metadata=found, planner_data=paths or {
            name: tuple(name.split(".")) for name in found})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        if self._checkpoint is None:
            self._checkpoint = self._open()

    def read_data(self, plan: Any, planner: Any) -> "Future[None]":
        """Loads, together with the other ranks."""
        checkpoint = self._checkpoint
        assert checkpoint is not None
        state: Dict[str, Any] = {}
        targets: List[Tuple[Any, Any]] = []
        with together(self._group):
            for item in plan.items:
                name = item.storage_index.fqn
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, io.BytesIO(self._pickled(checkpoint, name)))
                    continue
                target = planner.resolve_tensor(item).detach()
                for dim, (offset, length) in enumerate(zip(item.dest_offsets, item.lengths)):
                    target = target.narrow(dim, offset, length)
                begin = item.storage_index.offset or (0,) * len(item.storage_offsets)
                offset = tuple(a + b for a, b in zip(begin, item.storage_offsets))
                boxes = state.setdefault(name, _state.Boxes([], checkpoint.tensors[name].shape))
                boxes.parts.append((target, offset))
                targets.append((item, target))
        checkpoint._load(state, self._group, allow_unexpected=True,
                         verify_digests=self._verify_digests)
        for item, target in targets:
            planner.commit_tensor(item, target)
        future: "Future[None]" = Future()
        future.set_result(None)
        return future

    @staticmethod
    def _pickled(checkpoint: Checkpoint, name: str) -> bytes:
        if _BYTES + name in checkpoint._entry_names:
            return checkpoint.entry(_BYTES + name)
        data = io.BytesIO()
        value = checkpoint._value(name, checkpoint._stored_values(), _values.Types.EXACT)
        torch.save(value, data, pickle_protocol=4)  # the first that has bytes as they are
        return data.getvalue()
