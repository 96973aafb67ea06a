"""The streams of torch on which tensors are copied from and to a device."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any, Dict, List, Optional, Set

Device = Any  # torch.device


def module_of(device: Device) -> Any:
    """The module of torch for a type of device, such as torch.cuda."""
    return getattr(sys.modules["torch"], device.type, None)


# Threads of the program that wait for copies, and help.
threads_of_program: Set[int] = set()


class CopyStream:
    """A device's stream for copies."""

    def __init__(self, device: Device) -> None:
        self._device, self._module = device, module_of(device)
        self.stream = self._module.Stream(device=device)
        self.lock = threading.Lock()  # held while copies and the event behind them are enqueued
        self.event_here()

    def _event(self, stream: Any) -> Any:
        try:
            event = self._module.Event(blocking=True)  # a thread that waits for it sleeps
        except TypeError:
            event = self._module.Event()
        event.record(stream)
        return event

    def event(self) -> Any:
        """An event behind the copies that were enqueued."""
        return self._event(self.stream)

    def event_here(self) -> Any:
        """An event behind what is on this thread's current stream."""
        return self._event(self._module.current_stream(self._device))

    def wait_here(self, event: Any) -> None:
        """Makes this thread's current stream wait for an event."""
        self._module.current_stream(self._device).wait_event(event)

    def selected(self, thread: int) -> Any:
        """A block whose operations go to the stream. A thread of the library, which is neither
        `thread` nor one that waits, stays on the device: a return to device 0 would make a context
        there."""
        current = threading.get_ident()
        if current != thread and current not in threads_of_program and (
                hasattr(self._module, "set_device")):
            self._module.set_device(self._device)
        return self._module.stream(self.stream)


_streams: Dict[Device, Optional[CopyStream]] = {}
_lock = threading.Lock()


def stream_of(device: Device) -> Optional[CopyStream]:
    """None for a device without streams."""
    with _lock:
        if device not in _streams:
            try:
                _streams[device] = CopyStream(device)
            except (AttributeError, NotImplementedError, RuntimeError, TypeError):
                _streams[device] = None
        return _streams[device]


def devices() -> List[Device]:
    """Those that have been copied from or to."""
    return list(_streams)


def leave_to_parent(what: Any) -> None:
    """Keeps from being freed in a process that was forked what its parent has on a device."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))


def _after_fork() -> None:
    global _streams, _lock
    leave_to_parent(_streams)
    _streams, _lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
