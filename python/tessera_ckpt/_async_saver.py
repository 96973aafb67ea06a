"""Saves in the background."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import logging
import multiprocessing.process
import multiprocessing.util
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Iterable, List, Mapping, Optional, Tuple, TypeVar

from . import _library, _tensors
from ._checkpoints import (Folder, PathLike, SaveReport, check_keep, describe, is_first,
                           save_report)
from ._group import TIMEOUT_SECONDS, group_of, together
from ._copy_stream import threads_of_program
from ._interrupt import cancelling
from ._library import (LOGGER, Handle, SaveOptions, TesseraError, error_of, finish_freeing, integer,
                       lib, report)
from ._progress import Progress


@dataclass(frozen=True)
class SaveOutcome:
    """A save that is over."""

    step: int
    report: Optional[SaveReport]
    error: Optional[TesseraError] = None

    def result(self) -> SaveReport:
        """The report; raises the error of a save that failed."""
        if self.error is not None:
            raise self.error
        assert self.report is not None
        return self.report


def wait_for_saves(cancelled: ctypes.c_int32, call: Callable[[], Any]) -> Any:
    """Makes a call that waits for saves, which SIGINT ends. This thread helps with their copies."""
    thread = threading.get_ident()
    threads_of_program.add(thread)
    try:
        with cancelling(cancelled):
            return call()
    finally:
        cancelled.value = 0
        threads_of_program.discard(thread)


def outcome_of(folder: Folder, found: Mapping[str, Any],
               keep: Optional[int] = None) -> SaveOutcome:
    """An outcome that the library has reported; see save_report()."""
    step = found["step"]
    if "error" not in found:
        return SaveOutcome(step, save_report(folder, step, found, keep))
    error = error_of(found["code"], found["error"])
    skipped = found["code"] == _library.CANCELLED
    LOGGER.log(logging.INFO if skipped else logging.ERROR, "the save of step %d %s: %s", step,
               "was skipped" if skipped else "failed", error)
    return SaveOutcome(step, None, error)


# Savers whose saves are to be finished before the interpreter ends.
_open: "weakref.WeakSet[Any]" = weakref.WeakSet()


def finish_at_exit(saver: Any) -> None:
    """Closes a saver, or a manager, before the interpreter ends."""
    _open.add(saver)
    _finish_at_exit(os.getpid())


@functools.lru_cache(maxsize=None)
def _finish_at_exit(_process: int) -> None:
    """To be called once there is a Handle: what is registered last runs first, and that would free
    the handles before."""
    atexit.register(_finish_all)
    if multiprocessing.process.parent_process() is not None:  # which may end without atexit's
        finalize: Any = multiprocessing.util.Finalize
        finalize(None, _finish_all, exitpriority=100)


def _finish_all() -> None:
    for saver in list(_open):
        saver.close()
    finish_freeing()


_Self = TypeVar("_Self", bound="Finishing")


def free_after_log(free: Callable[[Any], None], poll: Callable[..., Any], folder: Optional[Folder],
                   keep: Optional[int] = None) -> Callable[[Any], None]:
    """A function that frees a saver, or a manager, once the outcomes of its saves are logged: a
    program may drop it without having asked for them."""
    def call(pointer: Any) -> None:
        try:
            for found in report(poll, pointer, True):
                assert folder is not None
                outcome_of(folder, found, keep)
        except Exception as error:
            LOGGER.error("the last saves may have failed: %s", error)
        free(pointer)

    return call


class Finishing:
    """What finishes its saves at the end of a block, and raises the error of one that failed."""

    _handle: Handle
    _folder: Optional[Folder]
    _cancelled: ctypes.c_int32
    _keep: Optional[int] = None
    # By step, in the order of the calls: they keep the memory of saves in flight alive.
    _descriptions: List[Tuple[int, Any]]
    _over: List[SaveOutcome]  # of saves that are over, and that the program does not know of

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        outcomes = self.finish()
        self.close()
        if kind is None:
            for outcome in outcomes:
                outcome.result()

    def finish(self) -> List[SaveOutcome]:
        """Waits for the saves in flight, and returns those that were not reported."""
        raise NotImplementedError

    def close(self) -> None:
        """Waits like finish(), and frees everything; nothing else can be called afterwards. In a
        process that was forked from this one's, does nothing."""
        with contextlib.suppress(TesseraError):  # closed already, or the parent's
            self.finish()
        self._handle.close()
        self._descriptions.clear()
        _open.discard(self)

    def _note(self, outcomes: List[Mapping[str, Any]]) -> None:
        """Logs saves that are over, and keeps their outcomes for the program."""
        for each in outcomes:
            assert self._folder is not None
            self._over.append(outcome_of(self._folder, each, self._keep))
            forget(self._descriptions, each)

    def _outcomes(self, poll: Callable[..., Any], wait: bool) -> List[SaveOutcome]:
        """What the program does not know of yet. SIGINT loses none of it: the next call has it."""
        self._handle.check()

        def take() -> None:
            self._note(report(poll, self._handle, wait))

        if wait:
            wait_for_saves(self._cancelled, take)
        else:
            with cancelling():
                take()
        over, self._over = self._over, []
        return over


