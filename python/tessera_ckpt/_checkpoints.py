"""Saving, loading, and looking at checkpoints."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import tempfile
from dataclasses import dataclass
from typing import (Any, Dict, Iterable, Iterator, List, Mapping, MutableMapping, Optional,
                    Sequence, Tuple, Union, overload)

from . import (_device, _host_memory, _new_state, _packed, _shared_memory, _state, _structure,
               _tensors, _values)
from ._garbage import without_collections
from ._group import TIMEOUT_SECONDS, Group, group_of, together
from ._interrupt import cancelling
from ._library import (CREATE, LOGGER, DataLossError, Handle, InvalidArgumentError, LoadOptions,
                       MismatchError, NotFoundError, ReadOptions, SaveOptions, TesseraError,
                       UnavailableError, UnimplementedError, integer, lib, merging, numbers,
                       report, text)
from ._progress import Progress, prepared, shown
from ._state import TensorInfo

PathLike = Union[str, "os.PathLike[str]"]
ParameterNames = Union[None, PathLike, Mapping[str, Any]]  # see open_foreign()
Allowed = Union[bool, Iterable[Union[str, int]]]  # of branches; see load()


@dataclass(frozen=True)
class SaveReport:
    """What a save has done."""

    step: int
    path: str
    bytes_written: int  # by all ranks together
    seconds: float
    note: str = ""  # problems that did not prevent the save
    # Of a save in the background:
    copied_seconds: float = 0.0  # until the state was copied
    blocked_seconds: float = 0.0  # how long the program has waited for that


@dataclass(frozen=True)
class LoadReport:
    """What a load has done."""

    step: int
    path: str
    missing: List[str]  # wanted, not saved
    unexpected: List[str]  # saved, not wanted
    from_master: List[str]  # weights, converted from master weights
    bytes_read: int
    seconds: float


@dataclass(frozen=True)
class CheckpointInfo:
    """A committed checkpoint of a folder. With an `error`, it is not known whether it is one."""

    step: int
    path: str
    error: Optional[str] = None


def join(folder: str, directory: str) -> str:
    """The name of a checkpoint in a folder."""
    return f"{folder.rstrip('/')}/{directory}" if directory else folder


_STEP = re.compile(r"step[-_](\d{1,18})")


def place(path: str) -> Tuple[str, Optional[int]]:
    """The folder of a checkpoint and its step, where the path tells it: "/runs/a/step-00000100" is
    the name that the library gives to step 100 in "/runs/a". Any other path is that of a folder."""
    folder, _, last = path.rstrip("/").rpartition("/")
    match = _STEP.fullmatch(last)
    step = None if match is None else int(match[1])
    if step is None or last != f"step-{step:08d}":
        return path, step
    return folder or ("/" if path.startswith("/") else "."), step


class Folder:
    """A folder of checkpoints: a directory, or a prefix of an object store."""

    def __init__(self, name: PathLike, *, create: bool = False, s3_endpoint: str = "") -> None:
        encoded = text(name, "folder")
        self.name = os.fsdecode(encoded)
        if create and place(self.name)[0] != self.name:
            raise InvalidArgumentError(f"{self.name} is the name of a checkpoint in a folder, and "
                                       "no folder of checkpoints")
        self.handle = Handle(lib.folder_open, lib.folder_free, encoded, CREATE if create else 0,
                             text(s3_endpoint, "s3_endpoint"))

    def list(self) -> List[CheckpointInfo]:
        """The committed checkpoints, ascending by step."""
        return [CheckpointInfo(entry["step"], join(self.name, entry["directory"]),
                               entry.get("error"))
                for entry in report(lib.folder_list, self.handle)]

    def prune(self, keep: int, saved_step: Optional[int] = None) -> None:
        """Deletes all but the `keep` checkpoints of the highest steps; damaged ones do not count.
        An interruption leaves no checkpoint that looks complete and is not. A checkpoint that is
        open, here or in another process of this machine, stays, and so do that of `saved_step`,
        which was just saved, and the newest one that does not say that the run had diverged."""
        number = integer(keep, "keep", 32)
        saved = -1 if saved_step is None else integer(saved_step, "saved_step")
        lib.folder_prune(self.handle, number, saved)
        LOGGER.info("kept the newest %d checkpoints of %s", keep, self.name)

    def latest(self) -> "Checkpoint":
        """Opens the newest checkpoint; see open()."""
        handle = Handle(lib.folder_open_latest, lib.checkpoint_free, self.handle)
        return Checkpoint(handle, self.name)

    def at(self, step: int) -> "Checkpoint":
        """Opens the checkpoint of a step."""
        handle = Handle(lib.folder_open_step, lib.checkpoint_free, self.handle,
                        integer(step, "step"))
        return Checkpoint(handle, self.name)


class Checkpoint:
    """A checkpoint that open() or open_foreign() has opened. While it is open, neither prune() nor
    a job deletes it.

    Attributes, which never change:
      path: its name.
      step: the step of the training at which it was saved.
      format: "tessera", or the name of another framework's format.
      program: the program that has saved it.
      notes: sentences about newer checkpoints of the folder that were skipped, or about parts of
        another framework's checkpoint that were not understood.
      tensors: descriptions of the tensors by name, second names included.
    """

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle = handle
        found = report(lib.checkpoint_describe, handle)
        self.path = join(name, found["directory"])
        self.step: int = found["step"]
        self.format: str = found["format"]
        self.program: str = found["program"]
        self.notes: List[str] = found["notes"]
        self.tensors: Dict[str, TensorInfo] = {
            tensor["name"]: TensorInfo(
                name=tensor["name"], dtype=_tensors.DTYPE_NAMES[tensor["dtype"]],
                shape=tuple(tensor["shape"]), role=_state.ROLES[tensor["role"]],
                alias_of=tensor["alias_of"] or None, foreign_name=tensor.get("foreign_name"))
            for tensor in found["tensors"]}
        self._values: Dict[str, Any] = found["values"]
        self._masters: Dict[str, str] = found["masters"]  # the names of master weights, by weights
        self._entry_names: List[str] = found["entries"]
        # Values that are stored as tensors: their types, and these.
        self._kinds = _packed.decode(self.entry(_packed.PACKED)) if (
            _packed.PACKED in self._entry_names) else {}
        self._packed = {name: self.tensors.pop(name) for name in self._kinds
                        if name in self.tensors}

    def __repr__(self) -> str:
        return f"<tessera_ckpt.Checkpoint {self.path}, {len(self.tensors)} tensors>"

    def close(self) -> None:
        """Closes the checkpoint. Nothing else can be called afterwards."""
        self._handle.close()

    @property
    def foreign_names(self) -> Dict[str, str]:
        """The names that another framework's files have for the parameters of tensors, by the
        tensors' names. Tensors that keep the names of the files are left out."""
        return {name: tensor.foreign_name for name, tensor in self.tensors.items()
                if tensor.foreign_name}

    @property
    def entries(self) -> Dict[str, bytes]:
        """The bytes that the program has saved beside the tensors, by name."""
        return {name: self.entry(name) for name in self._entry_names}

    def entry(self, name: str) -> bytes:
        """The bytes of one entry."""
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        lib.checkpoint_entry(self._handle, text(name, "name"), ctypes.byref(data),
                             ctypes.byref(size))
        return ctypes.string_at(data, size.value) if size.value else b""

    @property
    def values(self) -> Dict[str, Any]:
        """The leaves of the saved state that are not tensors, by name. A value whose type cannot be
        imported gets a simpler one: a number of Python, or a namedtuple of a new class."""
        if _state.VALUES not in self._entry_names:
            return self._values
        stored = self._stored_values()
        return {name: self._value(name, stored, _values.Types.PLAIN)
                for name in [*stored, *self._packed]}

    def _value(self, name: str, stored: Mapping[str, Any], types: _values.Types) -> Any:
        """A value by its name."""
        if name not in self._packed:
            return _values.decode(stored[name], name, types=types)
        place = self._to_fill(name)
        lib.checkpoint_read_tensor(self._handle, text(name, "name"), place.memory.dtype, 1, None,
                                   None, None, place.memory.address, -1, None)
        return place.finish()

    def _to_fill(self, name: str) -> _packed.ToFill:
        info = self._packed[name]
        return _packed.to_fill(self._kinds[name], info.dtype, info.shape, name)

    def _stored_values(self) -> Dict[str, Any]:
        """The values as _values.decode() takes them."""
        if _state.VALUES not in self._entry_names:
            return {}
        return _values.stored_values(self.entry(_state.VALUES))

    def _per_rank(self, group: Optional[Group]) -> _state.PerRank:
        """What each rank has its own of in this checkpoint."""
        stored = self.entry(_PER_RANK) if _PER_RANK in self._entry_names else b"[]"
        try:
            return _state.PerRank(json.loads(stored),
                                  0 if group is None else group.collectives.transport.rank)
        except (ValueError, TypeError) as error:
            raise DataLossError(f"the entry {_PER_RANK} has no names: {error!r}") from None

    def read(self, name: str, out: Any = None, *, offset: Optional[Sequence[int]] = None,
             shape: Optional[Sequence[int]] = None) -> Any:
        """Reads a tensor, or the box of it that begins at `offset`.

        Args:
          name: the tensor's name.
          out: a tensor that receives the elements, in its own dtype. By default, a new array of
            numpy, or of torch for dtypes that numpy does not have.
          offset: the first element of the box, one number for each dim. By default, the whole
            tensor is read.
          shape: the shape of the box; goes with `offset`.

        Returns: `out`, or the new array.
        """
        info = self.tensors.get(name)
        if info is None:
            raise NotFoundError(f"no tensor {name} in {self.path}, which has {len(self.tensors)}")
        if (offset is None) != (shape is None):
            raise InvalidArgumentError("offset and shape belong together")
        box = tuple(info.shape if shape is None else (integer(n, "shape") for n in shape))
        begin = None if offset is None else tuple(integer(n, "offset") for n in offset)
        if len(box) != len(info.shape) or (begin is not None and len(begin) != len(box)):
            raise InvalidArgumentError(f"tensor {name} has {len(info.shape)} dims")
        if out is None:
            _check_box(name, info.shape, begin, box)
            out = _tensors.empty(_tensors.DTYPES[info.dtype], box)
        is_torch = _tensors.torch_of(out) is not None
        memory = (_tensors.memory_to_fill if is_torch else _tensors.memory_of)(out, "out")
        if memory.shape != box:
            raise InvalidArgumentError(f"out has the shape {memory.shape}, expected {box}")
        if memory.read_only:
            raise InvalidArgumentError("out is read-only")
        target, address, strides = memory.on_device, memory.address, memory.strides
        if target is not None:
            elements = _host_memory.empty_bytes(target.numel() * target.element_size())
            address, strides = elements.data_ptr(), _tensors.contiguous_strides(box)
        lib.checkpoint_read_tensor(self._handle, text(name, "name"), memory.dtype, len(box),
                                   numbers(begin), None if begin is None else numbers(box),
                                   numbers(strides), address, -1, None)
        if target is not None:
            _device.fill(target, elements)
        elif memory.finish is not None:
            memory.finish()
        return out

    def _read_part(self, part: _shared_memory.Part, allow_overflow: bool) -> Optional[bytearray]:
        """What a load would place there; None if it would not, and would say why."""
        shape, dtype = part.elements.shape, part.elements.dtype
        data = bytearray(_tensors.item_bytes(dtype) * math.prod(shape))
        address = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
        try:
            lib.checkpoint_read_tensor(self._handle, text(part.name, "name"), dtype, len(shape),
                                       numbers(part.offset), numbers(shape), None, address, -1,
                                       ctypes.byref(LoadOptions(allow_overflow=allow_overflow)))
        except TesseraError:
            return None
        return data

    @overload
    def load(self, state: None = None, group: Any = None, *, framework: Optional[str] = None,
             strict: bool = True, allow_missing: Allowed = False, allow_unexpected: Allowed = False,
             verify_digests: bool = False, exact_dtypes: bool = False,
             allow_overflow: bool = False, io_threads: int = 0,
             timeout_seconds: float = TIMEOUT_SECONDS,
             progress: Progress = None) -> Dict[Any, Any]: ...

    @overload
    def load(self, state: MutableMapping[Any, Any], group: Any = None, *,
             framework: Optional[str] = None, strict: bool = True,
             allow_missing: Allowed = False, allow_unexpected: Allowed = False,
             verify_digests: bool = False, exact_dtypes: bool = False,
             allow_overflow: bool = False, io_threads: int = 0,
             timeout_seconds: float = TIMEOUT_SECONDS,
             progress: Progress = None) -> LoadReport: ...

    def load(self, state: Any = None, group: Any = None, *, framework: Optional[str] = None,
             strict: bool = True, allow_missing: Allowed = False, allow_unexpected: Allowed = False,
             verify_digests: bool = False, exact_dtypes: bool = False,
             allow_overflow: bool = False, io_threads: int = 0,
             timeout_seconds: float = TIMEOUT_SECONDS, progress: Progress = None) -> Any:
        """Loads into the memory of `state`, or makes one; see tessera_ckpt.load()."""
        found_group = group_of(group, timeout_seconds=timeout_seconds)
        return self._load(state, found_group, framework=framework,
                          allow_missing=allow_missing if strict else True,
                          allow_unexpected=allow_unexpected if strict else True,
                          verify_digests=verify_digests, exact_dtypes=exact_dtypes,
                          allow_overflow=allow_overflow, io_threads=io_threads,
                          timeout_seconds=timeout_seconds, progress=progress)

    def _load(self, state: Any, group: Optional[Group], *, framework: Optional[str] = None,
              allow_missing: Allowed = False, allow_unexpected: Allowed = False,
              verify_digests: bool = False, exact_dtypes: bool = False,
              allow_overflow: bool = False, io_threads: int = 0,
              timeout_seconds: float = TIMEOUT_SECONDS, progress: Progress = None) -> Any:
        types, is_new = _values.Types.EXACT, state is None
        optimizers: List[_new_state.OptimizerState] = []
        with together(group), self._advising(group):
            branches = _branches(allow_unexpected, "allow_unexpected")
            allows_all = branches is None and bool(allow_unexpected)
            may_lack = _branches(allow_missing, "allow_missing")
            allow_missing = may_lack is None and bool(allow_missing)
            per_rank, saved = self._per_rank(group), self._stored_values()
            contents = self._contents(saved)
            if is_new:
                state, absent = _new_state.whole(contents, per_rank, framework)
                absent = [name for name in absent if not _is_in(may_lack, name)]
                pickled = [name for name in sorted(absent)
                           if f"{_structure.PLACES}/{name}" in self._entry_names]
                if pickled and not allow_missing:
                    raise UnimplementedError(f"value {pickled[0]}: torch has pickled it; "
                                             "torch.distributed.checkpoint.load() with a Reader "
                                             "loads it into a state")
                _check_names([] if allow_missing else sorted(absent), [])
                types, allows_all, branches = _values.Types.MADE, True, None
            leaves = _state.flatten(state, per_rank)
            if not is_new:
                optimizers = _new_state.of_optimizers(contents, state, per_rank, framework,
                                                      allows_all)
            for optimizer in optimizers:
                _state.flatten(optimizer.made, per_rank, leaves, optimizer.name)
            saved_names = {*self.tensors, *saved, *self._packed}

            def may_be_missing(name: str) -> bool:
                return bool(allow_missing) or name not in saved_names and _is_in(may_lack, name)

            description = _state.Description(leaves.tensors, saved=self.tensors, lacking={
                name for name in leaves.tensors
                if self._source(name) is None and may_be_missing(name)})
            packed = {name: self._to_fill(name) for name in self._packed if name in leaves.values}
            for name, place in packed.items():
                description.add_packed(name, place.memory, self._packed[name].role)
            missing = sorted(leaves.values.keys() - saved.keys() - packed.keys())
            unexpected = sorted(saved.keys() - leaves.values.keys())
            unexpected += [] if branches is None else self._unwanted(leaves)
        common = sorted if group is None else group.collectives.common
        unexpected = common(unexpected)
        # Files of other frameworks also have values that no state has: arguments, versions.
        refused = [] if allows_all else [
            f"{'value' if name in saved else 'tensor'} {name}" for name in unexpected
            if not _is_in(branches, name) and (self.format == "tessera" or name not in saved)]
        absent = [name for name in missing if not may_be_missing(name)]
        agreed = common([str(branches)] + ([] if absent or refused else ["matches"]))
        # Where only tensors do not match, the library finds that.
        others = [] if "matches" in agreed else common(
            [] if allows_all or branches is not None else self._unwanted(leaves))
        with together(group), self._advising(group):
            if str(branches) not in agreed:
                raise InvalidArgumentError("allow_unexpected: not the same on all ranks")
            for name in self._packed.keys() & leaves.tensors.keys():
                raise MismatchError(f"tensor {name}: wanted, saved was a {self._kinds[name]}")
            self._check_outer(leaves.outer)
            if absent or refused:
                _check_names([name for name in absent if name not in self.tensors], refused, [
                    *(f"value {name}: wanted, saved as a tensor" for name in absent
                      if name in self.tensors),
                    *self._other_shapes(description.shapes),
                    *(f"tensor {name}: saved, not wanted" for name in others)])
            unexpected = [name for name in unexpected if name in saved]
            _shared_memory.check(description.parts,
                                 lambda part: self._read_part(part, allow_overflow))
            new = {name: _values.decode(saved[name], name, value, types)
                   for name, value in leaves.values.items() if name in saved}
            threads = integer(io_threads, "io_threads", 32)
            bar = prepared(progress, "loading")
        with shown(bar) as callback, cancelling() as cancelled, self._advising(group):
            options = LoadOptions(
                group=None if group is None else group.pointer(),
                timeout_seconds=timeout_seconds, allow_missing=allow_missing,
                allow_unexpected=allows_all or branches is not None, verify_digests=verify_digests,
                exact_dtypes=exact_dtypes, io_threads=threads, progress=callback,
                cancelled=cancelled, allow_overflow=allow_overflow,
                allow_shared_memory=True)  # whose elements were compared
            found = report(lib.checkpoint_load, self._handle, description.handle,
                           ctypes.byref(options))
        with together(group):
            new.update(description.finish_load())
            new.update((name, place.finish()) for name, place in packed.items())
            _state.put_back(state, new, per_rank)
            for each in optimizers:
                each.place.update(_state.put_back(each.made, new, per_rank, each.name))
        loaded = LoadReport(self.step, self.path, description.missing + missing,
                            found["unexpected"] + unexpected, found["from_master"],
                            found["bytes_read"], found["seconds"])
        LOGGER.info("loaded %s: %d bytes in %.2f s", self.path, loaded.bytes_read, loaded.seconds)
        # What the new state does not have; open() has logged other notes.
        for note in self.notes if is_new and self.format != "tessera" else ():
            LOGGER.warning("%s: %s", self.path, note)
        return state if is_new else loaded

    def _unwanted(self, leaves: _state.Leaves) -> List[str]:
        """The saved tensors that the library would leave out of a load into these."""
        wanted = set(map(self._source, leaves.tensors))
        return [name for name, info in {**self.tensors, **self._packed}.items()
                if name not in wanted and name not in leaves.values and info.alias_of is None]

    def _source(self, name: str) -> Optional[str]:
        """The saved tensor that the library reads for a wanted one, if there is any: a master
        weight for a weight that was not saved."""
        found = self.tensors.get(name)
        if found is None and _state.role_of(name) == _state.WEIGHT:
            found = self.tensors.get(self._masters.get(name, ""))
        return None if found is None else found.alias_of or found.name

    @contextlib.contextmanager
    def _advising(self, group: Optional[Group]) -> Iterator[None]:
        """Adds to a mismatch how what is saved, not wanted, and what each rank has its own of, are
        loaded."""
        try:
            yield
        except MismatchError as error:
            size = 1 if group is None else group.collectives.transport.size
            names = [*self.tensors, *self._stored_values(), *self._packed]
            told = self._per_rank(group).names_in(str(error), names, size)
            if told:
                advice = (f"each rank has its own of these: allow_missing={told} and "
                          f"allow_unexpected={told} load at another number of ranks")
            elif "saved, not wanted" in str(error):
                advice = ("what is saved, not wanted: allow_unexpected= leaves it out, and a load "
                          "without a state returns it")
            else:
                raise
            raise MismatchError(f"{error}\n  {advice}") from None

    def _other_shapes(self, wanted: Mapping[str, Tuple[int, ...]]) -> List[str]:
        """Mismatches of tensors to name beside those of values. The library finds all others."""
        lines = []
        for name, shape in wanted.items():
            saved = self.tensors.get(name)
            if saved is not None and saved.shape != shape:
                lines.append(f"tensor {name}: saved with shape {list(saved.shape)}, wanted with "
                             f"shape {list(shape)}")
            elif self._source(name) is None:
                lines.append(f"tensor {name}: wanted, not saved")
        return lines

    def _check_outer(self, wanted: Mapping[str, Any]) -> None:
        """Refuses a tensor that consists of others as another one does."""
        saved = _values.stored_values(self.entry(_OUTER)) if _OUTER in self._entry_names else {}
        for name in sorted(saved.keys() & wanted.keys()):
            if saved[name] != _values.encode(wanted[name], name):
                raise MismatchError(f"tensor {name}: saved as {_values.decode(saved[name], name)}, "
                                    f"wanted as {wanted[name]}")

    def _contents(self, saved: Mapping[str, Any]) -> _new_state.Contents:
        entries = {name: self.entry(name) for name in (_structure.STRUCTURE, _structure.PLACES)
                   if name in self._entry_names}
        return _new_state.Contents(entries, self.tensors, [*saved, *self._packed])


