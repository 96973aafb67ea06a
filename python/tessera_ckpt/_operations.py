"""What is done with a checkpoint of any format by its name: verifying, comparing, converting."""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List

from . import _tensors
from ._checkpoints import ParameterNames, PathLike, names_file
from ._interrupt import cancelling
from ._library import (DataLossError, InvalidArgumentError, ReadOptions, WriteOptions, integer, lib,
                       report, text)
from ._progress import Progress, prepared, shown


@dataclass(frozen=True)
class Damage:
    """A place that holds something else than what was written there."""

    file: str
    offset: int
    tensor: str
    message: str


@dataclass(frozen=True)
class VerifyReport:
    """What verifying has found. It is true where nothing is damaged."""

    path: str
    damage: List[Damage]
    bytes_read: int
    seconds: float

    def __bool__(self) -> bool:
        return not self.damage

    def raise_if_damaged(self) -> None:
        """Raises a DataLossError that names every damaged place."""
        if self.damage:
            places = "\n  ".join(place.message if place.file in place.message else
                                 f"{place.file} at offset {place.offset}: {place.message}"
                                 for place in self.damage)
            raise DataLossError(f"{self.path} is damaged:\n  {places}")


@dataclass(frozen=True)
class DiffReport:
    """How two checkpoints differ. It is true where they hold the same state."""

    same_state: bool
    equal_tensors: int
    tensors: Dict[str, str]  # those that differ, and how
    metadata: List[str]
    notes: List[str]

    def __bool__(self) -> bool:
        return self.same_state


@dataclass(frozen=True)
class ConvertReport:
    """What a conversion has written."""

    path: str
    format: str
    bytes: int
    seconds: float
    notes: List[str]


@contextlib.contextmanager
def _options(title: str, format: str, s3_endpoint: str, threads: int, progress: Progress,
             parameter_names: ParameterNames = None) -> Iterator[Any]:
    with shown(prepared(progress, title)) as callback, cancelling() as cancelled, \
            names_file(parameter_names) as names:
        yield ctypes.byref(ReadOptions(
            s3_endpoint=text(s3_endpoint, "s3_endpoint"), format=text(format, "format"),
            threads=integer(threads, "threads", 32), progress=callback,
            cancelled=cancelled, parameter_names_file=names))


def verify(name: PathLike, *, digests: bool = False, format: str = "", threads: int = 0,
           parameter_names: ParameterNames = None, s3_endpoint: str = "",
           progress: Progress = None) -> VerifyReport:
    """Reads every byte of a checkpoint, and checks it. With `digests`, compares the contents of
    every tensor with the digest of when it was saved, too. Of a folder, checks the newest one whose
    run had not diverged; "checkpoint" in the result names it.
    parameter_names: as for open_foreign().
    """
    encoded = text(name, "name")
    with _options("verifying", format, s3_endpoint, threads, progress,
                  parameter_names) as options:
        found = report(lib.verify, encoded, bool(digests), options)
    return VerifyReport(found["checkpoint"], [Damage(**place) for place in found["damage"]],
                        found["bytes_read"], found["seconds"])


def diff(a: PathLike, b: PathLike, *, data: bool = False, threads: int = 0, s3_endpoint: str = "",
         progress: Progress = None) -> DiffReport:
    """Compares the states of two checkpoints, whatever their shardings and formats: by the digests
    in their manifests, or, with `data`, by every element."""
    first, second = text(a, "a"), text(b, "b")
    with _options("comparing", "", s3_endpoint, threads, progress) as options:
        found = report(lib.diff, first, second, bool(data), options)
    return DiffReport(found["same_state"], found["equal_tensors"],
                      {entry["tensor"]: entry["message"] for entry in found["tensors"]},
                      found["metadata"], found["notes"])


def convert(source: PathLike, destination: PathLike, to: str, *, topology: str = "",
            dtype: str = "", allow_overflow: bool = False, weights_only: bool = False,
            max_file_bytes: int = 0, tokenizer: PathLike = "", format: str = "", threads: int = 0,
            parameter_names: ParameterNames = None, s3_endpoint: str = "",
            progress: Progress = None) -> ConvertReport:
    """Writes a checkpoint in another format, and reads it back.

    Args:
      source: a checkpoint of any format, or a folder of them: the newest one whose run had not
        diverged.
      destination: a folder (of gguf: a file) that does not exist yet; with to="tessera", a folder
        of checkpoints.
      to: "hf", "torch", "dcp", "llmc", "megatron", "paddle", "gguf" or "tessera".
      topology: with to="tessera", for which the files are cut: "dp2_tp2", for example.
      dtype: of the weights, in other formats; as saved by default.
      allow_overflow: whether elements that the dtype cannot hold become infinite; otherwise the
        first of them is an error.
      weights_only: leaves the state of the optimizer out, in other formats.
      max_file_bytes: in other formats.
      tokenizer: the model's, a file or a folder, which "hf" and "gguf" hold beside the weights.
      format: of the source, where it is not to be found out.
      parameter_names: as for open_foreign().
    """
    if dtype and dtype not in _tensors.DTYPES:
        raise InvalidArgumentError(f"dtype: there is no {dtype}; known are "
                                   f"{', '.join(_tensors.DTYPES)}")
    first, second = text(source, "source"), text(destination, "destination")
    write = WriteOptions(topology=text(topology, "topology") or None,
                         dtype=_tensors.DTYPES.get(dtype, 0), weights_only=bool(weights_only),
                         max_file_bytes=integer(max_file_bytes, "max_file_bytes"),
                         tokenizer=text(tokenizer, "tokenizer") if tokenizer else None,
                         allow_overflow=bool(allow_overflow))
    if max_file_bytes < 0:
        raise InvalidArgumentError(f"max_file_bytes: {max_file_bytes} is negative")
    with _options("converting", format, s3_endpoint, threads, progress,
                  parameter_names) as options:
        found = report(lib.convert, first, second, text(to, "to"), options, ctypes.byref(write))
    return ConvertReport(os.fsdecode(found["path"]), found["format"], found["bytes"],
                         found["seconds"], found["notes"])