class AsyncSaver(Finishing):
    """Writes checkpoints while the program continues.

        saver = AsyncSaver("/runs/a")
        for step in ...:
            forward, backward, optimizer.step()
            if it is time: saver.save(step, state)
            for outcome in saver.poll(): print(outcome.result())
        saver.finish()

    save() returns once the state is copied and may change. With lazy_copy=True, it returns at once,
    and the state must not change until wait_copied() has returned. Called between backward() and
    optimizer.step(), wait_copied() hides the copy behind the backward pass. For tensors on a
    device, both return earlier: once the copies are started, for which the device's current stream
    then waits.

    Checkpoints are those of tessera_ckpt.save(), by the same protocol. In a group, every rank has a
    saver and makes the same calls in the same order. poll() and finish() report a failed save; the
    next one works as usual. A forked process needs a saver of its own, since the parent's raises an
    error there.
    """

    def __init__(self, folder: PathLike, group: Any = None, *, lazy_copy: bool = False,
                 skip_when_busy: bool = False, keep: Optional[int] = None, overwrite: bool = False,
                 staging_bytes: int = 0, io_threads: int = 0,
                 timeout_seconds: float = TIMEOUT_SECONDS, s3_endpoint: str = "",
                 progress: Progress = None) -> None:
        """Opens the folder, and creates it if it is missing. Every rank of the group makes this
        call; the saver uses a new group of the same ranks.

        Args:
          lazy_copy: whether save() returns before the state is copied.
          skip_when_busy: whether a save that begins while another one runs is skipped; by default,
            it waits.
          keep: how many checkpoints stay in the folder, as for tessera_ckpt.save(). Others are
            deleted when the next call finds that a save has succeeded.
          overwrite: as for tessera_ckpt.save().
          staging_bytes: the limit of the memory for the copy of the state; by default, none.
          progress: a function that is called with the bytes done so far and in total.
        """
        self._group = group_of(group, own=True, timeout_seconds=timeout_seconds)
        self._lazy_copy = lazy_copy
        self._descriptions, self._over = [], []
        with together(self._group):
            self._folder = Folder(folder, create=True, s3_endpoint=s3_endpoint)
            self._progress = _callback(progress)
            self._keep = check_keep(keep) if is_first(self._group) else None
            self._cancelled = ctypes.c_int32(0)
            options = SaveOptions(
                group=None if self._group is None else self._group.pointer(),
                timeout_seconds=timeout_seconds, io_threads=integer(io_threads, "io_threads", 32),
                staging_bytes=_limit(staging_bytes), skip_when_busy=bool(skip_when_busy),
                progress=self._progress, cancelled=ctypes.pointer(self._cancelled),
                overwrite=bool(overwrite))
            free = free_after_log(lib.saver_free, lib.saver_poll, self._folder, self._keep)
            self._handle = Handle(lib.saver_create, free, self._folder.handle,
                                  ctypes.byref(options), of_process="AsyncSaver",
                                  keeps=(self._descriptions, self._group, options))
        finish_at_exit(self)

    def save(self, step: int, state: Any, *, entries: Optional[Mapping[str, bytes]] = None,
             program: str = "tessera_ckpt", per_rank: Iterable[str] = ()) -> None:
        """Begins a save and, without lazy_copy, waits until the state is copied. Every rank makes
        this call. Arguments as for tessera_ckpt.save()."""
        self._handle.check()
        number = integer(step, "step")
        self._over = self.poll()  # so that a failure is logged soon
        try:
            description = describe(state, entries, program, per_rank, self._group)
        except Exception as error:
            if self._group is not None:  # the other ranks are told by the save
                code, message = _library.told_of(error, _library.INVALID_ARGUMENT)
                lib.saver_refuse(self._handle, number, code, message.encode("utf-8", "replace"))
            raise
        # Before the save begins, since SIGINT may end this function as soon as it has.
        self._descriptions.append((number, description))
        try:
            self._wait(lambda: lib.saver_start(self._handle, number, description.handle))
        except Exception:
            self._descriptions.pop()  # nothing has begun
            raise
        if not self._lazy_copy:
            self.wait_copied()

    def wait_copied(self, tensor: Any = None) -> None:
        """Waits until a tensor, or all of the state, may be changed. For a tensor on a device,
        waits until its copies are started, and makes torch's current stream wait for their end:
        work of this stream may then change the tensor."""
        self._handle.check()
        if tensor is None:
            self._wait(lambda: lib.saver_wait_copied(self._handle, None, 0))
            self._order(None)
            return
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
        if _tensors.is_jax(tensor):
            return
        memory = _tensors.memory_of(tensor, "tensor")
        if memory.finish is not None or 0 in memory.shape:
            return  # what is saved is a copy
        begin, end = _tensors.span_of(memory)
        self._wait(lambda: lib.saver_wait_copied(self._handle, begin, end - begin))
        if memory.on_device is not None:
            self._order(memory.on_device)

    def _order(self, tensor: Any) -> None:
        """Makes the current streams wait for the copies of a tensor, or of all."""
        for _, description in self._descriptions:
            description.on_devices.wait_here(tensor)

    def _wait(self, call: Callable[[], Any]) -> Any:
        """Waits for saves in flight. SIGINT ends them, and the wait."""
        return wait_for_saves(self._cancelled, call)

    def poll(self) -> List[SaveOutcome]:
        """The saves that have finished since the last call. Never waits."""
        return self._outcomes(lib.saver_poll, False)

    def finish(self) -> List[SaveOutcome]:
        """Waits for the saves in flight, and returns those that were not polled."""
        return self._outcomes(lib.saver_poll, True)


def forget(descriptions: List[Tuple[int, Any]], found: Mapping[str, Any]) -> None:
    """A save is over. One that was skipped began after the one that still runs."""
    places = [i for i, (began, _) in enumerate(descriptions) if began == found["step"]]
    if places:
        del descriptions[places[-1 if found.get("code") == _library.CANCELLED else 0]]


def _limit(size: int) -> int:
    size = integer(size, "staging_bytes")
    if size < 0:
        raise _library.InvalidArgumentError(f"staging_bytes: {size} is negative")
    return size


def _callback(progress: Progress) -> Any:
    if progress is None or progress is False:
        return _library.PROGRESS()
    if not callable(progress):
        raise _library.InvalidArgumentError("progress: a saver takes a function only")
    failed: List[BaseException] = []

    def call(_context: Any, done: int, total: int) -> None:
        try:
            if not failed:
                progress(done, total)
        except BaseException as error:  # in a thread of the library
            failed.append(error)
            LOGGER.warning("progress has failed, and was not called again: %r", error)

    return _library.PROGRESS(call)