def _branches(allowed: Allowed, what: str) -> Optional[List[str]]:
    """The names of the branches that a load may leave out, sorted; None for all of them or none."""
    if not isinstance(allowed, Iterable):
        return None
    keys: List[Any] = [None] if isinstance(allowed, (str, bytes)) else list(allowed)
    if not all(map(_state.is_key, keys)):
        raise InvalidArgumentError(f"{what}: expected a bool, or a list of keys or names")
    return sorted({_state.child_name("", key) for key in keys})


def _is_in(branches: Optional[Iterable[str]], name: str) -> bool:
    """Whether a leaf is in one of these branches, or is one of them."""
    return any(name == branch or name.startswith(f"{branch}.") for branch in branches or ())


def _check_names(missing: List[str], unexpected: List[str], of_tensors: Iterable[str] = ()
                 ) -> None:
    """An error that names leaves, if there are any."""
    lines = [*(f"value {name}: wanted, not saved" for name in missing), *of_tensors,
             *(f"{name}: saved, not wanted" for name in unexpected)]
    lines.sort(key=lambda line: not line.startswith("value "))
    if lines:
        more = [f"and {len(lines) - 10} more"] if len(lines) > 10 else []
        count = "1 leaf does" if len(lines) == 1 else f"{len(lines)} leaves do"
        raise MismatchError("\n  ".join([f"{count} not match:"] + lines[:10] + more))


