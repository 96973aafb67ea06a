"""Python's collections of garbage, which look at all objects of the program."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from typing import Iterator, Set


class _Pause:
    """One for all threads: collections are the process's. A handler of a signal may begin and end
    blocks between any two steps here."""

    def __init__(self) -> None:
        self._blocks: Set[object] = set()  # those that run
        self._resumes = False  # whether collections go on after them
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._forget)  # a fork copies no threads

    def begin(self, block: object) -> None:
        with self._lock:
            self._blocks.add(block)
            self._resumes = gc.isenabled() or self._resumes
            gc.disable()

    def end(self, block: object) -> None:
        with self._lock:
            self._blocks.discard(block)
            if not self._blocks and self._resumes:
                gc.enable()
                self._resumes = False

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._blocks.clear()
        self.end(None)


_pause = _Pause()


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """A block that makes many objects and no garbage. Collections go on after it, if there were any
    before, once no thread is in such a block."""
    block = object()
    try:
        _pause.begin(block)
        yield
    finally:
        _pause.end(block)
