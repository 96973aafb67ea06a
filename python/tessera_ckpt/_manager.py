"""The checkpoints of a job: when it saves, which it keeps, where it resumes."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Mapping, MutableMapping, Optional

from . import _checkpoints
from ._async_saver import (Finishing, SaveOutcome, finish_at_exit, free_after_log,
                           wait_for_saves)
from ._checkpoints import Allowed, Checkpoint, Folder, LoadReport, PathLike, describe
from ._group import TIMEOUT_SECONDS, group_of, together
from ._library import (DESCRIBE_STATE, LOAD_CHECKPOINT, LOGGER, Handle, InvalidArgumentError,
                       ManagerOptions, NotFoundError, SaveOptions, guarded, integer, lib, report,
                       text)


@dataclass(frozen=True)
class Decision:
    """What the job does after a step; the same on all ranks."""

    save: Optional[str]  # "permanent", "rolling", or None
    end: Optional[str]  # why the job ends: "last step", "signal", "stop file", "duration", or None
    outcomes: List[SaveOutcome]  # of saves that are over


class CheckpointManager(Finishing):
    """Decides when a job saves, which checkpoints it keeps, and where it resumes.

        manager = CheckpointManager("/runs/a", interval_steps=100, last_step=1000, keep=3)
        manager.try_resume(state)
        while manager.step < 1000:
            one step of training
            if manager.try_save_checkpoint(state).end:
                break

    A folder belongs to one job: while one has it, another one is refused. Rolling checkpoints are
    frequent ones, of which the last two are kept. A signal, a stop file or a bad step of one rank
    counts for all. Every rank of the group makes the same calls in the same order.
    """

    def __init__(self, folder: PathLike, group: Any = None, *, interval_steps: int = 0,
                 rolling_interval_steps: int = 0, interval_minutes: float = 0,
                 last_step: int = 0, exit_after_minutes: float = 0, stop_file_path: PathLike = "",
                 stop_file_rank: int = 0, keep: int = 0, keep_every_steps: int = 0,
                 keep_within_minutes: float = 0, background: bool = False,
                 async_upload: bool = False, async_upload_tmp_folder: PathLike = "",
                 lazy_copy: bool = False, skip_when_busy: bool = False, saves: bool = True,
                 auto_resume: bool = True, load: PathLike = "", load_content: Iterable[str] = (),
                 load_format: str = "", lock_wait_seconds: float = 10, s3_endpoint: str = "",
                 timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Opens the folder, creates it if it is missing, and locks it.

        Args:
          folder: a directory, or a name such as "s3://bucket/prefix".
          group: as for save(). Saves in the background use a new group of the same ranks.
          interval_steps: steps between permanent checkpoints; 0: none for this reason.
          rolling_interval_steps: steps between rolling ones; 0: none.
          interval_minutes: minutes between permanent ones; 0: none for this reason.
          last_step: the step that is saved and ends the job; 0: none.
          exit_after_minutes: the time after which a step is saved and ends the job; 0: none.
          stop_file_path: a file in which a person writes a step: 500 saves at step 500 and ends
            the job, -500 saves and continues.
          stop_file_rank: the rank that reads this file, for all of them.
          keep: how many permanent checkpoints stay. If this and the next two are 0, all do.
          keep_every_steps: checkpoints of steps that are multiples of it stay, too.
          keep_within_minutes: checkpoints that are not older than this stay, too.
          background: whether saves are in the background, as AsyncSaver does them. lazy_copy and
            skip_when_busy are as there.
          async_upload: whether saves in the background go through a staging folder of this
            machine, from which files are uploaded to a slow or remote folder. A job that starts
            again on the machine reads what is still staged. Deleted after the last step.
          async_upload_tmp_folder: where the staging folder is made; by default in memory, /dev/shm.
          saves: False for a job that only resumes: nothing is created, locked or renamed.
          auto_resume: whether to resume from the newest valid checkpoint of the folder.
          load: another checkpoint, or folder of checkpoints, of any format, to load if the folder
            has none.
          load_content: the keys of the state to load from `load`; by default all.
          load_format: the format of `load`; by default, it is found out.
          lock_wait_seconds: how long to wait for another job that has the folder.
        """
        self._group = group_of(group, timeout_seconds=timeout_seconds)
        self._lazy_copy, self._auto_resume = lazy_copy, auto_resume
        self._load, self._load_content, self._load_format = load, list(load_content), load_format
        self._s3_endpoint, self._timeout_seconds = s3_endpoint, timeout_seconds
        self.step = 0  # the steps that are done
        self._descriptions, self._over = [], []
        self._cancelled = ctypes.c_int32(0)
        background = background or async_upload
        background_group = group_of(group, own=True, timeout_seconds=timeout_seconds) if (
            background) else None
        self._background_group, self._is_background = background_group, background
        with together(self._group):
            if self._group is not None and background_group is not None and (
                    self._group.collectives.transport is background_group.collectives.transport):
                raise InvalidArgumentError("saves in the background need a transport of their own: "
                                           f"{type(group).__name__}.duplicate()")
            self._name = os.fsdecode(text(folder, "folder"))
            # Without saves, the folder may not be there.
            self._folder = Folder(folder, create=True, s3_endpoint=s3_endpoint) if saves else None
            ranks = None if self._group is None else self._group.collectives.transport
            if not 0 <= integer(stop_file_rank, "stop_file_rank") < (ranks.size if ranks else 1):
                raise InvalidArgumentError(f"stop_file_rank: there is no rank {stop_file_rank}")
            is_reader = stop_file_rank == (ranks.rank if ranks else 0)
            save = self._save_options(self._group)
            behind = self._save_options(background_group)
            behind.skip_when_busy = bool(skip_when_busy)
            options = ManagerOptions(
                s3_endpoint=text(s3_endpoint, "s3_endpoint"), save=ctypes.pointer(save),
                background=ctypes.pointer(behind) if background else None,
                last_step=integer(last_step, "last_step"),
                interval_steps=integer(interval_steps, "interval_steps"),
                rolling_interval_steps=integer(rolling_interval_steps, "rolling_interval_steps"),
                interval_seconds=60.0 * interval_minutes,
                exit_after_seconds=60.0 * exit_after_minutes,
                stop_file_path=text(stop_file_path if is_reader else "", "stop_file_path"),
                keep_newest=integer(keep, "keep"),
                keep_every_steps=integer(keep_every_steps, "keep_every_steps"),
                never_saves=not saves, lock_wait_seconds=lock_wait_seconds,
                async_upload=bool(async_upload),
                async_upload_tmp_folder=text(async_upload_tmp_folder, "async_upload_tmp_folder"),
                keep_within_seconds=60.0 * keep_within_minutes)
        free = free_after_log(lib.manager_free, lib.manager_poll, self._folder)
        self._handle = Handle(lib.manager_open, free, text(folder, "folder"),
                              ctypes.byref(options), of_process="CheckpointManager",
                              keeps=(self._descriptions, self._group, background_group, options,
                                     save, behind))
        finish_at_exit(self)

    @classmethod
    def of_internevo(cls, ckpt: Mapping[str, Any], group: Any = None,
                     **options: Any) -> "CheckpointManager":
        """A manager by the `ckpt = dict(...)` of InternEvo's configurations.

        Checkpoints of ckpt_type "internlm" and "internevo" are what is there: Tessera's, or
        InternEvo's own. Without oss_snapshot_freq, there are rolling checkpoints at half of
        checkpoint_every. Keys that decide nothing here are named in a warning; unknown ones are
        refused. Without save_ckpt_folder, which InternEvo allows where enable_save_ckpt is
        False, there is nothing to resume from. Where auto_resume finds no checkpoint, the job
        begins with what load_ckpt_info names; InternEvo itself does not read it then.

        Args:
          options: of CheckpointManager(), beside those of ckpt.
        """
        unknown = ckpt.keys() - _INTERNEVO - _WITHOUT_EFFECT.keys()
        if unknown:
            raise InvalidArgumentError(f"ckpt: unknown keys {', '.join(sorted(unknown))}")
        unused = [f"{key} ({why})" for key, why in _WITHOUT_EFFECT.items() if ckpt.get(key)]
        if unused:
            LOGGER.warning("ckpt: without effect: %s", "; ".join(unused))
        info = _load_info(ckpt)
        content = info.get("content") or ()
        content = [content] if isinstance(content, str) else list(content)
        kind = info.get("ckpt_type") or ""
        every = _steps(ckpt.get("checkpoint_every"))
        resumes = ckpt.get("auto_resume")
        found: Dict[str, Any] = dict(
            saves=bool(ckpt.get("enable_save_ckpt", False)), interval_steps=every,
            rolling_interval_steps=_steps(ckpt.get("oss_snapshot_freq", every // 2)),
            stop_file_path=ckpt.get("stop_file_path") or "", load=info.get("path") or "",
            load_content=[] if "all" in content else content,
            load_format="" if kind in _ANY_FORMAT else kind,
            auto_resume=not ckpt.get("load_given_ckpt") if resumes is None else bool(resumes),
            async_upload=bool(ckpt.get("async_upload", False)),
            async_upload_tmp_folder=ckpt.get("async_upload_tmp_folder") or "")
        folder = ckpt.get("save_ckpt_folder") or ""
        if found["saves"] and not folder:
            raise InvalidArgumentError("ckpt: save_ckpt_folder is not set")
        return cls(folder, group, **{**found, **options})

    def try_resume(self, state: MutableMapping[Any, Any], *, begin_anew: bool = False,
                   allow_missing: Allowed = False,
                   allow_unexpected: Allowed = False) -> Optional[LoadReport]:
        """Loads the newest valid checkpoint of the folder into `state`, in place. If the folder has
        none, loads the checkpoint that `load` names. Newer checkpoints that are damaged on some
        rank are renamed, so that no reader takes them for checkpoints.

        Args:
          begin_anew: whether to begin without a checkpoint if there are some but none is valid;
            otherwise that is an error.
          allow_missing, allow_unexpected: as for load(). With other ranks than before, what each
            rank has its own of (per_rank) is missing, or unexpected.

        Returns: the report of the load, or None if the job begins anew.
        """
        self._handle.check()
        found: List[LoadReport] = []

        def offer(_context: Any, offered: int) -> int:
            def body() -> None:
                borrowed = Handle(lambda pointer: _set(pointer, offered), lambda pointer: None)
                with together(self._group):
                    checkpoint = Checkpoint(borrowed, self._name)
                found.append(checkpoint._load(state, self._group, allow_missing=allow_missing,
                                              allow_unexpected=allow_unexpected,
                                              timeout_seconds=self._timeout_seconds))
            return guarded(ended.by(body))

        ended = _Ended()
        if self._auto_resume:
            with ended:
                resumed = report(lib.manager_resume_by, self._handle, LOAD_CHECKPOINT(offer), None,
                                 bool(begin_anew), None)
            for sentence in resumed["skipped"]:
                LOGGER.warning("%s", sentence)
            if resumed["step"] is not None:
                self.step = resumed["step"]
                LOGGER.info("resumed from %s", found[-1].path)
                return found[-1]
        return self._load_other(state, allow_missing, allow_unexpected) if self._load else None

    def _load_other(self, state: MutableMapping[Any, Any], allow_missing: Allowed,
                    allow_unexpected: Allowed) -> LoadReport:
        """What `load` names. The job begins at its step, unless load_content names a part of the
        state."""
        wanted: MutableMapping[Any, Any] = state
        with together(self._group):
            lacks = [key for key in self._load_content if key not in state]
            if lacks:
                raise InvalidArgumentError(f"load_content: the state has no {', '.join(lacks)}")
            if self._load_content:
                wanted = {key: state[key] for key in self._load_content}
            checkpoint = self._open_other()
        loaded: LoadReport = checkpoint._load(wanted, self._group, allow_missing=allow_missing,
                                              allow_unexpected=bool(self._load_content) or (
                                                  allow_unexpected),
                                              timeout_seconds=self._timeout_seconds)
        if self._load_content:
            state.update(wanted)
        else:
            self.begin(loaded.step)
        LOGGER.info("loaded %s", loaded.path)
        return loaded

    def begin(self, step: int) -> None:
        """Begins the job's steps after `step`, and its time. try_resume() calls it; call it in a
        job that has loaded its state by itself. Requests of a stop file for earlier steps then end
        nothing."""
        number = integer(step, "step")
        lib.manager_begin(self._handle, number, -1)
        self.step = number

    def abandon_later(self, step: int) -> List[str]:
        """Renames the checkpoints of later steps than `step`, to "step-00000500.abandoned" for
        example, for a job that continues from an earlier step. Otherwise, the first
        try_save_checkpoint() of such a job raises MismatchError.

        Returns: the new names on rank 0, [] on the others.
        """
        self._handle.check()
        moved: List[str] = report(lib.manager_abandon_later, self._handle, integer(step, "step"))
        for name in moved:
            LOGGER.warning("a checkpoint of a later step than %d is now called %s", step, name)
        return moved

    def _open_other(self) -> Checkpoint:
        if not self._load_format:
            try:
                return _checkpoints.open(self._load, s3_endpoint=self._s3_endpoint)
            except (InvalidArgumentError, NotFoundError):
                pass
        return _checkpoints.open_foreign(self._load, self._load_format,
                                         s3_endpoint=self._s3_endpoint)

    def try_save_checkpoint(self, state: Any, step: Optional[int] = None, *, stop_signal: int = 0,
                            healthy: bool = True, entries: Optional[Mapping[str, bytes]] = None,
                            program: str = "tessera_ckpt",
                            per_rank: Iterable[str] = ()) -> Decision:
        """Saves if it is time, and returns whether the job ends. Call after each step.

        In the foreground, a failed save raises its error. In the background, its outcome is in a
        later decision, and a decision that ends the job waits for all saves.

        Args:
          state: as for save().
          step: the step that is done; by default, one more than before.
          stop_signal: the number of a signal that this rank has received, which ends the job with a
            checkpoint; 0: none.
          healthy: False if the state of this step should not be kept, for example after a loss of
            NaN. A checkpoint that is due waits for a healthy step. One at the end of the job does
            not wait, but no restart resumes from it.
          entries, program, per_rank: as for save().
        """
        self._handle.check()
        number = self.step + 1 if step is None else integer(step, "step")

        def give(_context: Any, to: Any) -> int:
            def body() -> None:
                with together(self._group):
                    description = describe(state, entries, program, per_rank, self._group)
                self._descriptions.append((number, description))
                to[0] = description.handle.pointer()
            return guarded(ended.by(body))

        def save() -> Any:
            made = report(lib.manager_save_by, self._handle, number, signal, bool(healthy),
                          DESCRIBE_STATE(give), None, None)
            self._note(made["outcomes"])
            return made

        ended = _Ended()
        signal = integer(stop_signal, "stop_signal", 32)
        self.step = number  # it is done, whether or not it can be saved
        try:
            with ended:
                found = wait_for_saves(self._cancelled, save)
        finally:
            if not self._is_background:
                self._descriptions.clear()
        if found["save"] is not None and self._is_background and not self._lazy_copy:
            self.wait_copied()
        over, self._over = self._over, []
        return Decision(found["save"], found["end"], over)

    def wait_copied(self) -> None:
        """Waits until the state may change, after a save with lazy_copy; see
        AsyncSaver.wait_copied()."""
        self._handle.check()
        wait_for_saves(self._cancelled, lambda: lib.manager_wait_copied(self._handle, None, 0))
        for _, description in self._descriptions:
            description.on_devices.wait_here()

    def poll(self) -> List[SaveOutcome]:
        """Returns the saves that have finished since the last call. Never waits."""
        return self._outcomes(lib.manager_poll, False)

    def finish(self) -> List[SaveOutcome]:
        """Waits for the saves in flight, and returns those that were not reported yet."""
        return self._outcomes(lib.manager_poll, True)

    def _save_options(self, group: Any) -> SaveOptions:
        return SaveOptions(group=None if group is None else group.pointer(),
                           timeout_seconds=self._timeout_seconds,
                           cancelled=ctypes.pointer(self._cancelled))


class _Ended:
    """A call of the library whose callback may be ended by what is no Exception, such as
    KeyboardInterrupt: the block raises that, and not the error that the library makes of it."""

    def __init__(self) -> None:
        self._error: Optional[BaseException] = None

    def by(self, body: Callable[[], None]) -> Callable[[], None]:
        """A callback's body, whose end is noticed."""
        def call() -> None:
            try:
                body()
            except BaseException as error:
                self._error = None if isinstance(error, Exception) else error
                raise
        return call

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        if self._error is not None:
            raise self._error


# The keys of InternEvo's ckpt; the last three are those of its early releases.
_INTERNEVO = {"enable_save_ckpt", "save_ckpt_folder", "load_ckpt_folder", "load_ckpt_info",
              "auto_resume", "checkpoint_every", "async_upload", "async_upload_tmp_folder",
              "oss_snapshot_freq", "stop_file_path", "load_given_ckpt", "load_model_only_folder",
              "load_optimizer"}
# Those that decide nothing here, and why.
_WITHOUT_EFFECT = {
    "snapshot_ckpt_folder": "rolling checkpoints are in save_ckpt_folder",
    "universal_ckpt": "every checkpoint fits any topology",
    "enable_internevo2hf_ckpt": "ckpt convert --to=hf writes Hugging Face's format",
}
# Its ckpt_types that stand for what is there.
_ANY_FORMAT = ("", "internlm", "internevo", "normal")


def _load_info(ckpt: Mapping[str, Any]) -> Mapping[str, Any]:
    """What InternEvo's ckpt loads: path, content and ckpt_type, in any of the forms of it."""
    if ckpt.get("load_ckpt_info"):
        return dict(ckpt["load_ckpt_info"])
    folder, model = ckpt.get("load_ckpt_folder") or "", ckpt.get("load_model_only_folder") or ""
    if folder and model:
        raise InvalidArgumentError("ckpt: load_ckpt_folder and load_model_only_folder exclude "
                                   "each other")
    if isinstance(folder, Mapping):
        return dict(folder)
    if model:
        return dict(path=model, content="model")
    return dict(path=folder, content=() if ckpt.get("load_optimizer", True) else (
        "model", "sampler"))


def _steps(value: Optional[float]) -> int:
    """An interval of InternEvo's, whose word for none is infinity."""
    return 0 if value is None or value == float("inf") else int(value)


def _set(pointer: Any, value: int) -> None:
    pointer._obj.value = value