def _check_box(name: str, shape: Sequence[int], begin: Optional[Sequence[int]],
               box: Sequence[int]) -> None:
    """Before memory for it is made; the library checks it, too."""
    for dim, extent in enumerate(shape):
        first = 0 if begin is None else begin[dim]
        if first < 0 or box[dim] < 0 or first + box[dim] > extent:
            raise InvalidArgumentError(
                f"tensor {name}: in dim {dim} the box leaves the extent {extent}")


def list_checkpoints(folder: PathLike, *, s3_endpoint: str = "") -> List[CheckpointInfo]:
    """The committed checkpoints of a folder, ascending by step; [] if the folder is missing."""
    try:
        return Folder(folder, s3_endpoint=s3_endpoint).list()
    except NotFoundError:
        return []


def prune(folder: PathLike, keep: int, *, s3_endpoint: str = "") -> None:
    """Deletes all but the `keep` checkpoints of the highest steps of a folder; see Folder.prune().
    Call on one rank."""
    Folder(folder, s3_endpoint=s3_endpoint).prune(keep)


def latest(folder: PathLike, *, s3_endpoint: str = "") -> Optional[CheckpointInfo]:
    """The newest committed checkpoint of a folder, or None, whether or not its run had diverged,
    which open() and load() look at. An error if a directory of a later step cannot be read, which
    may be the newest."""
    found = list_checkpoints(folder, s3_endpoint=s3_endpoint)
    if found and found[-1].error is not None:
        raise UnavailableError(found[-1].error)
    return found[-1] if found else None


