#!/usr/bin/env python3
"""CheckpointManager: jobs of one and of two ranks, as threads, that end and are started again."""

import contextlib
import ctypes
import gc
import glob
import os
import pathlib
import signal
import tempfile
import threading
import time
import unittest

import numpy as np
import tessera_ckpt
from ranks import run_ranks
from tessera_ckpt import CheckpointManager
from tessera_ckpt._library import finish_freeing

LAST_STEP = 10


def new_state():
    return {"model": {"w": np.zeros(6)}, "trainer": {"step": 0, "lr": 0.5}}


def train(manager, state, signal_at=0):
    """Steps whose sum depends on each state before. Returns the decisions that did something."""
    decisions = []
    while True:
        step = manager.step + 1
        manager.wait_copied()
        state["model"]["w"] = state["model"]["w"] * 1.5 + step
        state["trainer"]["step"] = step
        decision = manager.try_save_checkpoint(state, stop_signal=15 if step == signal_at else 0)
        if decision.save or decision.end:
            decisions.append((step, decision.save, decision.end))
        if decision.end:
            return decisions


def expected():
    w = np.zeros(6)
    for step in range(1, LAST_STEP + 1):
        w = w * 1.5 + step
    return w


class ManagerTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = scratch.name
        self.folder = scratch.name + "/runs"

    def check_ranks(self, results):
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def steps(self):
        return [info.step for info in tessera_ckpt.list_checkpoints(self.folder)]

    def test_a_job_that_a_signal_ends_goes_on(self):
        for size in (1, 2):
            for background in (False, True):
                self.folder = f"{self.scratch}/{size}{background}"
                for run in range(2):
                    def body(transport, run=run):
                        state = new_state()
                        with CheckpointManager(
                                self.folder, transport if size > 1 else None, interval_steps=4,
                                rolling_interval_steps=2, last_step=LAST_STEP, keep=2,
                                background=background) as manager:
                            resumed = manager.try_resume(state)
                            self.assertEqual(manager.step, 7 * run)
                            self.assertEqual(state["trainer"]["step"], 7 * run)
                            self.assertEqual(resumed is None, run == 0)
                            # A signal to one rank alone.
                            is_hit = run == 0 and transport.rank == size - 1
                            return train(manager, state, 7 if is_hit else 0), state
                    for decisions, state in self.check_ranks(run_ranks(size, body)):
                        self.assertEqual(decisions, [
                            (2, "rolling", None), (4, "permanent", None), (6, "rolling", None),
                            (7, "permanent", "signal")] if run == 0 else [
                                (8, "permanent", None), (10, "permanent", "last step")])
                        if run == 1:
                            np.testing.assert_array_equal(state["model"]["w"], expected())
                self.assertEqual(self.steps(), [8, 10])

    def test_young_checkpoints_stay(self):
        for minutes, steps in ((0, [10]), (60, [4, 8, 10])):
            self.folder = f"{self.scratch}/{minutes}"
            with CheckpointManager(self.folder, interval_steps=4, last_step=LAST_STEP, keep=1,
                                   keep_within_minutes=minutes) as manager:
                train(manager, new_state())
            self.assertEqual(self.steps(), steps)

    def test_a_state_that_is_not_healthy_is_not_resumed_from(self):
        state = new_state()
        with CheckpointManager(self.folder, interval_steps=4, last_step=6, keep=1) as manager:
            for step in range(1, 7):
                state["trainer"]["step"] = step
                manager.try_save_checkpoint(state, healthy=step < 6)
        self.assertEqual(self.steps(), [4, 6])
        with CheckpointManager(self.folder) as manager:
            with self.assertLogs("tessera_ckpt", "WARNING"):
                self.assertEqual(manager.try_resume(state).step, 4)
        self.assertEqual(state["trainer"]["step"], 4)

    def test_a_damaged_checkpoint_is_skipped_and_renamed(self):
        with CheckpointManager(self.folder, interval_steps=4, last_step=LAST_STEP) as manager:
            train(manager, new_state())
        data = next(pathlib.Path(self.folder, "step-00000010").glob("*.safetensors"))
        data.write_bytes(data.read_bytes()[:-8] + b"\x11" * 8)

        def body(transport):
            state = new_state()
            with CheckpointManager(self.folder, transport) as manager:
                report = manager.try_resume(state)
            return report.step, state["trainer"]["step"]
        with self.assertLogs("tessera_ckpt", "WARNING") as logs:
            self.assertEqual(self.check_ranks(run_ranks(2, body)), [(8, 8), (8, 8)])
        self.assertIn("step-00000010.damaged", "\n".join(logs.output))
        self.assertIn("step-00000010.damaged", os.listdir(self.folder))

    def test_another_number_of_ranks_resumes_what_each_rank_has_its_own_of(self):
        def state(rank):
            return {**new_state(), "rng": {"seed": rank, "words": np.full(3, rank)}}

        def save(transport):
            with CheckpointManager(self.folder, transport, last_step=1) as manager:
                manager.try_save_checkpoint(state(transport.rank), per_rank=["rng"])

        def resume(transport, **options):
            mine = state(9)
            with CheckpointManager(self.folder, transport, saves=False) as manager:
                report = manager.try_resume(mine, **options)
            return mine["rng"]["seed"], len(report.missing), len(report.unexpected)

        self.check_ranks(run_ranks(2, save))
        self.assertRegex(str(run_ranks(1, resume)[0]), "rng.rank_1.seed: saved, not wanted")
        self.assertRegex(str(run_ranks(3, resume)[0]), "(?s)rng.rank_2.seed: wanted, not saved.*"
                         r"allow_missing=\['rng'\] and allow_unexpected=\['rng'\] load at another")
        self.assertEqual(self.check_ranks(run_ranks(
            1, lambda each: resume(each, allow_unexpected=["rng"]))), [(0, 0, 2)])
        self.assertEqual(self.check_ranks(run_ranks(
            3, lambda each: resume(each, allow_missing=["rng"]))),
                         [(0, 0, 0), (1, 0, 0), (9, 2, 0)])

    def test_where_none_is_valid_the_job_begins_anew_if_it_may(self):
        with CheckpointManager(self.folder, last_step=1) as manager:
            train(manager, new_state())
        data = next(pathlib.Path(self.folder, "step-00000001").glob("*.safetensors"))
        data.write_bytes(b"")
        with CheckpointManager(self.folder) as manager:
            with self.assertRaises(tessera_ckpt.MismatchError):
                manager.try_resume(new_state())
            self.assertIsNone(manager.try_resume(new_state(), begin_anew=True))

    def test_a_stop_file_saves_and_ends(self):
        stop = self.scratch + "/stop"
        pathlib.Path(stop).write_text("3")
        with CheckpointManager(self.folder, last_step=LAST_STEP, stop_file_path=stop) as manager:
            self.assertEqual(train(manager, new_state()), [(3, "permanent", "stop file")])

    def test_a_stop_file_of_an_earlier_step_than_load_gives_ends_nothing(self):
        with CheckpointManager(self.folder, last_step=6) as manager:
            train(manager, new_state())
        stop = self.scratch + "/stop"
        pathlib.Path(stop).write_text("3")
        state = new_state()
        with CheckpointManager(self.scratch + "/next", last_step=LAST_STEP, load=self.folder,
                               stop_file_path=stop) as manager:
            self.assertEqual(manager.try_resume(state).step, 6)
            self.assertEqual(train(manager, state), [(LAST_STEP, "permanent", "last step")])
        with CheckpointManager(self.scratch + "/by-itself", last_step=LAST_STEP,
                               stop_file_path=stop) as manager:
            manager.begin(6)
            self.assertEqual(train(manager, state), [(LAST_STEP, "permanent", "last step")])

    def test_a_job_among_later_steps_is_refused_until_they_are_abandoned(self):
        def body(transport):
            with CheckpointManager(self.folder, transport, interval_steps=5,
                                   last_step=LAST_STEP) as manager:
                train(manager, new_state())
            with CheckpointManager(self.folder, transport, interval_steps=2, last_step=8, keep=2,
                                   auto_resume=False) as manager:
                self.assertIsNone(manager.try_resume(new_state()))
                with self.assertRaisesRegex(tessera_ckpt.MismatchError, "later steps"):
                    train(manager, new_state())
                manager.begin(5)
                with self.assertRaisesRegex(tessera_ckpt.MismatchError, "abandon_later"):
                    train(manager, new_state())
                moved = manager.abandon_later(5)
                manager.begin(5)
                train(manager, new_state())
                return moved
        self.assertEqual(self.check_ranks(run_ranks(2, body)), [["step-00000010.abandoned"], []])
        self.assertEqual(self.steps(), [6, 8])

    def test_one_rank_reads_the_stop_file_for_all(self):
        missing = self.scratch + "/stop"  # a rank that reads it finds no request
        for reader in (0, 1):
            self.folder = f"{self.scratch}/read-by-{reader}"
            stop = f"{self.scratch}/stop-{reader}"
            pathlib.Path(stop).write_text("3")

            def body(transport, reader=reader, stop=stop):
                path = stop if transport.rank == reader else missing
                with CheckpointManager(self.folder, transport, last_step=LAST_STEP,
                                       stop_file_path=path, stop_file_rank=reader) as manager:
                    ended = train(manager, new_state())
                with CheckpointManager(self.folder + "-other", transport, last_step=4,
                                       stop_file_path=missing if transport.rank == 0 else stop
                                       ) as manager:
                    return ended, train(manager, new_state())
            for ended, of_rank_0 in self.check_ranks(run_ranks(2, body)):
                self.assertEqual(ended, [(3, "permanent", "stop file")])
                self.assertEqual(of_rank_0, [(4, "permanent", "last step")])
        with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "there is no rank 1"):
            CheckpointManager(self.folder, stop_file_path=stop, stop_file_rank=1)

    def test_a_killed_job_loses_nothing_that_was_uploaded(self):
        staging = self.scratch + "/staging"
        options = dict(interval_steps=1, async_upload=True, async_upload_tmp_folder=staging)
        state = {"w": np.zeros(1 << 21), "step": 0}
        done = 0
        for kill in range(3):
            child = os.fork()
            if child == 0:
                try:
                    manager = CheckpointManager(self.folder, keep=2, **options)
                    manager.try_resume(state)
                    while True:
                        state["w"] += 1
                        state["step"] = manager.step + 1
                        manager.try_save_checkpoint(state)
                finally:
                    os._exit(1)
            wanted = f"{self.folder}/step-{done + 2:08}/manifest.pb"
            until = time.monotonic() + 120
            while not os.path.exists(wanted) and time.monotonic() < until:
                time.sleep(0.001)
            time.sleep(0.02 * kill)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            committed = max(self.steps())
            self.assertGreaterEqual(committed, done + 2)
            self.assertTrue(glob.glob(staging + "/tessera-*_tmp_ckpt/.tessera-staging"))
            found = {"w": np.zeros(1 << 21), "step": 0}
            with CheckpointManager(self.folder, last_step=committed + 1, **options) as manager:
                manager.try_resume(found)
                self.assertEqual((manager.step, found["step"]), (committed, committed))
                np.testing.assert_array_equal(found["w"], np.full(1 << 21, float(committed)))
                found["w"] += 1
                found["step"] += 1
                self.assertEqual(manager.try_save_checkpoint(found).end, "last step")
            done = committed + 1
            self.assertEqual(max(self.steps()), done)
            # The job is complete.
            self.assertEqual(os.listdir(staging), [])

    def test_a_folder_for_uploads_that_cannot_be_used_is_an_error(self):
        with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "async_upload_tmp_folder="):
            CheckpointManager(self.folder, async_upload=True,
                              async_upload_tmp_folder=self.folder + "/inside")
        with self.assertRaisesRegex(tessera_ckpt.TesseraError, "manager_test"):
            CheckpointManager(self.folder, async_upload=True, async_upload_tmp_folder=__file__)

    def test_a_folder_that_cannot_be_written_to_is_an_access_error(self):
        os.mkdir(self.folder, 0o555)
        header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        errors = []

        def open_folder():  # in a thread of its own, which may drop root's capabilities
            self.assertEqual(ctypes.CDLL(None).capset(header, none), 0)
            try:
                CheckpointManager(self.folder)
            except tessera_ckpt.TesseraError as error:
                errors.append(error)

        thread = threading.Thread(target=open_folder)
        thread.start()
        thread.join()
        self.assertRegex(str(errors), f"AccessError.*nothing can be written to {self.folder}: Perm")

    def test_a_folder_is_of_one_job(self):
        with CheckpointManager(self.folder):
            with self.assertRaisesRegex(tessera_ckpt.MismatchError, "is in use"):
                CheckpointManager(self.folder, lock_wait_seconds=0.1)

    def test_a_step_that_is_not_saved_describes_nothing(self):
        with CheckpointManager(self.folder, interval_steps=2) as manager:
            self.assertIsNone(manager.try_save_checkpoint({"bad": object()}).save)
            with self.assertRaisesRegex(tessera_ckpt.TesseraError, "bad"):
                manager.try_save_checkpoint({"bad": object()})

    def test_what_one_rank_cannot_save_is_an_error_on_all(self):
        def body(transport):
            with CheckpointManager(self.folder, transport, interval_steps=1,
                                   timeout_seconds=30) as manager:
                state = new_state()
                if transport.rank == 1:
                    state["bad"] = object()
                with self.assertRaisesRegex(tessera_ckpt.TesseraError, "bad"):
                    manager.try_save_checkpoint(state)
        self.check_ranks(run_ranks(2, body))
        self.assertEqual(self.steps(), [])

    def test_a_step_that_cannot_be_saved_is_done_all_the_same(self):
        with CheckpointManager(self.folder, interval_steps=1) as manager:
            for state in ({"a": 1}, {"bad": object()}, {"a": 3}):
                with contextlib.suppress(tessera_ckpt.TesseraError):
                    manager.try_save_checkpoint(state)
                self.assertEqual(manager._descriptions, [])
        self.assertEqual(self.steps(), [1, 3])

    def test_an_interruption_is_raised_and_the_next_save_works(self):
        class Interrupting(dict):
            def items(self):
                raise KeyboardInterrupt

        for background in (False, True):
            self.folder = f"{self.scratch}/{background}"
            with CheckpointManager(self.folder, interval_steps=1,
                                   background=background) as manager:
                with self.assertRaises(KeyboardInterrupt):
                    manager.try_save_checkpoint(Interrupting(a=1))
                manager._cancelled.value = 1  # as a signal leaves it that comes during the wait
                with self.assertRaises(KeyboardInterrupt):
                    manager.try_save_checkpoint({"a": 2})
                manager.try_save_checkpoint({"a": 3}, stop_signal=2)
                with self.assertRaises(KeyboardInterrupt):
                    manager.try_resume(Interrupting(a=1))
            self.assertEqual(self.steps(), [3])

    def test_what_is_dropped_without_close_is_finished(self):
        for make in (lambda: tessera_ckpt.AsyncSaver(self.folder),
                     lambda: CheckpointManager(self.folder, interval_steps=1, background=True)):
            self.folder += "x"

            class Trainer:  # which refers to itself: a garbage collection finds it
                def __init__(self):
                    self.me, self.saver = self, make()

            trainer = Trainer()
            if isinstance(trainer.saver, CheckpointManager):
                trainer.saver.try_save_checkpoint({"w": np.ones(1 << 20)})
            else:
                trainer.saver.save(1, {"w": np.ones(1 << 20)})
            del trainer
            gc.collect()
            finish_freeing()
            self.assertEqual(self.steps(), [1])

    def test_the_failure_of_what_is_closed_or_dropped_is_logged(self):
        def saver(folder):
            made = tessera_ckpt.AsyncSaver(folder)
            return made, lambda: [made.save(2, {"w": np.ones(3)}) for _ in range(2)]

        def manager(folder):
            made = CheckpointManager(folder, interval_steps=1, background=True)
            state = {"w": np.ones(3)}
            return made, lambda: [made.try_save_checkpoint(state, 2) for _ in range(2)]

        for make in (saver, manager):
            for close in (True, False):
                made, save = make(f"{self.folder}/{make.__name__}/{close}")
                with self.assertLogs("tessera_ckpt", "ERROR") as logs:
                    save()
                    if close:
                        made.close()
                    del made, save
                    gc.collect()
                    finish_freeing()
                self.assertIn("the save of step 2 failed: ", logs.output[0])

    def test_the_ckpt_of_internevo(self):
        ckpt = dict(
            enable_save_ckpt=True, save_ckpt_folder="local:" + self.folder, auto_resume=True,
            checkpoint_every=4, async_upload=True, oss_snapshot_freq=2,
            async_upload_tmp_folder=self.scratch + "/internlm_tmp_ckpt/",
            stop_file_path=self.scratch + "/stop", load_ckpt_info=None)
        with CheckpointManager.of_internevo(ckpt, last_step=LAST_STEP) as manager:
            self.assertEqual(len(os.listdir(self.scratch + "/internlm_tmp_ckpt")), 1)
            self.assertIsNone(manager.try_resume(new_state()))
            decisions = train(manager, new_state())
        self.assertEqual([(step, save) for step, save, _ in decisions], [
            (2, "rolling"), (4, "permanent"), (6, "rolling"), (8, "permanent"),
            (10, "permanent")])
        # The keys of all its releases; half of checkpoint_every by default.
        del ckpt["oss_snapshot_freq"]
        ckpt.update(save_ckpt_folder=self.scratch + "/half", snapshot_ckpt_folder="snapshots",
                    universal_ckpt=dict(enable=True), enable_internevo2hf_ckpt=False)
        with self.assertLogs("tessera_ckpt", "WARNING") as logs:
            with CheckpointManager.of_internevo(ckpt, last_step=LAST_STEP) as manager:
                self.assertEqual(train(manager, new_state()), decisions)
        self.assertIn("without effect: snapshot_ckpt_folder (", logs.output[0])
        self.assertIn("universal_ckpt (", logs.output[0])
        self.assertNotIn("internevo2hf", logs.output[0])
        # The model alone, of a checkpoint in Tessera's format, for a job without a folder yet.
        other = dict(
            enable_save_ckpt=False, save_ckpt_folder=self.scratch + "/other", auto_resume=False,
            checkpoint_every=float("inf"), load_ckpt_info=dict(
                path=self.folder, content=("model",), ckpt_type="internlm"))
        state = new_state()
        with CheckpointManager.of_internevo(other) as manager:
            self.assertEqual(manager.try_resume(state).step, 10)
            self.assertEqual(manager.step, 0)
            self.assertIsNone(manager.try_save_checkpoint(state).save)
        np.testing.assert_array_equal(state["model"]["w"], expected())
        self.assertEqual(state["trainer"], new_state()["trainer"])
        self.assertFalse(os.path.exists(self.scratch + "/other"))
        # InternEvo itself begins at step 0 where auto_resume finds nothing.
        resumes = dict(other, auto_resume=True)
        for load, step in (({}, 10), (dict(load=""), None)):
            with CheckpointManager.of_internevo(resumes, **load) as manager:
                loaded = manager.try_resume(new_state())
                self.assertEqual(loaded and loaded.step, step)
        early = dict(load_given_ckpt=True, load_model_only_folder=self.folder)
        state = new_state()
        with CheckpointManager.of_internevo(early) as manager:
            self.assertEqual(manager.try_resume(state).step, 10)
        np.testing.assert_array_equal(state["model"]["w"], expected())
        self.assertEqual(state["trainer"], new_state()["trainer"])
        # InternEvo's own defaults: nothing is saved, and there is no folder.
        unsaved = dict(enable_save_ckpt=False, save_ckpt_folder=None, auto_resume=True,
                       load_ckpt_info=None, checkpoint_every=float("inf"), async_upload=False)
        with CheckpointManager.of_internevo(unsaved) as manager:
            self.assertIsNone(manager.try_resume(new_state()))
        for bad, message in ((dict(ckpt, every=5), "unknown keys every"),
                             (dict(early, load_ckpt_folder="a"), "exclude each other"),
                             (dict(enable_save_ckpt=True), "save_ckpt_folder is not set")):
            with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, message):
                CheckpointManager.of_internevo(bad)
        other["load_ckpt_info"]["content"] = ("sampler",)
        with CheckpointManager.of_internevo(other) as manager:
            with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "no sampler"):
                manager.try_resume(new_state())


if __name__ == "__main__":
    unittest.main()
