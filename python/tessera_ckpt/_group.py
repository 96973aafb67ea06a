"""The ranks that save or load together, over torch.distributed, MPI, or a program's own messages.

The library asks a group for two collectives and for messages from rank to rank
(checkpoint/include/process_group.h). Here they are made of one thing, a Transport: messages of a
known size from one rank to another.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import json
import struct
import sys
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional

from . import _interrupt, _library
from ._library import (DeadlineExceededError, InvalidArgumentError, UnavailableError, error_of,
                       guarded, lib, told_of)
from ._transport import Transport

TIMEOUT_SECONDS = 600.0

# Tags: control messages, and contents of tensors.
_CONTROL, _DATA = 1, 2


class _Alone:
    def __repr__(self) -> str:
        return "tessera_ckpt.ALONE"


ALONE = _Alone()
"""As a group: this process alone, although torch.distributed is initialized."""


_helper = _interrupt.Helper()


# How many transports a gloo group has had, which each rank counts for itself: after a call that a
# rank left out, the numbers differ for good.
_transports: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


class _TorchTransport(Transport):
    """A gloo group. Each transport has tags of its own: what an interrupted call has left, such as
    a message that nobody received, meets none of the next call's. All ranks must make the same
    calls in the same order: if one leaves out a call, later calls fail, at the latest at their
    timeout."""

    def __init__(self, group: Any) -> None:
        import torch
        import torch.distributed as dist
        self._torch, self._dist, self._group = torch, dist, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        _transports[group] = number = _transports.get(group, 0) % (1 << 24) + 1
        self._tags = 4 * number
        self._global = [dist.get_global_rank(group, rank) if group is not dist.group.WORLD else rank
                        for rank in range(self.size)]

    def interruptible(self, body: Callable[[], Any]) -> Any:
        return _helper.run(body)

    def send(self, data: bytes, destination: int, tag: int) -> Callable[[float], None]:
        tensor = self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8)
        with self._errors_of(destination):
            work: Any = self._dist.isend(tensor, self._global[destination], group=self._group,
                                         tag=self._tags + tag)

        def wait(seconds: float, _keep: Any = tensor) -> None:
            with self._errors_of(destination):
                work.wait(self._timeout(seconds))

        return wait

    def receive(self, size: int, source: int, tag: int) -> Callable[[float], Any]:
        buffer = bytearray(size)
        tensor = self._torch.frombuffer(buffer, dtype=self._torch.uint8)
        with self._errors_of(source):
            work: Any = self._dist.irecv(tensor, self._global[source], group=self._group,
                                         tag=self._tags + tag)

        def wait(seconds: float) -> Any:
            with self._errors_of(source):
                work.wait(self._timeout(seconds))
            return buffer

        return wait

    @staticmethod
    def _timeout(seconds: float) -> datetime.timedelta:
        return datetime.timedelta(seconds=min(seconds, 1e8))

    @staticmethod
    @contextlib.contextmanager
    def _errors_of(peer: int) -> Iterator[None]:
        """Gloo refuses a message at its start, too, after one that came too late."""
        try:
            yield
        except Exception as error:
            late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            raise (DeadlineExceededError if late else UnavailableError)(
                f"rank {peer} is missing: {error}") from error


# Requests of MPI until they are over, with their memory, to which MPI writes whoever still waits.
_requests: Dict[int, Any] = {}


class _MpiTransport(Transport):
    """A communicator of mpi4py, of its own."""

    def __init__(self, communicator: Any) -> None:
        self._comm = communicator
        self.rank, self.size = communicator.Get_rank(), communicator.Get_size()

    def send(self, data: bytes, destination: int, tag: int) -> Callable[[float], None]:
        copy = bytearray(data)
        request = self._comm.Isend([copy, len(copy), self._byte()], dest=destination, tag=tag)
        _requests[id(request)] = (request, copy)

        def wait(seconds: float) -> None:
            self._wait(request, seconds, destination)

        return wait

    def receive(self, size: int, source: int, tag: int) -> Callable[[float], Any]:
        buffer = bytearray(size)
        request = self._comm.Irecv([buffer, size, self._byte()], source=source, tag=tag)
        _requests[id(request)] = (request, buffer)

        def wait(seconds: float) -> Any:
            self._wait(request, seconds, source)
            return buffer

        return wait

    @staticmethod
    def _byte() -> Any:
        return sys.modules["mpi4py.MPI"].BYTE

    @staticmethod
    def _wait(request: Any, seconds: float, peer: int) -> None:
        until = time.monotonic() + seconds
        pause = 0.0
        while not request.Test():
            if time.monotonic() > until:
                raise DeadlineExceededError(f"missing ranks: {peer}")
            time.sleep(pause)
            pause = min(pause + 1e-5, 1e-3)
        _requests.pop(id(request), None)


# Gloo groups that stand in for groups which cannot send memory of the host; MPI's communicators by
# their addresses, with their duplicates. A communicator is kept, so that no other one gets its
# address.
_stand_ins: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()
_duplicates: Dict[int, Any] = {}


def _torch_group(group: Any, own: bool) -> Any:
    """A group over the same ranks that sends memory of the host. Collective where it is new."""
    import torch.distributed as dist
    if not own and "gloo" in str(dist.get_backend_config(group)):
        return group
    if not own and group in _stand_ins:
        return _stand_ins[group]
    # Ranks outside of a smaller group take no part in this.
    made = dist.new_group(dist.get_process_group_ranks(group), backend="gloo",
                          use_local_synchronization=group is not dist.group.WORLD)
    if not own:
        _stand_ins[group] = made
    return made


def transport_of(group: Any, own: bool = False) -> Optional[Transport]:
    """The transport of a group; None for a process alone.

    Args:
      group: of torch.distributed or mpi4py, or a Transport; None: all of torch.distributed or of
        jax.distributed, where that is initialized.
      own: that nothing else uses, for saves in the background. Collective over the group.
    """
    if group is ALONE:
        return None
    dist = sys.modules.get("torch.distributed")
    if group is None:
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return _jax_transport(own)
        group = dist.group.WORLD
    if isinstance(group, Transport):
        if group.size == 1:
            return None
        return group.duplicate() if own else group
    if dist is not None and dist.is_available() and isinstance(group, dist.ProcessGroup):
        if dist.get_world_size(group) == 1:
            return None
        return _TorchTransport(_torch_group(group, own))
    if hasattr(group, "Isend") and hasattr(group, "Dup"):
        if group.Get_size() == 1:
            return None
        # A communicator of its own, so that no message meets the program's.
        if own:
            return _MpiTransport(group.Dup())
        key = sys.modules["mpi4py.MPI"]._addressof(group) if hasattr(
            sys.modules.get("mpi4py.MPI"), "_addressof") else id(group)
        if key not in _duplicates:
            _duplicates[key] = (group, _MpiTransport(group.Dup()))
        duplicate: Transport = _duplicates[key][1]
        return duplicate
    raise InvalidArgumentError(
        f"group: {type(group).__name__} is no group of torch.distributed or mpi4py")


def _jax_transport(own: bool) -> Optional[Transport]:
    if "jax" not in sys.modules:
        return None
    from . import _jax_group
    return _jax_group.transport(own)


class Collectives:
    """Gather and broadcast over a transport, and what is made of them, which waits as long as
    `timeout_seconds`."""

    def __init__(self, transport: Transport, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.transport, self.timeout_seconds = transport, timeout_seconds

    def _send(self, data: bytes, destination: int) -> List[Callable[[float], Any]]:
        waits = [self.transport.send(struct.pack("<Q", len(data)), destination, _CONTROL)]
        if data:
            waits.append(self.transport.send(data, destination, _CONTROL))
        return waits

    def _receive(self, source: int, until: float) -> bytes:
        header = self.transport.receive(8, source, _CONTROL)(until - time.monotonic())
        size, = struct.unpack("<Q", header)
        if size == 0:
            return b""
        return bytes(self.transport.receive(size, source, _CONTROL)(until - time.monotonic()))

    def _in_step(self, body: Callable[[], Any]) -> Any:
        """Runs a collective call. After an error the ranks are at different ones, and every later
        call raises it at once."""
        self.transport.abandoned.check()
        try:
            return self.transport.interruptible(body)
        except BaseException as error:  # such as missing memory, or KeyboardInterrupt
            self.transport.abandoned.set(error)
            raise

    def gather(self, mine: bytes, seconds: float) -> List[bytes]:
        """All messages, by rank, on rank 0; none elsewhere."""
        gathered: List[bytes] = self._in_step(lambda: self._gather(mine, seconds))
        return gathered

    def _gather(self, mine: bytes, seconds: float) -> List[bytes]:
        until = time.monotonic() + seconds
        if self.transport.rank != 0:
            for wait in self._send(mine, 0):
                wait(until - time.monotonic())
            return []
        return [mine] + [self._receive(rank, until) for rank in range(1, self.transport.size)]

    def broadcast(self, from_rank_0: bytes, seconds: float) -> bytes:
        """Rank 0's message, along a binomial tree."""
        data: bytes = self._in_step(lambda: self._broadcast(from_rank_0, seconds))
        return data

    def _broadcast(self, from_rank_0: bytes, seconds: float) -> bytes:
        until = time.monotonic() + seconds
        rank, size = self.transport.rank, self.transport.size
        step = 1
        while step <= rank:
            step *= 2
        data = from_rank_0 if rank == 0 else self._receive(rank - step // 2, until)
        waits = []
        while rank + step < size:
            waits += self._send(data, rank + step)
            step *= 2
        for wait in waits:
            wait(until - time.monotonic())
        return data

    def agree(self, error: Optional[BaseException], value: Any = None) -> Any:
        """Raises on every rank where one has an error; otherwise returns rank 0's value, which
        JSON can hold."""
        mine = None if error is None else told_of(error, _library.INVALID_ARGUMENT)
        gathered = self.gather(json.dumps(mine).encode(), self.timeout_seconds)
        verdict = None
        for rank, answer in enumerate(map(json.loads, gathered)):
            if answer is not None and verdict is None:
                verdict = [answer[0], f"rank {rank}: {answer[1]}"]
        code_and_message, agreed = json.loads(
            self.broadcast(json.dumps([verdict, value]).encode(), self.timeout_seconds))
        if error is not None:
            raise error
        if code_and_message is not None:
            raise error_of(*code_and_message)
        return agreed

    def common(self, names: List[str]) -> List[str]:
        """The names that every rank has, sorted."""
        gathered = self.gather(json.dumps(names).encode(), self.timeout_seconds)
        shared = sorted(set.intersection(*(set(json.loads(each)) for each in gathered))
                        ) if gathered else []
        return list(json.loads(
            self.broadcast(json.dumps(shared).encode(), self.timeout_seconds)))


class Group:
    """A group as the library calls it. Keep it while the library has it."""

    def __init__(self, transport: Transport, timeout_seconds: float) -> None:
        self.collectives = Collectives(transport, timeout_seconds)
        self._transport = transport
        self._pending: Dict[int, Callable[[float], None]] = {}
        self._next = 1
        self._callbacks = dict(
            gather=_library.GATHER(self._gather),
            broadcast=_library.BROADCAST(self._broadcast),
            start_send=_library.START_TRANSFER(self._start_send),
            start_receive=_library.START_TRANSFER(self._start_receive),
            wait=_library.WAIT(self._wait),
            release=_library.RELEASE(self._release))
        self.struct = _library.Group(rank=transport.rank, size=transport.size,
                                     abandoned=ctypes.pointer(transport.abandoned),
                                     **self._callbacks)

    def pointer(self) -> Any:
        """For the options of a call."""
        return ctypes.pointer(self.struct)

    def _gather(self, _context: Any, mine: Any, size: int, seconds: float, out: Any) -> int:
        def body() -> None:
            data = ctypes.string_at(mine, size)
            for message in self._transport.interruptible(
                    lambda: self.collectives._gather(data, seconds)):
                lib.messages_add(out, message, len(message))
        return guarded(body)

    def _broadcast(self, _context: Any, mine: Any, size: int, seconds: float, out: Any) -> int:
        def body() -> None:
            data = ctypes.string_at(mine, size)
            message = self._transport.interruptible(
                lambda: self.collectives._broadcast(data, seconds))
            lib.messages_add(out, message, len(message))
        return guarded(body)

    def _keep(self, wait: Callable[[float], None], pending: Any) -> None:
        pending[0] = self._next
        self._pending[self._next] = wait
        self._next += 1

    def _start_send(self, _context: Any, data: Any, size: int, peer: int, pending: Any) -> int:
        return guarded(lambda: self._keep(
            self._transport.send(ctypes.string_at(data, size), peer, _DATA), pending))

    def _start_receive(self, _context: Any, data: Any, size: int, peer: int, pending: Any) -> int:
        def body() -> None:
            receive = self._transport.receive(size, peer, _DATA)

            def wait(seconds: float) -> None:
                message = memoryview(receive(seconds)).cast("B")
                if len(message) != size:
                    raise UnavailableError(f"rank {peer} sent {len(message)} bytes, not {size}")
                target = (ctypes.c_char * size).from_address(data)
                memoryview(target).cast("B")[:] = message

            self._keep(wait, pending)
        return guarded(body)

    def _wait(self, _context: Any, pending: int, seconds: float) -> int:
        return guarded(lambda: self._pending[pending](seconds))

    def _release(self, _context: Any, pending: int) -> None:
        self._pending.pop(pending, None)


def group_of(group: Any, own: bool = False,
             timeout_seconds: float = TIMEOUT_SECONDS) -> Optional[Group]:
    """The group as the library calls it; None for a process alone. See transport_of()."""
    transport = transport_of(group, own)
    return None if transport is None else Group(transport, timeout_seconds)


class Agreed:
    """What rank 0 has found, which JSON can hold; None by default."""

    value: Any = None


@contextlib.contextmanager
def together(group: Optional[Group]) -> Iterator[Agreed]:
    """A block that fails on all ranks if it fails on one: the others are waiting for it. After it,
    the value that rank 0 has set in the block is that of all."""
    failed, agreed = None, Agreed()
    try:
        yield agreed
    except Exception as error:
        failed = error
    if group is not None:
        agreed.value = group.collectives.agree(failed, agreed.value)
    elif failed is not None:
        raise failed
