"""A program's state, nested dicts of tensors and values, as the library sees it: logical tensors,
and the boxes of them in this process's memory."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import (Any, Callable, Container, Dict, Iterable, Iterator, List, NamedTuple, Optional,
                    Set, Tuple)

from . import _device, _shared_memory, _tensors, _values
from ._library import (READ_ONLY, Handle, InvalidArgumentError, TesseraError, UnimplementedError,
                       lib, numbers)

WEIGHT, OPTIMIZER_STATE, BUFFER = 1, 3, 4
ROLES = {1: "weight", 2: "master_weight", 3: "optimizer_state", 4: "buffer"}
_ROLE_NUMBERS = {name: number for number, name in ROLES.items()}

# A component of a name that says so.
_OPTIMIZER = frozenset(("optimizer", "optimizers", "optim"))

# The entry of a checkpoint that holds what is not a tensor.
VALUES = "tessera_ckpt.values"

# Types of most values, which are no tensors and no containers.
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))


class FlatShard(NamedTuple):
    """Elements [begin, begin + len(data)) of the row-major flattening of a tensor of `shape`, as
    FSDP1 and ZeRO cut their flat buffers. `data` has one dim and is contiguous."""

    data: Any
    begin: int
    shape: Tuple[int, ...]


class Box(NamedTuple):
    """A part of a tensor of `global_shape`, which begins at `offset`."""

    data: Any
    offset: Tuple[int, ...]
    global_shape: Tuple[int, ...]


class Boxes(NamedTuple):
    """Several parts of a tensor: (data, offset)."""

    parts: List[Tuple[Any, Tuple[int, ...]]]
    global_shape: Tuple[int, ...]


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as a checkpoint has it."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    role: str
    alias_of: Optional[str] = None
    foreign_name: Optional[str] = None  # of the parameter, in another framework's files


class _Ranked(str):
    """A name that one rank has for itself."""


class PerRank:
    """The leaves and branches of which each rank has its own: the rank follows their names, as in
    "rng.rank_3"."""

    def __init__(self, names: Iterable[str] = (), rank: int = 0, *, patterns: Iterable[str] = ()
                 ) -> None:
        """`patterns`: of names, as a shell has them; `*` stands for dots, too."""
        if isinstance(patterns, str) or not all(isinstance(each, str) for each in patterns):
            raise InvalidArgumentError("per_rank: expected a list of names and patterns")
        self._names, self._patterns, self.rank = frozenset(names), tuple(patterns), rank
        self.found: Set[str] = set()  # names as the program has them

    def name(self, prefix: str, name: str) -> str:
        """The name of a child of the branch `prefix`."""
        if isinstance(prefix, _Ranked):
            return _Ranked(name)
        if not self._names and not self._patterns:
            return name
        if name not in self._names and not any(
                fnmatch.fnmatchcase(name, pattern) for pattern in self._patterns):
            return name
        self.found.add(name)
        return _Ranked(f"{name}.rank_{self.rank}")

    def is_of_another(self, name: str) -> bool:
        """Whether a leaf of this name is another rank's."""
        mine = f"rank_{self.rank}"
        return any(name.startswith(f"{plain}.rank_")
                   and name[len(plain) + 1:].partition(".")[0] != mine for plain in self._names)

    def names_in(self, mismatch: str, saved: Iterable[str], size: int) -> List[str]:
        """The leaves and branches in the text of a mismatch of which each rank has its own, where
        those in `saved` are not of `size` ranks."""
        ranks = {int(found[1]) for name in saved for found in _OF_RANK.finditer(name)
                 if name[:found.start()] in self._names}
        if max(ranks, default=-1) + 1 == size:
            return []
        return sorted(name for name in self._names if f" {name}.rank_" in mismatch)

    def begins_at(self, prefix: str, name: str) -> bool:
        """Whether a child of the branch `prefix` is of one rank, and the branch is not."""
        return isinstance(name, _Ranked) and not isinstance(prefix, _Ranked)