def open(name: PathLike, *, s3_endpoint: str = "") -> Checkpoint:
    """Opens a checkpoint by its name. The name of a folder stands for its newest checkpoint of a
    run that had not diverged; the log has a warning for each newer one. If the folder has no
    others, the newest is opened, with a warning."""
    encoded = text(name, "name")
    try:
        handle = Handle(lib.checkpoint_open, lib.checkpoint_free, encoded,
                        text(s3_endpoint, "s3_endpoint"))
    except (InvalidArgumentError, NotFoundError) as error:
        raise type(error)(f"{error}{_advice(encoded)}") from None
    checkpoint = Checkpoint(handle, os.fsdecode(encoded))
    for note in checkpoint.notes:
        LOGGER.warning("%s", note)
    return checkpoint


def _advice(name: bytes) -> str:
    """Where something else than a folder of checkpoints is there: what opens it."""
    if os.path.isfile(name) or (os.path.isdir(name) and os.listdir(name)):
        return ("; open_foreign() opens a checkpoint of another framework, and "
                "convert(..., to=\"tessera\") makes one of Tessera's of it")
    return ""


@contextlib.contextmanager
def names_file(names: ParameterNames) -> Iterator[Optional[bytes]]:
    """The path of the JSON file of these names, which a mapping gets for the time of the block."""
    if not isinstance(names, Mapping):
        yield None if names is None else text(names, "parameter_names")
        return
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as file:
        json.dump(dict(names), file)
        file.flush()
        yield os.fsencode(file.name)


