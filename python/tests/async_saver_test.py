#!/usr/bin/env python3
"""The package with numpy: saves in the background."""

import functools
import gc
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import unittest
from unittest import mock

import numpy as np
import tessera_ckpt
from ranks import run_ranks
from scratch import Case
from tessera_ckpt import Box
from tessera_ckpt._async_saver import outcome_of
from tessera_ckpt._garbage import without_collections


def interrupted(*arguments):
    """The outcome, and SIGINT meanwhile."""
    os.kill(os.getpid(), signal.SIGINT)
    return outcome_of(*arguments)


class AsyncTest(Case):
    def test_saves_while_the_program_continues(self):
        for lazy in (False, True):
            with self.subTest(lazy=lazy):
                self.folder = f"{self.folder}/{lazy}"
                self.save_and_change(lazy)

    def save_and_change(self, lazy):
        weights = np.zeros(2_000_000)
        with tessera_ckpt.AsyncSaver(self.folder, lazy_copy=lazy) as saver:
            for step in range(1, 6):
                if lazy:
                    saver.wait_copied(weights[5:10])
                    saver.wait_copied()
                weights += 1
                saver.save(step, {"w": weights, "step": step})
            outcomes = saver.poll() + saver.finish()
        self.assertEqual(sorted(o.step for o in outcomes), [1, 2, 3, 4, 5])
        for outcome in outcomes:
            state = {"w": np.empty_like(weights), "step": 0}
            tessera_ckpt.load(outcome.result().path, state)
            self.assertEqual((state["w"][0], state["w"][-1], state["step"]), (outcome.step,) * 3)

    def test_errors_come_later(self):
        saver = tessera_ckpt.AsyncSaver(self.folder)
        saver.save(1, {"w": np.ones(3)})
        saver.save(1, {"w": np.ones(3)})
        with self.assertRaises(tessera_ckpt.UnimplementedError):
            saver.save(2, {"w": object()})
        first, second = saver.finish()
        self.assertEqual(first.result().step, 1)
        with self.assertRaises(tessera_ckpt.AlreadyExistsError):
            second.result()
        saver.close()
        with self.assertRaises(tessera_ckpt.InvalidArgumentError):
            saver.save(3, {"w": np.ones(3)})

    def test_a_failure_is_logged_by_a_later_save(self):
        """In a program that never polls."""
        saver = tessera_ckpt.AsyncSaver(self.folder)
        with self.assertLogs("tessera_ckpt", "ERROR") as logs:
            saver.save(1, {"w": np.ones(3)})
            for step in range(1, 6):  # each waits for the one before
                saver.save(step, {"w": np.ones(3)})
            self.assertIn("the save of step 1 failed: ", logs.output[0])
        steps = [outcome.step for outcome in saver.finish()]
        self.assertEqual(steps, [1, 1, 2, 3, 4, 5])  # none is lost
        saver.close()

    def test_an_interruption_loses_no_outcome(self):
        for background in (False, True):
            saver = tessera_ckpt.CheckpointManager(
                self.folder + "m", interval_steps=1, background=True) if background else (
                    tessera_ckpt.AsyncSaver(self.folder))
            save = saver.try_save_checkpoint if background else functools.partial(saver.save, 1)
            save({"w": np.ones(3)})
            with mock.patch.object(tessera_ckpt._async_saver, "outcome_of",
                                   side_effect=interrupted), (
                    self.assertRaises(KeyboardInterrupt)):
                saver.finish()
            self.assertEqual([outcome.step for outcome in saver.finish()], [1])
            saver.close()

    def test_a_save_is_skipped_while_another_runs(self):
        with tessera_ckpt.AsyncSaver(self.folder, lazy_copy=True, skip_when_busy=True) as saver:
            outcomes = []
            for step in range(20):
                saver.save(step, {"w": np.full(2_000_000, step)})
                outcomes += saver.poll()
            outcomes += saver.finish()
        skipped = [o for o in outcomes if isinstance(o.error, tessera_ckpt.CancelledError)]
        saved = [o.result() for o in outcomes if o not in skipped]
        self.assertEqual(len(saved) + len(skipped), 20)
        self.assertGreater(len(skipped), 0)
        for report in saved:
            self.assertEqual(tessera_ckpt.open(report.path).read("w", offset=(1_999_999,),
                                                                 shape=(1,))[0], report.step)

    def test_ranks(self):
        def body(transport):
            with tessera_ckpt.AsyncSaver(self.folder, transport) as saver:
                for step in (1, 2):
                    part = np.full((2, 3), 10 * step + transport.rank)
                    saver.save(step, {"w": Box(part, (2 * transport.rank, 0), (6, 3))})
                    part[:] = 0

        self.assertEqual(run_ranks(3, body), [None] * 3)
        state = {"w": np.zeros((6, 3), int)}
        tessera_ckpt.load(self.folder, state)
        self.assertEqual(state["w"][:, 0].tolist(), [20, 20, 21, 21, 22, 22])

    def test_a_forked_process_is_told_whose_the_saver_is(self):
        """It ends, too, and saves by itself, while the parent's saver works."""
        program = textwrap.dedent("""
            import os, signal, sys, numpy as np, tessera_ckpt
            folder, state = sys.argv[1], {"w": np.ones(3_000_000)}
            saver = tessera_ckpt.AsyncSaver(folder)
            parent = os.getpid()
            def leave(): raise SystemExit
            for step, call in enumerate((
                    lambda: saver.save(9, state), saver.poll, saver.finish, saver.wait_copied,
                    lambda: saver.wait_copied(state["w"]),
                    lambda: saver.__exit__(None, None, None), saver.close, leave)):
                saver.save(step, state)
                child = os.fork()
                if child != 0:
                    assert os.waitpid(child, 0)[1] == 0, step
                    continue
                signal.alarm(60)
                try:
                    call()
                except tessera_ckpt.InvalidArgumentError as error:
                    assert f"AsyncSaver is that of process {parent}" in str(error), error
                else:
                    assert call == saver.close, step
                tessera_ckpt.save(f"{folder}/{step}", 1, state)
                with tessera_ckpt.AsyncSaver(f"{folder}/{step}") as own:
                    own.save(2, state)
                sys.exit(0)
            assert [outcome.result().step for outcome in saver.finish()] == list(range(8))
        """)
        subprocess.run([sys.executable, "-c", program, self.folder], check=True, timeout=300)
        for step in range(7):
            self.assertEqual(tessera_ckpt.latest(f"{self.folder}/{step}").step, 2)

    def test_processes_of_multiprocessing_finish_their_saves(self):
        """They may end without what atexit has registered."""
        program = textwrap.dedent("""
            import multiprocessing, sys, numpy as np, tessera_ckpt
            folder = sys.argv[1]
            def work(name):
                saver = tessera_ckpt.AsyncSaver(f"{folder}/{name}")
                saver.save(1, {"w": np.ones(6_000_000)})
            if __name__ == "__main__":
                with tessera_ckpt.AsyncSaver(f"{folder}/parent") as saver:  # it uses the package
                    saver.save(1, {"w": np.ones(3)})
                for name in ("fork", "forkserver", "spawn"):
                    process = multiprocessing.get_context(name).Process(target=work, args=(name,))
                    process.start()
                    process.join()
                    assert process.exitcode == 0, name
                    assert tessera_ckpt.latest(f"{folder}/{name}").step == 1, name
        """)
        path = pathlib.Path(f"{self.folder}.py")
        path.write_text(program, encoding="utf-8")
        subprocess.run([sys.executable, path, self.folder], check=True, timeout=300)

    def test_the_state_may_go_at_once(self):
        with tessera_ckpt.AsyncSaver(self.folder) as saver:
            saver.save(1, {"w": np.arange(3_000_000)})
        state = {"w": np.zeros(3_000_000, int)}
        tessera_ckpt.load(self.folder, state)
        self.assertEqual(state["w"][-1], 2_999_999)

    def test_collections_of_garbage_go_on_once_no_thread_describes_a_state(self):
        for before in (False, True):
            (gc.enable if before else gc.disable)()
            first = without_collections()  # in another thread
            first.__enter__()
            with self.assertRaises(KeyboardInterrupt), without_collections():
                child = os.fork()  # in a third one
                if child == 0:
                    os._exit(gc.isenabled())
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), before)
                first.__exit__(None, None, None)
                self.assertFalse(gc.isenabled())
                raise KeyboardInterrupt
            self.assertEqual(gc.isenabled(), before)


if __name__ == "__main__":
    unittest.main()