_OF_ALL = PerRank()
_OF_RANK = re.compile(r"\.rank_(\d{1,9})(?![^.])")


class Leaves(NamedTuple):
    """The leaves of a state, by name."""

    tensors: Dict[str, Any]
    values: Dict[str, Any]
    outer: Dict[str, Any]  # of branches that are tensors: _tensors.outer_of()


# ---- From nested dicts to names, and back.

def flatten(state: Any, per_rank: PerRank = _OF_ALL, beside: Optional[Leaves] = None,
            prefix: str = "") -> Leaves:
    """The leaves of nested dicts (and of lists and tuples that are branches) by their names: keys
    and positions joined by dots, as torch.distributed.checkpoint has them. `beside`: leaves to
    which those of the branch `prefix` are added."""
    if not isinstance(state, MutableMapping):
        raise InvalidArgumentError(f"state: expected a dict, not {type(state).__name__}")
    leaves = Leaves({}, {}, {}) if beside is None else beside
    _walk(state, prefix, leaves, set(), per_rank)
    return leaves


def put_back(node: Any, new: Mapping[str, Any], per_rank: PerRank = _OF_ALL,
             prefix: str = "") -> Any:
    """A branch of a state with the leaves that `new` has by name. Lists and dicts are changed;
    tuples, and dicts that cannot be changed, are made again."""
    changed: Dict[Any, Any] = {}
    for key, name, child in children(node, prefix, per_rank):
        if not is_leaf_tensor(child) and is_branch(child):
            made = put_back(child, new, per_rank, name)
        else:
            made = new.get(name, child)
        if made is not child:
            changed[key] = made
    if not changed:
        return node
    if isinstance(node, tuple):
        return _values.tuple_like(type(node), [changed.get(i, c) for i, c in enumerate(node)])
    if not isinstance(node, (list, MutableMapping)):
        return type(node)({**node, **changed})
    for key, made in changed.items():
        node[key] = made
    return node


def _walk(node: Any, prefix: str, leaves: Leaves, above: Set[int], per_rank: PerRank) -> None:
    if id(node) in above or len(above) > _values.MAX_DEPTH:
        raise InvalidArgumentError(
            f"state: {prefix or 'it'} contains itself, or is nested too deeply")
    _check_branch(node, prefix)
    if _tensors.inner_tensors(node) is not None:
        leaves.outer[prefix] = _tensors.outer_of(node)
    above.add(id(node))
    for _, name, child in children(node, prefix, per_rank):
        is_tensor = is_leaf_tensor(child)
        if not is_tensor and is_branch(child):
            _walk(child, name, leaves, above, per_rank)
            continue
        if name in leaves.tensors or name in leaves.values:
            raise InvalidArgumentError(f"state: two leaves have the name {name}")
        (leaves.tensors if is_tensor else leaves.values)[name] = child
    above.discard(id(node))


def children(node: Any, prefix: str, per_rank: PerRank) -> Iterator[Tuple[Any, str, Any]]:
    """What a branch consists of: the key, the name, and the leaf or branch."""
    node = _tensors.inner_tensors(node) or node
    items: Iterable[Tuple[Any, Any]] = (
        node.items() if isinstance(node, Mapping) else enumerate(node))
    for key, child in items:
        if not is_key(key):
            raise InvalidArgumentError(
                f"state: a key of {prefix or 'it'} is {key!r}; expected a text or a number")
        try:
            name = child_name(prefix, key)
        except ValueError:  # Python writes no numbers of thousands of digits
            raise InvalidArgumentError(
                f"state: a key of {prefix or 'it'} is too large a number") from None
        yield key, per_rank.name(prefix, name), child


def is_key(key: Any) -> bool:
    """Whether a dict of a state may have this key."""
    return isinstance(key, (str, int)) and not isinstance(key, bool)


def child_name(prefix: str, key: Any) -> str:
    """The name of what stands under a key, or at a position, of the branch `prefix`. Members of an
    Enum count as the plain keys that they equal; their format() may be another one."""
    key = str.__str__(key) if isinstance(key, str) else int(key)
    return f"{prefix}.{key}" if prefix else f"{key}"