def open_foreign(name: PathLike, format: str = "", *, parameter_names: ParameterNames = None,
                 s3_endpoint: str = "") -> Checkpoint:
    """Opens a checkpoint of another framework.

    Args:
      name: a folder or a file.
      format: "hf", "torch", "dcp", "megatron", "deepspeed", ... (docs/convert.md); by default, it
        is found out.
      parameter_names: the names of parameters by the names of tensors in the optimizer's files, or
        a JSON file of them, for checkpoints of PaddleNLP that do not tell.
    """
    encoded = text(name, "name")
    with names_file(parameter_names) as names:
        options = ReadOptions(s3_endpoint=text(s3_endpoint, "s3_endpoint"),
                              format=text(format, "format"), parameter_names_file=names)
        handle = Handle(lib.checkpoint_open_named, lib.checkpoint_free, encoded,
                        ctypes.byref(options))
    return Checkpoint(handle, os.fsdecode(encoded))


def save(folder: PathLike, step: int, state: Any, group: Any = None, *,
         entries: Optional[Mapping[str, bytes]] = None, program: str = "tessera_ckpt",
         per_rank: Iterable[str] = (), keep: Optional[int] = None, overwrite: bool = False,
         io_threads: int = 0, timeout_seconds: float = TIMEOUT_SECONDS, s3_endpoint: str = "",
         progress: Progress = None) -> SaveReport:
    """Saves the checkpoint of a step, which exists if and only if all of it is durable. Every rank
    of the group makes this call. Other checkpoints are left alone, unless `overwrite` replaces them
    or `keep` deletes them.

    Args:
      folder: a directory, which is created if it is missing, or a name such as
        "s3://bucket/prefix"; or the name of the checkpoint in it, ".../step-00000100".
      step: the step of the training.
      state: nested dicts of tensors (numpy, torch, DTensor, FlatShard, JAX, anything with DLPack)
        and of numbers, texts, bytes, lists and tuples. Ranks may have different parts of it. If
        several ranks have a whole tensor, one copy is saved; of copies of more than 16 KiB that
        differ, a mixture. A value that several ranks have must be the same on all of them, and so
        must a small tensor of whole numbers.
      group: a group of torch.distributed, or a communicator of mpi4py. By default, all ranks of
        torch.distributed, if it is initialized.
      entries: bytes by name, which are stored beside the state. In a group, those of rank 0.
      program: the name of the program, for people.
      keep: how many checkpoints stay after the save: those of the highest steps, and always the one
        just saved. By default, all.
      per_rank: names, or patterns such as "rng*", of leaves and branches that each rank has for
        itself. A load returns them to the same ranks. With more ranks, those of the new ranks are
        missing; with fewer, those of the ranks that are gone are unexpected.
      overwrite: whether to replace the checkpoint of the step, if there is one. Whatever happens,
        the old one or the new one is there as a whole. The same on all ranks.
      progress: True for a bar, a bar of tqdm, or a function that is called with the bytes done so
        far and in total.
    """
    found_group = group_of(group, timeout_seconds=timeout_seconds)
    with together(found_group):
        number = integer(step, "step")
        threads = integer(io_threads, "io_threads", 32)
        newest = check_keep(keep)
        path = os.fsdecode(text(folder, "folder"))
        name, in_path = place(path)
        if name != path and in_path != number:
            raise InvalidArgumentError(f"{path} is not the name of step {number}")
        description = describe(state, entries, program, per_rank, found_group)
        opened = Folder(name, create=True, s3_endpoint=s3_endpoint)
        bar = prepared(progress, "saving")
    with shown(bar) as callback, cancelling() as cancelled:
        options = SaveOptions(group=None if found_group is None else found_group.pointer(),
                              timeout_seconds=timeout_seconds, io_threads=threads,
                              progress=callback, cancelled=cancelled, overwrite=bool(overwrite))
        found = report(lib.folder_save, opened.handle, number, description.handle,
                       ctypes.byref(options))
    saved = save_report(opened, number, found, newest if is_first(found_group) else None)
    opened.handle.close()  # here, and not in a finalizer, which would drop a KeyboardInterrupt
    return saved


