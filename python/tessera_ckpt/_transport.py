"""Messages between ranks, whatever carries them."""

from __future__ import annotations

import abc
from typing import Any, Callable

from . import _library


class Transport(abc.ABC):
    """Messages between ranks. A program with communication of its own derives from it.

    Messages of one pair of ranks and one tag arrive in the order in which they were sent. After an
    error the transport is not used any more.
    """

    rank: int
    size: int

    @property
    def abandoned(self) -> _library.Abandoned:
        """Why the ranks cannot save or load together any more, if they cannot. Kept as long as
        their communicator."""
        kept: _library.Abandoned = self.__dict__.setdefault("_abandoned", _library.Abandoned())
        return kept

    def interruptible(self, body: Callable[[], Any]) -> Any:
        """Runs `body`, which waits for messages. A transport whose waits do not end with
        KeyboardInterrupt runs it in another thread."""
        return body()

    def duplicate(self) -> "Transport":
        """A transport of the same ranks for saves in the background, whose messages meet no others.
        Collective. By default this one, which nothing else may use then."""
        return self

    @abc.abstractmethod
    def send(self, data: bytes, destination: int, tag: int) -> Callable[[float], None]:
        """Starts to send. Returns a function that waits for the end, so many seconds at most."""

    @abc.abstractmethod
    def receive(self, size: int, source: int, tag: int) -> Callable[[float], Any]:
        """Starts to receive. Returns a function that waits for the message and returns it, as an
        object whose memory `memoryview` shows."""
