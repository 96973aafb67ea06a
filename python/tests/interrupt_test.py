#!/usr/bin/env python3
"""SIGINT during a save, a load or a verification: the call ends with KeyboardInterrupt, long before
its end, nothing is left of a save, and the next call works."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import unittest.mock

import numpy as np
import tessera_ckpt
from tessera_ckpt import _interrupt

SIZE = 96 << 20  # many pieces for every thread


class Interrupting:
    """A progress function that sends SIGINT once, early, and waits until it has been seen.

    Args:
      begins: an event before which nothing is sent; by default, at once.
    """

    def __init__(self, begins=None):
        self.done, self.begins = 0, begins

    def __call__(self, done, total):
        if self.done == 0:
            if self.begins is not None:
                wait(self.begins.is_set)
                wait(lambda: _interrupt._running is not None)
            os.kill(os.getpid(), signal.SIGINT)
            wait(was_seen)
        self.done = done


def wait(condition):
    while not condition():
        time.sleep(0.001)


def was_seen():
    """Whether a thread of Python has told the library of SIGINT, unless a handler decides."""
    decides = signal.getsignal(signal.SIGINT) not in (_interrupt._handle,
                                                      signal.default_int_handler)
    return decides or _interrupt._watcher._number.value != 0


class InterruptTest(unittest.TestCase):
    def setUp(self):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.state = {"x": np.arange(SIZE // 4, dtype=np.float32), "step": 7}

    def interrupted(self, call):
        progress = Interrupting()
        with self.assertRaises(KeyboardInterrupt):
            call(progress)
        self.assertTrue(0 < progress.done < SIZE, progress.done)

    def test_a_save_leaves_nothing(self):
        self.interrupted(lambda p: tessera_ckpt.save(self.folder, 1, self.state, progress=p))
        self.assertEqual(os.listdir(self.folder), [])
        tessera_ckpt.save(self.folder, 1, self.state)
        self.assertTrue(tessera_ckpt.verify(self.folder))

    def test_one_before_the_library_is_called_is_no_error_of_an_argument(self):
        folder = tessera_ckpt.Folder(self.folder, create=True)
        with unittest.mock.patch.object(type(folder.handle), "check",
                                        side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                folder.list()

    def test_a_load_and_a_verification_end(self):
        tessera_ckpt.save(self.folder, 1, self.state)
        self.interrupted(lambda p: tessera_ckpt.load(self.folder, self.state, progress=p))
        self.interrupted(lambda p: tessera_ckpt.verify(self.folder, progress=p))
        self.state["x"][:] = 0
        tessera_ckpt.load(self.folder, self.state)
        self.assertEqual(self.state["x"][-1], np.float32(SIZE // 4 - 1))

    def test_a_save_in_the_background_ends_with_the_wait_for_it(self):
        begins = threading.Event()
        saver = tessera_ckpt.AsyncSaver(self.folder, progress=Interrupting(begins))
        with self.assertRaises(KeyboardInterrupt):
            saver.save(1, self.state)
            begins.set()
            saver.finish()
        saver.finish()
        self.assertEqual(os.listdir(self.folder), [])
        saver.save(2, self.state)
        self.assertEqual([outcome.step for outcome in saver.finish() if outcome.report], [2])
        saver.close()

    def test_a_save_that_waits_for_the_one_before_ends_that_and_keeps_its_own_memory(self):
        begins = threading.Event()

        def progress(_done, _total):
            if not interrupts:
                wait(begins.is_set)
                wait(lambda: _interrupt._running is not None)
                time.sleep(0.2)  # until save() waits in the library
                interrupts.append(os.kill(os.getpid(), signal.SIGINT))
                wait(was_seen)

        interrupts = []
        saver = tessera_ckpt.AsyncSaver(self.folder, lazy_copy=True, progress=progress)
        saver.save(1, self.state)
        with self.assertRaises(KeyboardInterrupt):
            begins.set()
            saver.save(2, self.state)
        self.assertIn(2, [step for step, _ in saver._descriptions])
        outcomes = saver.finish()
        self.assertEqual([outcome.step for outcome in outcomes], [1, 2])
        self.assertIsNone(outcomes[0].report)
        saver.close()

    def test_a_handler_of_the_program_decides(self):
        seen = []
        signal.signal(signal.SIGINT, lambda *_: seen.append(1))
        tessera_ckpt.save(self.folder, 1, self.state, progress=Interrupting())
        self.assertEqual(seen, [1])
        self.assertTrue(tessera_ckpt.verify(self.folder))

    def test_the_signals_of_an_event_loop_reach_it(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        try:
            self.interrupted(lambda p: tessera_ckpt.save(self.folder, 1, self.state, progress=p))
        finally:
            self.assertEqual(signal.set_wakeup_fd(-1), writer)
        self.assertEqual(os.read(reader, 10), bytes([signal.SIGINT]))

    def test_a_thread_sees_the_signal_while_the_main_one_handles_none(self):
        """As in a call of the library, from which no callback comes."""
        for _ in range(20):
            with unittest.mock.patch.object(_interrupt, "_handle", lambda *_: None), (
                    self.assertRaises(KeyboardInterrupt)), _interrupt.cancelling() as number:
                os.kill(os.getpid(), signal.SIGINT)
                wait(lambda: number.contents.value != 0)
            self.assertEqual(number.contents.value, 1)
            with _interrupt.cancelling() as number:  # of which nothing is left
                self.assertEqual(number.contents.value, 0)

    def test_a_forked_process_has_a_thread_of_its_own(self):
        with _interrupt.cancelling():
            pass
        child = os.fork()
        if child == 0:
            try:
                self.test_a_thread_sees_the_signal_while_the_main_one_handles_none()
            finally:
                os._exit(0 if sys.exc_info()[0] is None else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_a_signal_at_any_time_leaves_all_in_order(self):
        small, interrupted = {"w": np.ones(100_000, np.float32)}, 0
        for round in range(40):
            delay = random.Random(round).uniform(0, 0.01)
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                for step in range(50):
                    tessera_ckpt.save(self.folder, 1000 * round + step, small, keep=1)
                timer.join()
            except KeyboardInterrupt:  # which Python drops where it is raised in a finalizer
                interrupted += 1
            self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)
            self.assertEqual(signal.set_wakeup_fd(-1), -1)
        self.assertGreater(interrupted, 0)
        self.assertTrue(tessera_ckpt.verify(self.folder))

    def test_a_wait_for_a_rank_that_does_not_come_ends(self):
        try:
            import torch  # noqa: F401
        except ImportError:
            self.skipTest("no torch (needs: torch)")
        program = textwrap.dedent("""
            import os, signal, sys, threading, time
            import torch, torch.distributed as dist
            import tessera_ckpt
            dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet",
                                    rank=int(sys.argv[2]), world_size=2)
            if sys.argv[2] == "1":
                sys.stdin.read()  # never saves
                os._exit(0)
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                tessera_ckpt.save(sys.argv[1] + "/c", 1, {"x": torch.zeros(3)})
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            os._exit(0)
            """)
        ranks = [subprocess.Popen([sys.executable, "-c", program, str(self.folder), str(rank)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                 for rank in range(2)]
        self.assertEqual(ranks[0].stdout.read(), "interrupted\n")
        for rank in ranks:
            rank.communicate()

    def test_after_a_call_that_a_rank_leaves_out_a_new_group_is_needed(self):
        try:
            import torch  # noqa: F401
        except ImportError:
            self.skipTest("no torch (needs: torch)")
        program = textwrap.dedent("""
            import sys
            import torch, torch.distributed as dist
            import tessera_ckpt
            store = dist.FileStore(sys.argv[1] + "/meet", 2)
            dist.init_process_group("gloo", store=store, rank=int(sys.argv[2]), world_size=2)

            def save(step, group=None):
                try:
                    tessera_ckpt.save(sys.argv[1] + "/c", step, {"x": torch.zeros(3)}, group,
                                      timeout_seconds=1)
                    print("saved", step)
                except (tessera_ckpt.DeadlineExceededError, tessera_ckpt.UnavailableError):
                    print("failed", step)

            save(1)
            if sys.argv[2] == "0":
                save(2)
                store.set("left", "out")
            store.wait(["left"])
            save(3)
            save(4, dist.new_group(backend="gloo"))
            """)
        ranks = [subprocess.Popen([sys.executable, "-c", program, str(self.folder), str(rank)],
                                  stdout=subprocess.PIPE, text=True) for rank in range(2)]
        self.assertEqual([rank.communicate()[0].split("\n") for rank in ranks], [
            ["saved 1", "failed 2", "failed 3", "saved 4", ""],
            ["saved 1", "failed 3", "saved 4", ""]])


if __name__ == "__main__":
    unittest.main()
