"""The C interface of the checkpoint library (checkpoint/c/tessera_checkpoint.h), by ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import logging
import os
import pathlib
import queue
import threading
import weakref
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from . import _interrupt

ABI_VERSION = 1

OK = 0
CANCELLED = 1
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
UNAVAILABLE = 14

# What the package has to say; the library itself writes nothing.
LOGGER = logging.getLogger("tessera_ckpt")

CREATE = 1
READ_ONLY = 1


class TesseraError(Exception):
    """An operation failed. The text is the library's message; `code` says of which kind it is."""

    __module__ = "tessera_ckpt"  # which is where programs find it
    code = 2

    def __init_subclass__(cls, code: Optional[int] = None) -> None:
        if code is not None:
            cls.code, cls.__module__ = code, TesseraError.__module__


class CancelledError(TesseraError, code=CANCELLED):
    """The save was skipped."""


class InvalidArgumentError(TesseraError, ValueError, code=INVALID_ARGUMENT):
    """The request makes no sense."""


class DeadlineExceededError(TesseraError, TimeoutError, code=DEADLINE_EXCEEDED):
    """Another rank did not answer in time."""


class NotFoundError(TesseraError, LookupError, code=5):
    """There is no such checkpoint, tensor or entry."""


class AlreadyExistsError(TesseraError, code=6):
    """A checkpoint of that step, or a file of that name, is there; nothing is overwritten."""


class AccessError(TesseraError, code=7):
    """Permission was denied, or credentials are missing."""


class ResourceExhaustedError(TesseraError, code=8):
    """Memory, or space on the disk, does not suffice."""


class MismatchError(TesseraError, code=9):
    """What is saved and what is wanted disagree."""


class AbortedError(TesseraError, code=10):
    """Another process has discarded this save."""


class UnimplementedError(TesseraError, NotImplementedError, code=12):
    """The library cannot do this."""


class InternalError(TesseraError, code=13):
    """The library has a bug."""


class UnavailableError(TesseraError, code=UNAVAILABLE):
    """A rank is gone, or a storage does not answer."""


class DataLossError(TesseraError, code=15):
    """Bytes are not those that were written. The message names the file and the offset."""


_ERRORS = {error.code: error for error in TesseraError.__subclasses__()}
_ERRORS[16] = AccessError


def error_of(code: int, message: str) -> TesseraError:
    """The exception for a code of the library."""
    error = _ERRORS.get(code, TesseraError)(message)
    error.code = code
    return error


def told_of(error: BaseException, code: int = UNAVAILABLE) -> Tuple[int, str]:
    """The code and the message of an error for the other ranks, or for the library. `code`: of
    errors that are not this package's."""
    return (error.code, str(error)) if isinstance(error, TesseraError) else (code, repr(error))


GATHER = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, c_double, c_void_p)
BROADCAST = GATHER
START_TRANSFER = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, c_int32,
                                  POINTER(c_void_p))
WAIT = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_double)
RELEASE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
PROGRESS = ctypes.CFUNCTYPE(None, c_void_p, c_uint64, c_uint64)
MERGE = ctypes.CFUNCTYPE(c_int32, c_void_p, c_size_t, POINTER(c_int32), POINTER(c_void_p),
                         POINTER(c_size_t), c_void_p)


LOAD_CHECKPOINT = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p)
DESCRIBE_STATE = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(c_void_p))


class BoxCopy(ctypes.Structure):
    _fields_ = [
        ("handle", c_void_p),
        ("dims", c_int32),
        ("offset", POINTER(c_int64)),
        ("shape", POINTER(c_int64)),
        ("host", c_void_p),
        ("host_dtype", c_int32),
    ]


START_COPIES = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(BoxCopy), c_size_t, c_int32,
                                POINTER(c_void_p))
WAIT_COPIES = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p)
ALLOCATE = ctypes.CFUNCTYPE(c_int32, c_void_p, c_size_t, POINTER(c_void_p))


class _Struct(ctypes.Structure):
    """A structure that knows its size."""

    def __init__(self, **members: Any) -> None:
        super().__init__(struct_bytes=ctypes.sizeof(type(self)), **members)


class Abandoned(ctypes.Structure):
    """Why ranks cannot save or load together any more; `code` is OK if they can."""
    code: int
    _fields_ = [
        ("code", c_int32),
        ("message", ctypes.c_char * 508),
    ]

    def set(self, error: BaseException) -> None:
        if self.code == OK:
            code, message = told_of(error)
            self.message = message.encode("utf-8", "replace")[:507]
            self.code = code

    def check(self) -> None:
        """Raises the error, if there is one."""
        if self.code != OK:
            raise error_of(self.code, self.message.decode("utf-8", "replace"))