def _check_branch(node: Any, name: str) -> None:
    """Refuses a branch that put_back() could not make again."""
    if isinstance(node, tuple):
        _values.check_tuple(node, name)
    elif not isinstance(node, (list, MutableMapping)) and _tensors.inner_tensors(node) is None:
        try:
            same = type(type(node)(dict(node))) is type(node)
        except Exception:
            same = False
        if not same:
            raise UnimplementedError(f"{name}: a load could not put values into a "
                                     f"{type(node).__name__}; save it as a dict")


def is_leaf_tensor(value: Any) -> bool:
    """Whether a leaf is a tensor, or a part of one."""
    return type(value) not in _PLAIN and (
        _tensors.is_plain(value)
        or (_tensors.is_tensor(value) and _tensors.inner_tensors(value) is None) or is_part(value))


def is_branch(value: Any) -> bool:
    """Dicts are branches, as are tensors that consist of others; so are lists that hold a tensor or
    a dict, and tuples that hold a tensor, at any depth. A dict in a tuple does not count."""
    if type(value) in _PLAIN:
        return False
    if isinstance(value, Mapping) or _tensors.inner_tensors(value) is not None:
        return True
    waiting: List[Tuple[Any, bool]] = (
        [(value, isinstance(value, list))] if isinstance(value, (list, tuple)) else [])
    seen = set()
    while waiting:
        node, in_lists = waiting.pop()
        if (id(node), in_lists) in seen:
            continue
        seen.add((id(node), in_lists))
        if not isinstance(node, Mapping) and _PLAIN.issuperset(map(type, node)):
            continue  # a long list, as a rule
        for child in node.values() if isinstance(node, Mapping) else node:
            kind = type(child)
            if kind in _PLAIN:
                continue
            if kind is tuple:  # the most frequent one
                waiting.append((child, False))
            elif is_leaf_tensor(child) or _tensors.inner_tensors(child) is not None or (
                    in_lists and isinstance(child, Mapping)):
                return True
            elif isinstance(child, (Mapping, list, tuple)):
                waiting.append((child, in_lists and isinstance(child, list)))
    return False


# ---- From leaves to boxes.

def _is_sharded(value: Any) -> bool:
    """DTensor, torch's ShardedTensor, and whatever else describes its parts as they do."""
    has = _values.has
    if has(value, "local_shards"):
        return has(value, "__create_chunk_list__") or has(value, "sharded_tensor_metadata") or (
            has(value, "metadata") and callable(value.metadata))
    return has(value, "to_local") and has(value, "__create_chunk_list__")


class _Part(NamedTuple):
    data: Any
    offset: Tuple[int, ...]


# What a plain tensor of torch that has shards of another one says of them, by
# torch.distributed.checkpoint.CheckpointableTensor.
_SHARDS = ("global_shape", "global_offsets", "local_offsets", "local_sizes")


def _says_shards(value: Any) -> bool:
    return _tensors.torch_of(value) is not None and _values.has(value, _SHARDS[0]) and (
        all(_values.has(value, each) for each in _SHARDS))


def _shards_of(value: Any, name: str) -> Iterator[_Part]:
    """The parts that a tensor says it has. A place () is all of the local tensor."""
    if not len(value.global_offsets) == len(value.local_offsets) == len(value.local_sizes):
        raise InvalidArgumentError(f"{name}: global_offsets, local_offsets and local_sizes have "
                                   "other lengths")
    for offset, place, size in zip(value.global_offsets, value.local_offsets, value.local_sizes):
        data = value.detach()[tuple(slice(o, o + n) for o, n in zip(place, size))]
        if tuple(data.shape) != tuple(size):
            raise InvalidArgumentError(f"{name}: local_sizes has {tuple(size)} where local_offsets "
                                       f"leaves {tuple(data.shape)}")
        yield _Part(data, tuple(offset))