def check_keep(keep: Optional[int]) -> Optional[int]:
    """How many checkpoints are to stay; None: all."""
    if keep is not None and integer(keep, "keep", 32) < 1:
        raise InvalidArgumentError(f"keep is {keep}, and must be at least 1; without it, all stay")
    return keep


def is_first(group: Optional[Group]) -> bool:
    """Whether this process is rank 0."""
    return group is None or group.collectives.transport.rank == 0


# The entry of a checkpoint that names what each rank has its own of.
_PER_RANK = "tessera_ckpt.per_rank"


def _merge_names(by_rank: Mapping[int, bytes]) -> bytes:
    return json.dumps(sorted(set().union(*(json.loads(names or b"[]")
                                           for names in by_rank.values())))).encode()


# The entry of a checkpoint that has digests of small tensors: they are the states of generators, or
# counters, of which only one is saved.
_ALIKE = "tessera_ckpt.alike"


def _merge_alike(by_rank: Mapping[int, bytes]) -> bytes:
    merged: Dict[str, str] = {}
    first: Dict[str, int] = {}
    for rank, stored in by_rank.items():
        for name, digest in json.loads(stored or b"{}").items():
            if merged.setdefault(name, digest) != digest:
                raise MismatchError(
                    f"tensor {name}: ranks {first[name]} and {rank} have different elements, of "
                    "which one copy would be saved: name it in per_rank=, or save it under a key "
                    "of each rank")
            first.setdefault(name, rank)
    return json.dumps(merged).encode()