class Group(_Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("context", c_void_p),
        ("rank", c_int32),
        ("size", c_int32),
        ("gather", GATHER),
        ("broadcast", BROADCAST),
        ("start_send", START_TRANSFER),
        ("start_receive", START_TRANSFER),
        ("wait", WAIT),
        ("release", RELEASE),
        ("abandoned", POINTER(Abandoned)),
    ]


class Device(_Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("context", c_void_p),
        ("start_copies", START_COPIES),
        ("wait", WAIT_COPIES),
        ("release", RELEASE),
        ("allocate", ALLOCATE),
        ("free", RELEASE),
    ]


class SaveOptions(_Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("group", POINTER(Group)),
        ("timeout_seconds", c_double),
        ("checksum_chunk_bytes", c_uint32),
        ("io_threads", c_int32),
        ("max_file_bytes", c_uint64),
        ("staging_bytes", c_uint64),
        ("progress", PROGRESS),
        ("progress_context", c_void_p),
        ("skip_when_busy", c_int32),
        ("cancelled", POINTER(c_int32)),
        ("overwrite", c_int32),
    ]


class LoadOptions(_Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("group", POINTER(Group)),
        ("timeout_seconds", c_double),
        ("allow_missing", c_int32),
        ("allow_unexpected", c_int32),
        ("verify_digests", c_int32),
        ("exact_dtypes", c_int32),
        ("io_threads", c_int32),
        ("staging_bytes", c_uint64),
        ("progress", PROGRESS),
        ("progress_context", c_void_p),
        ("cancelled", POINTER(c_int32)),
        ("allow_overflow", c_int32),
        ("allow_shared_memory", c_int32),
    ]


class ManagerOptions(_Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("s3_endpoint", c_char_p),
        ("save", POINTER(SaveOptions)),
        ("background", POINTER(SaveOptions)),
        ("last_step", c_int64),
        ("interval_steps", c_int64),
        ("rolling_interval_steps", c_int64),
        ("interval_seconds", c_double),
        ("exit_after_seconds", c_double),
        ("stop_file_path", c_char_p),
        ("keep_newest", c_int64),
        ("keep_every_steps", c_int64),
        ("never_saves", c_int32),
        ("lock_wait_seconds", c_double),
        ("async_upload", c_int32),
        ("async_upload_tmp_folder", c_char_p),
        ("keep_within_seconds", c_double),
    ]


class Decision(_Struct):
    _fields_ = [("struct_bytes", c_size_t), ("save", c_int32), ("end", c_int32)]


class ReadOptions(_Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("s3_endpoint", c_char_p),
        ("format", c_char_p),
        ("threads", c_int32),
        ("progress", PROGRESS),
        ("progress_context", c_void_p),
        ("cancelled", POINTER(c_int32)),
        ("parameter_names_file", c_char_p),
    ]


class WriteOptions(_Struct):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("topology", c_char_p),
        ("dtype", c_int32),
        ("weights_only", c_int32),
        ("max_file_bytes", c_uint64),
        ("tokenizer", c_char_p),
        ("allow_overflow", c_int32),
    ]


_NUMBERS = POINTER(c_int64)
_OUT = POINTER(c_void_p)  # of a handle or a text