def is_part(value: Any) -> bool:
    """Whether a leaf says which part of a tensor it is."""
    return isinstance(value, (FlatShard, Box, Boxes)) or _is_sharded(value) or _says_shards(value)


def _parts(value: Any, name: str) -> Tuple[Tuple[int, ...], List[_Part], Any]:
    """The global shape, this process's parts, and something with the dtype."""
    if _tensors.is_plain(value) and not _says_shards(value):
        return tuple(value.shape), [_Part(value, (0,) * value.dim())], value
    if isinstance(value, Box):
        return tuple(value.global_shape), [_Part(value.data, tuple(value.offset))], value.data
    if isinstance(value, Boxes):
        parts = [_Part(data, tuple(offset)) for data, offset in value.parts]
        return tuple(value.global_shape), parts, parts[0].data
    if _tensors.is_jax(value):
        shape, jax_parts = _tensors.jax_parts(value)
        parts = [_Part(part, part.offset) for part in jax_parts]
        return shape, parts, parts[0].data if parts else _NoElements(value.dtype)
    if hasattr(value, "to_local"):
        if any(placement.is_partial() for placement in value.placements):
            raise UnimplementedError(f"{name}: a DTensor with a partial placement is not the "
                                     "tensor yet: redistribute it")
        local = value.to_local()
        if hasattr(local, "wait"):
            local = local.wait()
        chunks = value.__create_chunk_list__()
        parts = [_Part(local, tuple(chunk.offsets)) for chunk in chunks]
        if len(parts) > 1:
            raise UnimplementedError(f"{name}: a DTensor of {len(parts)} parts on one rank")
        return tuple(value.shape), parts if local.numel() > 0 else [], local
    if hasattr(value, "local_shards"):
        shards = value.local_shards()
        metadata = value.metadata()
        parts = [_Part(shard.tensor, tuple(shard.metadata.shard_offsets)) for shard in shards]
        dtype_of = parts[0].data if parts else _NoElements(metadata.tensor_properties.dtype)
        return tuple(metadata.size), parts, dtype_of
    if _says_shards(value):
        parts = list(_shards_of(value, name))
        return tuple(value.global_shape), parts, parts[0].data if parts else (
            _NoElements(value.dtype))
    return tuple(value.shape), [_Part(value, (0,) * len(value.shape))], value


class _NoElements(NamedTuple):
    """In place of a tensor's part on a rank that has none."""

    dtype: Any


def _boxes_of_range(shape: Tuple[int, ...], begin: int, end: int
                    ) -> Iterator[Tuple[Tuple[int, ...], Tuple[int, ...]]]:
    """The offsets and shapes of the boxes that a range of a flattened tensor consists of, in the
    order of the elements."""
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    while begin < end:
        index, within = divmod(begin, row)
        if within == 0 and end - begin >= row:
            count = (end - begin) // row
            yield (index, *[0] * len(shape[1:])), (count, *shape[1:])
            begin += count * row
            continue
        stop = min(end, (index + 1) * row)
        for offset, box in _boxes_of_range(shape[1:], within, stop - index * row):
            yield (index, *offset), (1, *box)
        begin = stop


def role_of(name: str) -> int:
    """State of the optimizer is what stands below a key that says so."""
    return WEIGHT if _OPTIMIZER.isdisjoint(name.split(".")) else OPTIMIZER_STATE