# The entry of a checkpoint that says what tensors are that consist of others.
_OUTER = "tessera_ckpt.outer"

# What all ranks have is merged in these entries.
_MERGED = {name: merging(merge) for name, merge in (
    (_state.VALUES, _values.merge), (_structure.STRUCTURE, _structure.merge),
    (_packed.PACKED, _packed.merge), (_PER_RANK, _merge_names), (_ALIKE, _merge_alike),
    (_OUTER, _values.merge))}


@without_collections()
def describe(state: Any, entries: Optional[Mapping[str, bytes]], program: str,
             per_rank: Iterable[str], group: Optional[Group]) -> _state.Description:
    """A state that is to be saved, for the library."""
    rank = 0 if group is None else group.collectives.transport.rank
    names = _state.PerRank(rank=rank, patterns=per_rank)
    leaves = _state.flatten(state, names)
    all_entries = dict(entries or {})
    packed = {name: found for name, value in leaves.values.items()
              if (found := _packed.pack(value, name)) is not None}
    all_entries.setdefault(_structure.STRUCTURE, _structure.encode(state, names, packed))
    for own in (_state.VALUES, _packed.PACKED, _PER_RANK, _ALIKE, _OUTER):
        if own in all_entries:
            raise InvalidArgumentError(f"the entry {own} is this package's own")
    all_entries[_state.VALUES] = _values.encode_all(
        {name: value for name, value in leaves.values.items() if name not in packed})
    if packed:
        all_entries[_packed.PACKED] = _packed.encode(
            {name: found.kind for name, found in packed.items()})
    if leaves.outer:
        all_entries[_OUTER] = _values.encode_all(leaves.outer)
    if names.found:
        all_entries[_PER_RANK] = json.dumps(sorted(names.found)).encode()
    description = _state.Description(leaves.tensors, entries=all_entries, program=program,
                                     merge=None if group is None else _MERGED)
    for name, found in packed.items():
        description.add_packed(name, found.memory)
    if description.alike:
        description.set_entries({_ALIKE: json.dumps(description.alike).encode()})
    return description