# What each function takes. All return a code, but those of _VOID.
_FUNCTIONS = {
    "messages_add": [c_void_p, c_void_p, c_size_t],
    "state_create": [_OUT],
    "state_add_tensor": [c_void_p, c_char_p, c_int32, c_int32, c_int32, _NUMBERS],
    "state_add_alias": [c_void_p, c_char_p, c_char_p],
    "state_add_shard": [c_void_p, c_void_p, c_int64, _NUMBERS, _NUMBERS, _NUMBERS, c_int32],
    "state_add_device_shard":
        [c_void_p, POINTER(Device), c_void_p, c_void_p, c_int64, c_int32, _NUMBERS, _NUMBERS,
         _NUMBERS, c_int32],
    "state_add_flat_range":
        [c_void_p, c_void_p, _NUMBERS, _NUMBERS, c_int64, c_int64, c_int32],
    "state_set_entry": [c_void_p, c_char_p, c_char_p, c_size_t],
    "state_set_program": [c_void_p, c_char_p],
    "state_merge_entry": [c_void_p, c_char_p, MERGE, c_void_p],
    "folder_open": [c_char_p, c_int32, c_char_p, _OUT],
    "folder_save": [c_void_p, c_int64, c_void_p, POINTER(SaveOptions), _OUT],
    "folder_list": [c_void_p, _OUT],
    "folder_prune": [c_void_p, c_int32, c_int64],
    "folder_open_latest": [c_void_p, _OUT],
    "folder_open_step": [c_void_p, c_int64, _OUT],
    "checkpoint_open": [c_char_p, c_char_p, _OUT],
    "checkpoint_open_named": [c_char_p, POINTER(ReadOptions), _OUT],
    "checkpoint_describe": [c_void_p, _OUT],
    "checkpoint_entry": [c_void_p, c_char_p, _OUT, POINTER(c_size_t)],
    "checkpoint_load": [c_void_p, c_void_p, POINTER(LoadOptions), _OUT],
    "checkpoint_read_tensor":
        [c_void_p, c_char_p, c_int32, c_int32, _NUMBERS, _NUMBERS, _NUMBERS, c_void_p, c_int64,
         POINTER(LoadOptions)],
    "saver_create": [c_void_p, POINTER(SaveOptions), _OUT],
    "saver_start": [c_void_p, c_int64, c_void_p],
    "saver_refuse": [c_void_p, c_int64, c_int32, c_char_p],
    "saver_wait_copied": [c_void_p, c_void_p, c_size_t],
    "saver_poll": [c_void_p, c_int32, _OUT],
    "manager_open": [c_char_p, POINTER(ManagerOptions), _OUT],
    "manager_resume_by": [c_void_p, LOAD_CHECKPOINT, c_void_p, c_int32, _NUMBERS, _OUT],
    "manager_begin": [c_void_p, c_int64, c_int64],
    "manager_abandon_later": [c_void_p, c_int64, _OUT],
    "manager_save_by":
        [c_void_p, c_int64, c_int32, c_int32, DESCRIBE_STATE, c_void_p, POINTER(Decision),
         _OUT],
    "manager_poll": [c_void_p, c_int32, _OUT],
    "manager_wait_copied": [c_void_p, c_void_p, c_size_t],
    "verify": [c_char_p, c_int32, POINTER(ReadOptions), _OUT],
    "diff": [c_char_p, c_char_p, c_int32, POINTER(ReadOptions), _OUT],
    "convert": [c_char_p, c_char_p, c_char_p, POINTER(ReadOptions), POINTER(WriteOptions), _OUT],
}
_VOID = {
    "set_error_message": [c_char_p],
    "text_free": [c_void_p],
    "state_free": [c_void_p],
    "folder_free": [c_void_p],
    "checkpoint_free": [c_void_p],
    "saver_free": [c_void_p],
    "manager_free": [c_void_p],
}


def library_path() -> pathlib.Path:
    """The shared library: beside this file, or what TESSERA_CHECKPOINT_LIBRARY names."""
    named = os.environ.get("TESSERA_CHECKPOINT_LIBRARY")
    return pathlib.Path(named) if named else (
        pathlib.Path(__file__).parent / "lib" / "libtessera_checkpoint.so")


def _with_clear_errors(function: Any) -> Callable[..., int]:
    def call(*arguments: Any) -> int:
        # ctypes would make an ArgumentError of what a handle raises, also of KeyboardInterrupt.
        plain = [each.pointer() if isinstance(each, Handle) else each for each in arguments]
        try:
            return int(function(*plain))
        except ctypes.ArgumentError as error:
            raise InvalidArgumentError(str(error)) from None

    return call