class Description:
    """The library's description of a state, and what keeps its memory alive.

    For a load (`saved`: the tensors of the checkpoint), what a program cannot write to (arrays of
    JAX, read-only ones of numpy) gets memory of its own, of which finish_load() makes a new tensor.
    What was not saved and is in `lacking` is left out, and `missing` names it, unless its memory is
    also that of a tensor that is loaded.
    """

    def __init__(self, leaves: Mapping[str, Any], *,
                 entries: Optional[Mapping[str, bytes]] = None, program: str = "",
                 merge: Optional[Mapping[str, Any]] = None,
                 saved: Optional[Mapping[str, TensorInfo]] = None,
                 lacking: Container[str] = ()) -> None:
        self.handle = Handle(lib.state_create, lib.state_free)
        self._memory_of = _tensors.memory_of if saved is None else _tensors.memory_to_fill
        self._saved: Mapping[str, TensorInfo] = saved or {}
        self._finish: List[Tuple[str, Any, Callable[[], Any]]] = []
        self.shapes: Dict[str, Tuple[int, ...]] = {}  # of whole tensors, without other names
        self.parts: List[_shared_memory.Part] = []
        self._owners: List[Any] = []
        self.on_devices = _device.Shards()
        self._names: Dict[Tuple[Any, ...], str] = {}
        self._merges = bool(merge)
        self.alike: Dict[str, str] = {}  # digests of small tensors that all ranks have alike
        self._alike_on_devices: Dict[str, Any] = {}  # these tensors, where devices have them
        self._lacking = lacking
        self.missing: List[str] = []
        for name, value in sorted(leaves.items(), key=lambda item: item[0] not in self._saved):
            try:
                self._add(name, value)
            except (TesseraError, MemoryError):
                raise
            except Exception as error:  # of the tensor's own library
                _tensors.check_layout(value, name)
                raise UnimplementedError(f"{name}: the elements of a {type(value).__name__} cannot "
                                         f"be reached: {error}") from error
        # To describe a tensor can be work on its stream: a collective is waited for there.
        self.on_devices.order_behind_here()
        digests = map(_tensors.digest_of_bytes,
                      _device.read(list(self._alike_on_devices.values())))
        self.alike.update(zip(self._alike_on_devices, digests))
        self.set_entries(entries or {})
        for key, function in (merge or {}).items():
            lib.state_merge_entry(self.handle, _name(key), function, None)
        if program:
            lib.state_set_program(self.handle, program.encode("utf-8", "replace"))

    def set_entries(self, entries: Mapping[str, bytes]) -> None:
        """What is stored beside the tensors."""
        for key, data in entries.items():
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise InvalidArgumentError(
                    f"entry {key}: expected bytes, not {type(data).__name__}")
            lib.state_set_entry(self.handle, _name(key), bytes(data), len(bytes(data)))

    def add_packed(self, name: str, memory: _tensors.Memory, role: Optional[str] = None) -> None:
        """A value as a tensor; `role`: of the saved one, for a load."""
        number = _ROLE_NUMBERS[role] if role is not None else (
            OPTIMIZER_STATE if role_of(name) == OPTIMIZER_STATE else BUFFER)
        lib.state_add_tensor(self.handle, _name(name), number, memory.dtype, 1,
                             numbers(memory.shape))
        lib.state_add_shard(self.handle, memory.address, -1, numbers((0,)), numbers(memory.shape),
                            None, 0)
        self._owners.append(memory.owner)
        if self._merges:
            self.alike[name] = _tensors.digest_of_all(memory)

    def _is_alias(self, name: str, other: str) -> bool:
        found = self._saved.get(name)
        return found is None or found.alias_of == other

    def _role(self, name: str) -> int:
        """That of a saved tensor: its name alone decides which one is wanted."""
        found = self._saved.get(name)
        return role_of(name) if found is None else _ROLE_NUMBERS[found.role]

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, FlatShard):
            return self._add_flat(name, value)
        shape, parts, dtype_of = _parts(value, name)
        memories: List[_tensors.Memory] = []
        if isinstance(dtype_of, _NoElements):
            dtype = _tensors.DTYPES.get(str(dtype_of.dtype).replace("torch.", ""), 0)
        else:
            first = self._memory_of(dtype_of, name)
            dtype = first.dtype
            if self._merges and getattr(dtype_of, "whole", dtype_of) is value and (
                    _tensors.is_digested(first)):
                self._digest(name, first)
            memories = [first if part.data is dtype_of else self._memory_of(part.data, name)
                        for part in parts]
            if first.elements is not None:
                identity = (first.elements, shape, *((memory.elements, part.offset)
                                                     for memory, part in zip(memories, parts)))
                other = self._names.setdefault(identity, name)
                # Tied parameters. Those that were not saved as such are loaded one by one: they may
                # be equal.
                if other != name and other not in self._lacking and self._is_alias(name, other):
                    self._owners.append(first.owner)
                    lib.state_add_alias(self.handle, _name(name), _name(other))
                    return None
        if name in self._lacking:
            self.missing.append(name)
            return None
        self.shapes[name] = tuple(shape)
        lib.state_add_tensor(self.handle, _name(name), self._role(name), dtype, len(shape),
                             numbers(shape))
        for part, memory in zip(parts, memories):
            if len(part.offset) != len(memory.shape):
                raise InvalidArgumentError(f"{name}: a part of {len(memory.shape)} dims, and the "
                                           f"tensor has {len(shape)}")
            self._add_shard(memory, part.offset)
            self._keep(memory, name, value)
            if memory.elements is not None and 0 not in memory.shape:
                self.parts.append(_shared_memory.Part(name, part.offset, memory.elements))
        return None

    def _add_shard(self, memory: _tensors.Memory, offset: Tuple[int, ...]) -> None:
        place = (numbers(offset), numbers(memory.shape), numbers(memory.strides),
                 READ_ONLY if memory.read_only else 0)
        if memory.on_device is None:
            lib.state_add_shard(self.handle, memory.address, -1, *place)
        else:
            lib.state_add_device_shard(self.handle, _device.CALLBACKS,
                                       self.on_devices.add(memory.on_device), memory.address, -1,
                                       memory.dtype, *place)

    def _digest(self, name: str, memory: _tensors.Memory) -> None:
        if memory.on_device is None:
            self.alike[name] = _tensors.digest_of_all(memory)
        else:
            self._alike_on_devices[name] = memory.on_device

    def _add_flat(self, name: str, flat: FlatShard) -> None:
        memory = self._memory_of(flat.data, name)
        if len(memory.shape) != 1 or not memory.is_contiguous:
            raise InvalidArgumentError(f"{name}: a flat part has one dim and is contiguous")
        if name in self._lacking:
            self.missing.append(name)
            return
        shape = self.shapes[name] = tuple(flat.shape)
        lib.state_add_tensor(self.handle, _name(name), self._role(name), memory.dtype, len(shape),
                             numbers(shape))
        if memory.on_device is not None:
            begin = 0
            for offset, extents in _boxes_of_range(shape, flat.begin,
                                                   flat.begin + memory.shape[0]):
                size = math.prod(extents)
                box = memory.on_device[begin:begin + size].view(extents)
                self._add_shard(memory._replace(
                    address=box.data_ptr(), shape=extents, strides=tuple(box.stride()),
                    on_device=box), offset)
                begin += size
        elif memory.shape[0] > 0:
            lib.state_add_flat_range(self.handle, memory.address, numbers((0,) * len(shape)),
                                     numbers(shape), flat.begin, flat.begin + memory.shape[0],
                                     READ_ONLY if memory.read_only else 0)
        self._keep(memory, name, flat)

    def _keep(self, memory: _tensors.Memory, name: str, value: Any) -> None:
        self._owners.append(memory.owner)
        if memory.finish is not None:
            self._finish.append((name, value, memory.finish))

    def finish_load(self) -> Dict[str, Any]:
        """Copies what was loaded to tensors that show the negative of their memory. Returns the
        tensors that were made anew."""
        made: Dict[str, Any] = {}
        for name, value, finish in self._finish:
            new = finish()
            if new is not None:
                has_data = isinstance(value, (FlatShard, Box))
                made[name] = value._replace(data=new) if has_data else new
        return made


def _name(name: Any) -> bytes:
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a name is {name!r}; expected a text")
    try:
        encoded = name.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"the name {name!r} is not valid Unicode") from None
    if b"\0" in encoded:
        raise InvalidArgumentError(f"the name {name!r} has a NUL character")
    return encoded
