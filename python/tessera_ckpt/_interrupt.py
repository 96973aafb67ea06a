"""SIGINT during a call of the library. Python would raise KeyboardInterrupt only when the call
returns; here the call ends soon after the signal, as an error, and KeyboardInterrupt follows."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import socket
import threading
from ctypes import c_int32, pointer
from typing import Any, Callable, Iterator, List, Optional, Tuple


def raises_interrupt() -> bool:
    """Whether SIGINT raises KeyboardInterrupt in this thread. A program with a handler of its own
    decides what ends, and the call is not disturbed."""
    return (threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler)


@contextlib.contextmanager
def cancelling(flag: Optional[c_int32] = None) -> Iterator[Any]:
    """A block with one call of the library. Yields a pointer to a number that SIGINT sets, for the
    member `cancelled` of options; the end of the block then raises KeyboardInterrupt.

    Args:
      flag: the number; a new one by default.
    """
    global _running
    number = c_int32(0) if flag is None else flag
    if not raises_interrupt():
        yield pointer(number)
        return
    failed: Optional[Exception] = None
    _running = number
    # From here on to the end, SIGINT raises nothing, so that no step below is left out.
    signal.signal(signal.SIGINT, _handle)
    try:
        with _watcher.watching(number):
            yield pointer(number)
    except Exception as error:
        failed = error
    finally:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        finally:
            _running = None
    if number.value:  # only now does a signal raise KeyboardInterrupt by itself again
        raise KeyboardInterrupt
    if failed is not None:
        raise failed


class _Watcher:
    """A thread that sees SIGINT while the main thread is in the library, and handles no signal."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while signals are taken from the socket
        self._ends: Optional[Tuple[socket.socket, socket.socket]] = None
        self._number = c_int32(0)
        self._previous = -1  # the descriptor of an event loop of the program's
        os.register_at_fork(after_in_child=self._forget)  # a fork copies no threads

    def _forget(self) -> None:
        self._lock = threading.Lock()
        if self._ends is not None:
            for end in self._ends:
                end.close()
        self._ends = None

    @contextlib.contextmanager
    def watching(self, number: c_int32) -> Iterator[None]:
        """A block in which SIGINT sets the number."""
        if self._ends is None:
            self._ends = socket.socketpair()
            for end in self._ends:
                end.setblocking(False)
            threading.Thread(target=self._watch, args=(self._ends[0],), daemon=True,
                             name="tessera_ckpt signals").start()
        self._number = number
        self._previous = signal.set_wakeup_fd(self._ends[1].fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(self._previous)
            with self._lock:  # nothing of this block is left for the next one
                self._take(self._ends[0])

    def _watch(self, signals: socket.socket) -> None:
        poll = select.poll()
        poll.register(signals, select.POLLIN)
        while True:
            poll.poll()
            with self._lock:
                self._take(signals)

    def _take(self, signals: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while numbers := signals.recv(64):
                if signal.SIGINT in numbers:
                    self._number.value = 1
                if self._previous >= 0:
                    with contextlib.suppress(OSError):
                        os.write(self._previous, numbers)


_watcher = _Watcher()

# The number of the call that the main thread is in, and whether it waits in a callback of it.
_running: Optional[c_int32] = None
_waiting = False


def _handle(_signal: int, _frame: Any) -> None:
    """Handles SIGINT during a call. An exception of a callback would be lost, where it does not
    wait."""
    if _running is not None:
        _running.value = 1
    if _waiting:
        raise KeyboardInterrupt


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """A block in a callback in which SIGINT raises KeyboardInterrupt."""
    global _waiting
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _waiting = True
    try:
        if _running is not None and _running.value:
            raise KeyboardInterrupt
        yield
    finally:
        _waiting = False


class Helper:
    """A thread that waits in the main thread's place for what no signal interrupts."""

    def __init__(self) -> None:
        self._tasks: Optional[queue.SimpleQueue[Any]] = None
        os.register_at_fork(after_in_child=self._forget)  # a fork copies no threads

    def _forget(self) -> None:
        self._tasks = None

    def run(self, body: Callable[[], Any]) -> Any:
        """Returns what `body` returns. After KeyboardInterrupt, `body` goes on without effect."""
        if threading.current_thread() is not threading.main_thread():
            return body()
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            threading.Thread(target=_work, args=(self._tasks,), daemon=True,
                             name="tessera_ckpt messages").start()
        done = threading.Event()
        outcome: List[Any] = []

        def task() -> None:
            try:
                outcome.append((body(), None))
            except BaseException as error:
                outcome.append((None, error))
            done.set()

        self._tasks.put(task)
        try:
            done.wait()
        except BaseException:
            self._tasks.put(_END)
            self._tasks = None
            raise
        result, error = outcome[0]
        if error is not None:
            raise error
        return result


_END = None


def _work(tasks: Any) -> None:
    while (task := tasks.get()) is not _END:
        task()
