"""Page-locked host memory of torch, for copies between a device and this process."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import functools
import mmap
import sys
import threading
from typing import Any, List, Set

from ._copy_stream import devices
from ._library import ResourceExhaustedError

_ALIGNMENT = 4096
_MIN_REGISTERED_BYTES = 64 << 20
_PORTABLE = 1  # cudaHostRegisterPortable: for all GPUs


def _torch() -> Any:
    return sys.modules["torch"]


@functools.lru_cache(maxsize=None)
def _locks_pages() -> bool:
    try:
        made = _torch().empty(1, dtype=_torch().uint8, device="cpu", pin_memory=True)
        return bool(made.is_pinned())
    except (NotImplementedError, RuntimeError):
        return False


def empty_bytes(size: int) -> Any:
    """A tensor of bytes, aligned to pages, and page-locked where torch can do that."""
    try:
        for more in (0, _ALIGNMENT) if _locks_pages() else (_ALIGNMENT,):
            made = _torch().empty(size + more, dtype=_torch().uint8, device="cpu",
                                  pin_memory=_locks_pages())
            first = -made.data_ptr() % _ALIGNMENT
            if first <= more:
                return made[first:first + size]
    except (MemoryError, RuntimeError) as error:
        raise ResourceExhaustedError(
            f"{size} bytes of host memory for copies of tensors: {error}") from None
    raise AssertionError("an aligned address is within the alignment")


def _registered(size: int) -> Any:
    """A tensor of bytes of which CUDA, or ROCm, has locked the pages, until _unregister(); None
    where that is not possible, or not better. torch rounds to a power of two and keeps what is
    freed."""
    torch = _torch()
    if size < _MIN_REGISTERED_BYTES or size & (size - 1) == 0:
        return None
    device = next((each for each in devices() if each.type == "cuda"), None)
    if device is None:
        return None
    try:
        memory = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        with torch.cuda.device(device):
            code = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), size, _PORTABLE)
        return tensor if int(code) == 0 else None
    except (OSError, RuntimeError):
        return None


def _unregister(tensor: Any) -> None:
    _torch().cuda.cudart().cudaHostUnregister(tensor.data_ptr())


class Allocations:
    """Tensors of bytes, by their addresses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: List[int] = []  # ascending
        self._tensors: List[Any] = []
        self._registered: Set[int] = set()

    def allocate(self, size: int) -> int:
        """The address of a new one."""
        registered = _registered(size)
        tensor = empty_bytes(size) if registered is None else registered
        address = int(tensor.data_ptr())
        with self._lock:
            if registered is not None:
                self._registered.add(address)
            place = bisect.bisect(self._addresses, address)
            self._addresses.insert(place, address)
            self._tensors.insert(place, tensor)
        return address

    def free(self, address: int) -> None:
        with self._lock:
            place = bisect.bisect_left(self._addresses, address)
            if address in self._registered:
                self._registered.discard(address)
                _unregister(self._tensors[place])
            del self._addresses[place], self._tensors[place]

    def bytes_at(self, address: int, size: int) -> Any:
        """A tensor of the bytes there. It is a part of the one that was allocated there, by which
        torch knows that the memory is page-locked, and in use by a copy."""
        tensor, begin = None, 0
        with self._lock:
            place = bisect.bisect(self._addresses, address) - 1
            if place >= 0:
                begin, tensor = address - self._addresses[place], self._tensors[place]
        if tensor is not None and begin + size <= tensor.numel():
            return tensor[begin:begin + size]
        memory = (ctypes.c_char * size).from_address(address)
        return _torch().frombuffer(memory, dtype=_torch().uint8)
