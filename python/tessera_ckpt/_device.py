"""Tensors of torch in the memory of a device (a GPU): the copies between them and host memory that
a save or a load of the library asks for.

Copies run on a stream of this module's own, one for each device, behind the work that the program
has given to its current stream until the state was described. Starting them waits for nothing.
Dtypes and strides are converted on the device, in temporary memory of the size of a copy, so that
what crosses the bus is contiguous and in page-locked memory. On a device whose module in torch has
no streams, each copy is over once it is started.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import threading
import weakref
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from . import _host_memory, _library, _tensors
from ._copy_stream import CopyStream, Device, leave_to_parent, stream_of
from ._library import guarded

# Copies of fewer bytes, whose places in host memory adjoin, cross the bus together.
_SMALL_BYTES = 1 << 18
_MAX_GAP = 63  # between those to a device: what aligns them

def _torch() -> Any:
    return sys.modules["torch"]


# ---- What is copied.

class _Order:
    """What the copies of a state come after, and what comes after them."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.before: Dict[Device, Any] = {}  # events, until the first copy waits for them
        self.last: Dict[Device, Any] = {}  # events behind the copies from each device
        self.of_storage: Dict[Tuple[Device, int], Any] = {}


class _Shard(NamedTuple):
    tensor: Any
    device: Device
    order: _Order


class _Copy(NamedTuple):
    """Elements of a tensor, and their place in host memory."""

    shard: _Shard
    elements: Any
    host: int
    dtype: Any  # in host memory
    size: int  # in bytes, there


_shards: Dict[int, _Shard] = {}  # by handle
_handles = itertools.count(1)
_orders: "weakref.WeakSet[_Order]" = weakref.WeakSet()


def _forget(handles: List[int]) -> None:
    for handle in handles:
        _shards.pop(handle, None)


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


class Shards:
    """The tensors of a state that are on devices. They and their handles live as long as this
    object. The thread that makes it adds them, and has the streams that copies wait for."""

    def __init__(self) -> None:
        self._order = _Order()
        _orders.add(self._order)
        self._handles: List[int] = []
        weakref.finalize(self, _forget, self._handles).atexit = False

    def add(self, tensor: Any) -> int:
        """The handle of a tensor for the library. The copies of the device wait for what is on the
        current stream when its first tensor is added."""
        device = _tensors.device_of(tensor)
        if device not in self._order.before:
            queue = stream_of(device)
            self._order.before[device] = None if queue is None else queue.event_here()
        handle = next(_handles)
        _shards[handle] = _Shard(tensor, device, self._order)
        self._handles.append(handle)
        return handle

    def order_behind_here(self) -> None:
        """Copies that are not started yet wait for all that is on the current streams now."""
        for device in self._order.before:
            queue = stream_of(device)
            if queue is not None:
                self._order.before[device] = queue.event_here()

    def wait_here(self, tensor: Any = None) -> None:
        """Makes this thread's current streams wait for the copies to the host that were started:
        those of all tensors, or of one."""
        events = list(self._order.last.items())
        if tensor is not None:
            device = _tensors.device_of(tensor)
            event = self._order.of_storage.get((device, _storage(tensor)))
            events = [] if event is None else [(device, event)]
        for device, event in events:
            queue = stream_of(device)
            if queue is not None:
                queue.wait_here(event)


def read(tensors: List[Any]) -> List[bytes]:
    """The elements of small tensors, after one wait for their devices."""
    hosts = [_host_memory.empty_bytes(each.numel() * each.element_size()) for each in tensors]
    _transfer(tensors, hosts, to_device=False)
    return [ctypes.string_at(host.data_ptr(), host.numel()) for host in hosts]


def fill(tensor: Any, elements: Any) -> None:
    """Copies elements, which a tensor of bytes on the host has, to a tensor, and waits for it."""
    _transfer([tensor], [elements], to_device=True)


def _transfer(tensors: List[Any], hosts: List[Any], to_device: bool) -> None:
    shards = Shards()
    for event in _start([_Copy(_shards[shards.add(tensor)], tensor, host.data_ptr(), tensor.dtype,
                               host.numel()) for tensor, host in zip(tensors, hosts)], to_device):
        event.synchronize()


# ---- How it is copied.

def _start(copies: Iterable[_Copy], to_device: bool) -> List[Any]:
    """Enqueues copies, and returns events behind them. After an error, none is in flight."""
    by_device: Dict[Device, List[_Copy]] = {}
    for copy in copies:
        if copy.size > 0:
            by_device.setdefault(copy.shard.device, []).append(copy)
    events: List[Any] = []
    try:
        for device, each in by_device.items():
            queue = stream_of(device)
            if queue is None:
                _move(each, to_device, False)
                continue
            with queue.lock:
                try:
                    events.append(_enqueue(queue, device, each, to_device))
                except BaseException:
                    queue.stream.synchronize()
                    raise
    except BaseException:
        for event in events:
            event.synchronize()
        raise
    return events


def _enqueue(queue: CopyStream, device: Device, copies: List[_Copy], to_device: bool) -> Any:
    orders = {id(copy.shard.order): copy.shard.order for copy in copies}.values()
    with queue.selected(copies[0].shard.order.thread):
        for order in orders:
            if order.before[device] is not None:
                queue.stream.wait_event(order.before[device])
                order.before[device] = None
        _move(copies, to_device, True)
        event = queue.event()
    if not to_device:
        for order in orders:
            order.last[device] = event
        for copy in copies:
            copy.shard.order.of_storage[device, _storage(copy.shard.tensor)] = event
    return event


