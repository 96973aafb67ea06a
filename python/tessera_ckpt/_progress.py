"""Showing how far an operation is, as tqdm does."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from typing import Any, Callable, Iterator, List, Union

from . import _library

Progress = Union[None, bool, Callable[[int, int], Any], Any]
"""What `progress` may be: True, for a bar; tqdm, or a bar of it; or a function of the bytes that
are done and of those in all."""


class _Line:
    """A line on stderr that is redrawn, for programs without tqdm."""

    def __init__(self, title: str) -> None:
        self._title, self._drawn = title, 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now - self._drawn < 0.1:
            return
        self._drawn = now
        sys.stderr.write(f"\r{self._title}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
        sys.stderr.flush()

    def close(self) -> None:
        if self._drawn:
            sys.stderr.write("\n")


class _Bar:
    """A bar of tqdm's kind, which wants to be told what is new."""

    def __init__(self, bar: Any, own: bool = False) -> None:
        self._bar, self._done, self._own = bar, 0, own

    def __call__(self, done: int, total: int) -> None:
        if done < self._done:  # another pass over the same bytes
            self._bar.reset(total)
            self._done = 0
        self._bar.total = total
        self._bar.update(done - self._done)
        self._done = done

    def close(self) -> None:
        if self._own:
            self._bar.close()


def prepared(progress: Progress, title: str) -> Any:
    """What shown() takes: None without a progress."""
    if progress is None or progress is False:
        return None
    if progress is True:
        try:
            tqdm: Any = importlib.import_module("tqdm.auto")
        except ImportError:
            return _Line(title)
        return _Bar(tqdm.tqdm(desc=title, unit="B", unit_scale=True), own=True)
    if isinstance(progress, type) and hasattr(progress, "update"):  # tqdm itself
        return _Bar(progress(desc=title, unit="B", unit_scale=True), own=True)
    if hasattr(progress, "update"):
        return _Bar(progress)
    if not callable(progress):
        raise _library.InvalidArgumentError(
            f"progress: expected True, a bar or a function, not {type(progress).__name__}")
    return progress


@contextlib.contextmanager
def shown(function: Any) -> Iterator[Any]:
    """A progress that is prepared(), as a callback of the library."""
    if function is None:
        yield _library.PROGRESS()
        return
    failed: List[BaseException] = []

    def call(_context: Any, done: int, total: int) -> None:
        if failed:
            return
        try:
            function(done, total)
        except BaseException as error:
            failed.append(error)

    try:
        yield _library.PROGRESS(call)
    finally:
        if isinstance(function, (_Line, _Bar)):
            function.close()
        if failed and not isinstance(failed[0], Exception):  # such as KeyboardInterrupt
            raise failed[0]
        if failed:
            _library.LOGGER.warning("progress has failed, and was not called again: %r", failed[0])