def save_report(folder: Folder, step: int, found: Mapping[str, Any],
                keep: Optional[int] = None) -> SaveReport:
    """A report of the library as Python has it, after the checkpoints beyond `keep` are deleted."""
    note = found["note"]
    if keep is not None:
        try:
            folder.prune(keep, step)
        except TesseraError as error:
            note = f"{note}{'; ' if note else ''}older checkpoints were not deleted: {error}"
    path = join(folder.name, found["directory"])
    LOGGER.info("saved %s: %d bytes in %.2f s", path, found["bytes_written"], found["seconds"])
    if note:
        LOGGER.warning("%s: %s", path, note)
    return SaveReport(step=step, path=path, bytes_written=found["bytes_written"],
                      seconds=found["seconds"], note=note, copied_seconds=found["copied_seconds"],
                      blocked_seconds=found["blocked_seconds"])


@overload
def load(folder_or_step: PathLike, state: None = None, group: Any = None, *,
         framework: Optional[str] = None, strict: bool = True, allow_missing: Allowed = False,
         allow_unexpected: Allowed = False, verify_digests: bool = False,
         exact_dtypes: bool = False, allow_overflow: bool = False, io_threads: int = 0,
         timeout_seconds: float = TIMEOUT_SECONDS, s3_endpoint: str = "",
         progress: Progress = None) -> Dict[Any, Any]: ...


@overload
def load(folder_or_step: PathLike, state: MutableMapping[Any, Any], group: Any = None, *,
         framework: Optional[str] = None, strict: bool = True, allow_missing: Allowed = False,
         allow_unexpected: Allowed = False, verify_digests: bool = False,
         exact_dtypes: bool = False, allow_overflow: bool = False, io_threads: int = 0,
         timeout_seconds: float = TIMEOUT_SECONDS, s3_endpoint: str = "",
         progress: Progress = None) -> LoadReport: ...


def load(folder_or_step: PathLike, state: Any = None, group: Any = None, *,
         framework: Optional[str] = None, strict: bool = True, allow_missing: Allowed = False,
         allow_unexpected: Allowed = False, verify_digests: bool = False,
         exact_dtypes: bool = False, allow_overflow: bool = False, io_threads: int = 0,
         timeout_seconds: float = TIMEOUT_SECONDS, s3_endpoint: str = "",
         progress: Progress = None) -> Any:
    """Loads a checkpoint into the memory of `state`, under whatever sharding it has, and returns a
    report. Without a state, returns the state that was saved. Every rank of the group makes this
    call.

    Everything is compared first: nothing changes until all of the state is found to match. In a
    checkpoint of this library's own format, every byte is checked before it is placed.

    A returned state has the saved containers, values and tensors, with their types and ties.
    Tensors are whole, in the memory of the host. Leaves that each rank had for itself are those of
    this rank. A namedtuple whose class cannot be imported gets a new class of the same name and
    fields. Dicts other than OrderedDict become dicts, and tensors that consist of others become
    dicts of these. If the checkpoint does not record its containers, the result is a dict of names.

    The state_dict() of an optimizer that has taken no step has an empty "state". It gets the saved
    one, unless the state has parts of tensors.

    Args:
      folder_or_step: a checkpoint, or a folder of checkpoints, which stands for the one that open()
        finds there.
      state: as for save(). Tensors are filled in place, unless they cannot be written to. Values
        are replaced in their dicts.
      framework: "torch" or "numpy", whose tensors a returned state has. By default torch, if the
        program has imported it, and otherwise numpy.
      group: as for save(). Ranks that want the same bytes read them once.
      strict: False allows both missing and unexpected leaves, which the report then lists.
      allow_missing: whether leaves that were not saved are left unchanged; or the branches of the
        state whose leaves may be, by their keys, or by names such as "model.head".
      allow_unexpected: whether saved leaves that the state does not have are ignored; or the
        branches of the saved state whose leaves are, named alike.
      verify_digests: whether to compare the memory afterwards with the saved digests, too.
      exact_dtypes: whether to refuse to convert between floating dtypes.
      allow_overflow: whether elements that the wanted dtype cannot hold become infinite; otherwise
        the first of them is an error, after which the state is as after any other failed read.
      progress: as for save().
    """
    found_group = group_of(group, timeout_seconds=timeout_seconds)
    name = folder_or_step
    if found_group is not None:
        name = _agree_on_name(folder_or_step, s3_endpoint, found_group)
    with together(found_group):
        checkpoint = open(name, s3_endpoint=s3_endpoint)
    return checkpoint._load(state, found_group, framework=framework,
                            allow_missing=allow_missing if strict else True,
                            allow_unexpected=allow_unexpected if strict else True,
                            verify_digests=verify_digests, exact_dtypes=exact_dtypes,
                            allow_overflow=allow_overflow, io_threads=io_threads,
                            timeout_seconds=timeout_seconds, progress=progress)


def _agree_on_name(name: PathLike, s3_endpoint: str, group: Group) -> str:
    """Rank 0 says which checkpoint is the newest."""
    with together(group) as newest:
        path = text(name, "folder_or_step")
        if is_first(group):
            newest.value = open(os.fsdecode(path), s3_endpoint=s3_endpoint).path
    return str(newest.value)