def _move(copies: List[_Copy], to_device: bool, is_async: bool) -> None:
    # A tensor that was made in this mode can be changed in it alone; every other one can, too.
    with _torch().inference_mode():
        for run in _runs(copies, max_gap=_MAX_GAP if to_device else 0):
            (_to_device if to_device else _to_host)(run, is_async)


def _runs(copies: List[_Copy], max_gap: int) -> Iterator[List[_Copy]]:
    """Small copies whose places adjoin, but for gaps of so many bytes, and each of the others by
    itself."""
    run: List[_Copy] = []
    end: Optional[int] = None  # of the run, where it may go on
    for copy in copies:
        is_small = copy.size < _SMALL_BYTES
        if run and (end is None or not is_small or not 0 <= copy.host - end <= max_gap):
            yield run
            run = []
        run.append(copy)
        end = copy.host + copy.size if is_small else None
    if run:
        yield run


def _to_host(run: List[_Copy], is_async: bool) -> None:
    torch = _torch()
    parts = [_bytes_of(copy.elements.resolve_neg().to(copy.dtype).contiguous()) for copy in run]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    _allocations.bytes_at(run[0].host, whole.numel()).copy_(whole, non_blocking=is_async)


def _to_device(run: List[_Copy], is_async: bool) -> None:
    torch = _torch()
    host = _allocations.bytes_at(run[0].host, run[-1].host + run[-1].size - run[0].host)
    elements = run[0].elements
    if len(run) == 1 and _is_plain(elements) and elements.dtype == run[0].dtype:
        _bytes_of(elements).copy_(host, non_blocking=is_async)
        return
    arrived = elements.new_empty(host.numel(), dtype=torch.uint8)
    arrived.copy_(host, non_blocking=is_async)
    plain: Tuple[List[Any], List[Any]] = ([], [])
    for copy in run:
        begin = copy.host - run[0].host
        source = arrived[begin:begin + copy.size]
        if begin % (copy.size // copy.elements.numel()):
            source = source.clone()  # for its alignment
        source = source.view(copy.dtype).view(copy.elements.shape)
        if _is_plain(copy.elements):
            plain[0].append(copy.elements)
            plain[1].append(source)
        else:
            _set(copy.elements, source)
    if plain[0]:
        torch._foreach_copy_(*plain)


def _bytes_of(elements: Any) -> Any:
    """A view of contiguous elements."""
    return elements.as_strided((elements.numel(),), (1,)).view(_torch().uint8)


def _is_plain(elements: Any) -> bool:
    return elements.is_contiguous() and not elements.is_neg()


def _set(elements: Any, source: Any) -> None:
    """Copies once to an element that stands in a tensor several times."""
    for dim, stride in enumerate(elements.stride()):
        if stride == 0 and elements.shape[dim] > 1:
            elements, source = elements.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    elements.copy_(source)


# ---- The callbacks.

_allocations = _host_memory.Allocations()
_pending: Dict[int, List[Any]] = {}  # events
_pending_numbers = itertools.count(1)


@functools.lru_cache(maxsize=None)
def _torch_dtype(number: int) -> Any:
    return getattr(_torch(), _tensors.DTYPE_NAMES[number])


def _copy(box: Any) -> _Copy:
    shard = _shards[box.handle]
    elements = shard.tensor
    for dim in range(box.dims):
        if box.shape[dim] != elements.shape[dim]:
            elements = elements.narrow(dim, box.offset[dim], box.shape[dim])
    return _Copy(shard, elements, box.host, _torch_dtype(box.host_dtype),
                 elements.numel() * _tensors.item_bytes(box.host_dtype))


def _start_copies(_context: Any, boxes: Any, count: int, to_device: int, pending: Any) -> int:
    def body() -> None:
        events = _start([_copy(boxes[i]) for i in range(count)], bool(to_device))
        number = next(_pending_numbers)
        _pending[number] = events
        pending[0] = number
    return guarded(body, interruptible=False)


def _wait(_context: Any, pending: int) -> int:
    def body() -> None:
        for event in _pending[pending]:
            event.synchronize()
    return guarded(body, interruptible=False)


def _release(_context: Any, pending: int) -> None:
    _wait(_context, pending)
    _pending.pop(pending, None)


def _allocate(_context: Any, size: int, memory: Any) -> int:
    def body() -> None:
        memory[0] = _allocations.allocate(size)
    return guarded(body, interruptible=False)


def _free(_context: Any, memory: int) -> None:
    guarded(lambda: _allocations.free(memory), interruptible=False)


# Those of all devices: a handle says which of them it is.
CALLBACKS = _library.Device(
    start_copies=_library.START_COPIES(_start_copies), wait=_library.WAIT_COPIES(_wait),
    release=_library.RELEASE(_release), allocate=_library.ALLOCATE(_allocate),
    free=_library.RELEASE(_free))


def _after_fork() -> None:
    """A child leaves alone what its parent has on a device: it does not even free it."""
    global _allocations, _pending, _shards
    orders = list(_orders)
    leave_to_parent((_allocations, _pending, _shards, [vars(order) for order in orders]))
    for order in orders:
        order.__dict__ = vars(_Order())
    _allocations, _pending, _shards = _host_memory.Allocations(), {}, {}


os.register_at_fork(after_in_child=_after_fork)