class _Library:
    """The functions of the shared library, without their prefix. A code that is an error becomes
    an exception."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(library_path()))
        library.tessera_abi_version.restype = c_int32
        found = library.tessera_abi_version()
        if found != ABI_VERSION:
            raise ImportError(f"{library_path()} has version {found} of the C interface, "
                              f"expected {ABI_VERSION}")
        self._message = library.tessera_error_message
        self._message.restype = c_char_p
        for name, types in _FUNCTIONS.items():
            function = getattr(library, f"tessera_{name}")
            function.argtypes = types
            function.restype = c_int32
            function.errcheck = self._check
            setattr(self, name, _with_clear_errors(function))
        for name, types in _VOID.items():
            function = getattr(library, f"tessera_{name}")
            function.argtypes = types
            function.restype = None
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:  # for type checkers: functions are set above
        raise AttributeError(name)

    def _check(self, code: int, _function: Any, _arguments: Any) -> int:
        if code != OK:
            raise error_of(code, self._message().decode("utf-8", "replace"))
        return code


lib = _Library()


def guarded(body: Callable[[], None], interruptible: bool = True) -> int:
    """Runs a callback's body. No exception crosses into C: it becomes a code and a message.

    Args:
      interruptible: SIGINT raises KeyboardInterrupt in the body; otherwise the library alone ends
        its call soon after.
    """
    try:
        with _interrupt.waiting() if interruptible else contextlib.nullcontext():
            body()
        return OK
    except BaseException as error:
        code, message = told_of(error)
        lib.set_error_message(message.encode("utf-8", "replace"))
        return code


def merging(merge: Callable[[Dict[int, bytes]], bytes]) -> Any:
    """A function of what ranks have as one entry, as the library calls it. Keep it."""
    def call(_context: Any, count: int, ranks: Any, entries: Any, sizes: Any, merged: Any) -> int:
        def body() -> None:
            made = merge({ranks[i]: ctypes.string_at(entries[i], sizes[i]) for i in range(count)})
            lib.messages_add(merged, made, len(made))
        return guarded(body)
    return MERGE(call)


class Handle:
    """A handle of the library, which is freed once nobody needs it any more, by the process that
    made it: a fork copies no threads, and what a handle holds on a disk is the parent's.

    Args:
      of_process: what has the handle, where it is of no use to other processes; for messages.
        Such a handle has threads, for whose end it waits when it is freed.
      keeps: what lives until it is freed.
    """

    def __init__(self, make: Callable[..., Any], free: Callable[[Any], None], *arguments: Any,
                 of_process: str = "", keeps: Any = None) -> None:
        pointer = c_void_p()
        make(*arguments, ctypes.byref(pointer))
        self._pointer, self._process, self._of_process = pointer, os.getpid(), of_process
        if of_process:
            _start_freeing(os.getpid())
        self._finalizer = weakref.finalize(self, _free_later if of_process else _free_in,
                                           self._process, free, pointer, keeps)

    def close(self) -> None:
        """Frees it now; nothing happens where that was done."""
        found = self._finalizer.detach()
        if found is not None:
            _free_in(*found[2])

    def check(self) -> None:
        """An error if it was closed, or is another process's."""
        if self._of_process and self._process != os.getpid():
            raise InvalidArgumentError(
                f"this {self._of_process} is that of process {self._process}, which has its "
                f"threads; process {os.getpid()}, which was forked from it, needs one of its own")
        if not self._finalizer.alive:
            raise InvalidArgumentError("it was closed")

    def pointer(self) -> c_void_p:
        """For the library; an error as by check()."""
        self.check()
        return self._pointer


def _free_in(process: int, free: Callable[[Any], None], pointer: c_void_p, _keeps: Any) -> None:
    if os.getpid() == process:
        free(pointer)


# A garbage collection may run in any thread, those of a saver among them, and under any lock: what
# waits for threads is freed in a thread of its own.
_to_free: "queue.SimpleQueue[Any]" = queue.SimpleQueue()


def _free_later(*arguments: Any) -> None:
    _to_free.put(arguments)


def finish_freeing() -> None:
    """Waits until all is freed that was dropped: saves in flight are finished then."""
    done = threading.Event()
    _start_freeing(os.getpid())
    _to_free.put((os.getpid(), lambda _: done.set(), c_void_p(), None))
    done.wait()


@functools.lru_cache(maxsize=None)
def _start_freeing(_process: int) -> None:
    """Once in each process: a fork copies no threads."""
    def work() -> None:
        while True:
            _free_in(*_to_free.get())
    threading.Thread(target=work, daemon=True, name="tessera_ckpt free").start()


def report(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function whose last argument receives a report, and returns the report."""
    text = c_void_p()
    function(*arguments, ctypes.byref(text))
    try:
        return json.loads(ctypes.string_at(text.value or 0))
    finally:
        lib.text_free(text)


def text(value: Any, what: str) -> bytes:
    """A text, or a path, for the library."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if not isinstance(value, bytes):
        raise InvalidArgumentError(f"{what}: expected a text, not {type(value).__name__}")
    if b"\0" in value:
        raise InvalidArgumentError(f"{what}: a text has a NUL character")
    return value


def integer(value: Any, what: str, bits: int = 64) -> int:
    """An integer that fits the library's type."""
    try:
        number = int(value.__index__())
    except AttributeError:
        raise InvalidArgumentError(
            f"{what}: expected an integer, not {type(value).__name__}") from None
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise InvalidArgumentError(f"{what}: {number} is too large")
    return number


def numbers(values: Optional[Sequence[int]]) -> Any:
    """An array of the library, which only reads it; None: NULL."""
    return None if values is None else _array(tuple(values))


@functools.lru_cache(maxsize=1024)
def _array(values: Tuple[int, ...]) -> Any:
    return (c_int64 * len(values))(*values)
