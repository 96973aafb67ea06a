#!/usr/bin/env python3
"""The package with numpy: state that ranks save and load together."""

import gc
import importlib
import io
import random
import socket
import sys
import threading
import time
import types
import unittest
import unittest.mock
import weakref

import numpy as np
import tessera_ckpt
from ranks import run_ranks
from scratch import Case
from tessera_ckpt import Box, _group, _jax_group, _replace, _structure


class GroupTest(Case):
    def test_bad_state_of_one_rank_fails_on_all(self):
        def body(transport):
            state = {"w": np.ones(3)} if transport.rank != 1 else {"w": {1, 2}}
            tessera_ckpt.save(self.folder, 1, state, transport, timeout_seconds=30)

        results = run_ranks(3, body)
        self.assertTrue(all(isinstance(r, tessera_ckpt.UnimplementedError) for r in results),
                        results)
        self.assertIn("rank 1: w: a value of type set", str(results[0]))
        self.assertIsNone(tessera_ckpt.latest(self.folder))

    def test_memory_of_messages_that_mpi_has_not_ended_stays(self):
        """Of a communicator whose other rank never comes: MPI may still write to it."""
        class Request:
            def __init__(self, memory, is_over):
                self.memory, self.Test = memory, lambda: is_over

        class Communicator:
            sent, received = [], []
            Get_rank, Get_size, Dup = (lambda self: 0), (lambda self: 2), (lambda self: self)

            def Isend(self, message, dest, tag):
                self.sent.append(weakref.ref(made := Request(message, True)))
                return made

            def Irecv(self, message, source, tag):
                self.received.append(weakref.ref(made := Request(message, False)))
                return made

        with unittest.mock.patch.dict(sys.modules, {"mpi4py.MPI": types.SimpleNamespace(BYTE=1)}):
            with self.assertRaises(tessera_ckpt.DeadlineExceededError):
                tessera_ckpt.save(self.folder, 1, {"w": np.ones(3)}, Communicator(),
                                  timeout_seconds=0.1)
        gc.collect()
        self.assertGreater(len(Communicator.received), 0)
        self.assertTrue(all(request() is not None for request in Communicator.received))
        self.assertTrue(all(request() is None for request in Communicator.sent))

    def save_on(self, size, state_of, **options):
        """Saves state_of(rank) on so many ranks, and returns what they raised."""
        return run_ranks(size, lambda transport: tessera_ckpt.save(
            self.folder, 1, state_of(transport.rank), transport, **options) and None)

    def test_values_that_only_some_ranks_have(self):
        def state(rank, known):
            of_rank = {f"dp_rank_{rank}": {"at": 10 * rank * known, "file": "x" * known}}
            return {"step": 7 * known, "w": np.full(3, 1.0 * known),
                    "data": of_rank if rank != 1 else {}}

        self.assertEqual(self.save_on(4, lambda rank: state(rank, 1)), [None] * 4)
        self.assertEqual(tessera_ckpt.open(self.folder).values, {
            "step": 7, **{f"data.dp_rank_{rank}.{key}": value for rank in (0, 2, 3)
                          for key, value in (("at", 10 * rank), ("file", "x"))}})

        def load(transport, **options):
            mine = state(transport.rank, 0)
            report = tessera_ckpt.load(self.folder, mine, transport, **options)
            np.testing.assert_equal(mine, state(transport.rank, 1))
            return report.unexpected

        self.assertEqual(run_ranks(4, load), [[]] * 4)
        gone = [f"data.dp_rank_{rank}.{key}" for rank in (2, 3) for key in ("at", "file")]
        self.assertEqual(run_ranks(2, lambda each: load(each, allow_unexpected=True)), [gone] * 2)
        for error in run_ranks(2, load):
            self.assertIsInstance(error, tessera_ckpt.MismatchError)
            self.assertIn("value data.dp_rank_2.at: saved, not wanted", str(error))

    def test_values_that_differ_are_refused_by_name(self):
        errors = self.save_on(3, lambda rank: {"step": 7, "loss": {"last": 0.5 * (rank // 2)}})
        for error in errors:
            self.assertIsInstance(error, tessera_ckpt.MismatchError)
            self.assertIn("value loss.last: the ranks have different ones (rank 0: 0.0; rank 2: "
                          "0.5): name it in per_rank=", str(error))
        self.assertIsNone(tessera_ckpt.latest(self.folder))
        errors = self.save_on(3, lambda rank: {"rng": np.full(5, rank // 2, "u1"), "w": np.ones(2)})
        self.assertIn("tensor rng: ranks 0 and 2 have different elements", str(errors[1]))
        self.assertEqual({type(error) for error in errors}, {tessera_ckpt.MismatchError})
        kinds = self.save_on(2, lambda rank: {"a": np.ones(1) if rank else {"b": 1}})
        self.assertIn("a: is a leaf, or a container of another kind, on another rank",
                      str(kinds[1]))
        self.assertIsNone(tessera_ckpt.latest(self.folder))

    def test_each_tensor_is_reached_once(self):
        """An array of JAX on a GPU is copied each time."""
        reached, memory_of = [], tessera_ckpt._tensors.memory_of

        def count(value, name):
            reached.append(name)
            return memory_of(value, name)

        with unittest.mock.patch.object(tessera_ckpt._tensors, "memory_of", count):
            self.save_on(2, lambda rank: {"w": np.ones(3), "counts": np.arange(4)})
        self.assertEqual(sorted(reached), ["counts", "counts", "w", "w"])

    def test_what_each_rank_has_its_own_of(self):
        def state(rank):
            return {"rng": {"python": (3, rank), "numpy": np.full(4, rank, "u1")}, "step": 7,
                    "rows": [np.full(2, rank), np.full(2, 5)]}

        per_rank = ["rng", "rows.0"]
        self.assertEqual(self.save_on(3, state, per_rank=per_rank), [None] * 3)
        self.assertEqual(sorted(tessera_ckpt.open(self.folder).tensors), sorted(
            [f"rng.rank_{rank}.numpy" for rank in range(3)]
            + [f"rows.0.rank_{rank}" for rank in range(3)] + ["rows.1"]))

        def load(transport, **options):
            mine = state(17)
            report = tessera_ckpt.load(self.folder, mine, transport, **options)
            np.testing.assert_equal(mine, state(transport.rank if transport.rank < 3 else 17))
            return len(report.missing), len(report.unexpected)

        self.assertEqual(run_ranks(3, load), [(0, 0)] * 3)

        def load_all(transport=None, **options):
            return tessera_ckpt.load(self.folder, None, transport, **options)

        np.testing.assert_equal(run_ranks(3, load_all), [state(rank) for rank in range(3)])
        np.testing.assert_equal(load_all(), state(0))
        self.assertRegex(str(run_ranks(4, load_all)), r"value rng.rank_3: wanted, not saved")
        new = run_ranks(4, lambda each: load_all(each, allow_missing=True))[3]
        np.testing.assert_equal(new, {"step": 7, "rows": [None, np.full(2, 5)]})
        for size, options, lost in ((2, {"allow_unexpected": True}, "rank_2.*not wanted"),
                                    (4, {"allow_missing": True}, "rank_3.*not saved"),
                                    (4, {"allow_missing": ["rng", "rows"]}, "rank_3.*not saved")):
            self.assertRegex(str(run_ranks(size, load)), lost)
            self.assertTrue(all(isinstance(found, tuple) for found in run_ranks(
                size, lambda each: load(each, **options))), size)
        with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "per_rank: expected a list"):
            tessera_ckpt.save(self.folder, 2, state(0), per_rank="rng")

    def test_another_number_of_ranks_is_told_what_to_allow(self):
        def state(rank, **more):
            return {"model": {"seed": rank, "w": np.ones(2)}, "rng": {"words": np.full(3, rank)},
                    **more}

        self.assertEqual(self.save_on(3, state, per_rank=["model.seed", "rng"]), [None] * 3)

        def load(transport, change=lambda mine: None, **options):
            mine = state(transport.rank)
            change(mine)
            return tessera_ckpt.load(self.folder, mine, transport, **options)

        for change in (lambda mine: mine["model"].update(extra=np.ones(1)),
                       lambda mine: mine["rng"].update(new=1),
                       lambda mine: mine["rng"].update(new=np.ones(1)),
                       lambda mine: mine["rng"].pop("words")):
            for error in run_ranks(3, lambda each: load(each, change)):
                self.assertRegex(str(error), "not match|mismatch")
                self.assertNotIn("each rank has its own", str(error))
        both = ["model.seed", "rng"]
        told = f"allow_missing={both} and allow_unexpected={both} load at another number of ranks"
        for size in (1, 2, 4):
            for error in run_ranks(size, load):
                self.assertIn(told, str(error))
            as_told = {"allow_missing": both, "allow_unexpected": both}
            found = run_ranks(size, lambda each: load(each, **as_told))
            self.assertEqual({type(each) for each in found}, {tessera_ckpt.LoadReport})
            for key in ("extra", "sed"):
                for error in run_ranks(size, lambda each: load(
                        each, lambda mine: mine["model"].update({key: np.ones(1)}), **as_told)):
                    self.assertRegex(str(error), f"tensor model.{key}: wanted, not")
        # Where these are tensors alone, the library finds that they do not match.
        self.save_on(3, lambda rank: {"rng": np.full(3, rank)}, per_rank=["rng"], overwrite=True)
        for size in (2, 4):
            for error in run_ranks(size, lambda each: tessera_ckpt.load(
                    self.folder, {"rng": np.zeros(3, int)}, each)):
                self.assertIn("allow_missing=['rng'] and", str(error))

    def test_a_mismatch_is_not_hidden_by_what_other_ranks_want(self):
        def state(rank, **more):
            layers = {f"layer{rank}_{i}": np.full(4, float(rank)) for i in range(12)}
            return {"model": layers, "rng": {"seed": rank, "words": np.full(3, rank)}, **more}

        self.assertEqual(self.save_on(3, state, per_rank=["rng"]), [None] * 3)

        def load(transport, wants=(0, 1, 2), **options):
            mine = {"m": 1} if transport.rank in wants else {}
            return tessera_ckpt.load(self.folder, state(transport.rank, **mine), transport,
                                     **options)

        for error in run_ranks(3, load):
            self.assertEqual(str(error), "1 leaf does not match:\n  value m: wanted, not saved")
        self.check_told(run_ranks(3, lambda each: load(each, wants=[1])), 1,
                        "1 leaf does not match:\n  value m: wanted, not saved")
        for options, count in (({}, 15), ({"allow_unexpected": ["rng"]}, 13)):
            for error in run_ranks(2, lambda each: load(each, **options)):
                lines = str(error).split("\n  ")
                self.assertEqual(lines[0], f"{count} leaves do not match:")
                self.assertEqual(lines[1], "value m: wanted, not saved")
                self.assertIn("tensor model.layer2_0: saved, not wanted", lines)
                self.assertNotIn("rank_1.words", str(error))

    def check_told(self, results, failed, message):
        """One rank has failed by itself, and all others raise what it says."""
        for rank, result in enumerate(results):
            self.assertIsInstance(result, Exception, results)
            if rank != failed:
                self.assertIn(f"rank {failed}: {message}", str(result))

    def test_whatever_fails_on_one_rank_fails_on_all(self):
        class Odd(Exception):
            code = print  # as errors of other packages have one

        class Refuses(dict):
            def items(self):
                raise Odd

        def save(transport, failing=1, state=None, **options):
            if transport.rank != failing:
                state, options = None, {}
            tessera_ckpt.save(self.folder, 1, state or {"w": np.ones(3)}, transport,
                              timeout_seconds=5, **options)

        self.check_told(run_ranks(3, lambda each: save(each, state=Refuses(a=1))), 1, "Odd")
        self.check_told(run_ranks(3, lambda each: save(each, progress="bar")), 1,
                        "progress: expected")
        self.assertEqual(run_ranks(2, save), [None] * 2)

        def load(transport, state, **options):
            return tessera_ckpt.load(self.folder, state, transport, timeout_seconds=5, **options)

        def load_one(transport, **options):
            return load(transport, {"w": np.zeros(3)}, **(options if transport.rank == 1 else {}))

        for options, message in (({"progress": "bar"}, "progress: expected"),
                                 ({"allow_unexpected": "w"}, "allow_unexpected: expected")):
            self.check_told(run_ranks(2, lambda each: load_one(each, **options)), 1, message)
        with unittest.mock.patch.object(tessera_ckpt._checkpoints, "open",
                                        side_effect=PermissionError):
            self.check_told(run_ranks(2, load_one), 0, "PermissionError")

    def test_a_state_that_cannot_be_filled_fails_on_all(self):
        class Closed(dict):
            def __setitem__(self, key, value):
                raise RuntimeError("closed")

        self.assertEqual(self.save_on(2, lambda _: {"w": np.ones(3), "step": 7}), [None] * 2)
        self.check_told(run_ranks(2, lambda transport: tessera_ckpt.load(
            self.folder, (dict, Closed)[transport.rank](w=np.zeros(3), step=0), transport,
            timeout_seconds=5)), 1, "RuntimeError('closed')")

    def test_a_step_of_numpy_is_that_of_all_ranks(self):
        self.assertEqual(run_ranks(2, lambda transport: _replace.save_in_place(
            self.folder, np.int64(3), {"w": np.ones(3)}, transport).step), [3, 3])

    def test_after_an_exchange_that_failed_no_rank_reads_what_is_left_of_it(self):
        def body(transport):
            def receive(*_):
                raise MemoryError

            with unittest.mock.patch.object(
                    transport, "receive", receive if transport.rank == 0 else transport.receive):
                try:
                    tessera_ckpt.save(self.folder, 1, {}, transport, timeout_seconds=1)
                except (MemoryError, tessera_ckpt.TesseraError):
                    pass
            tessera_ckpt.save(self.folder, 2, {"w": np.ones(3)}, transport, timeout_seconds=1)

        first, second = run_ranks(2, body)
        self.assertIsInstance(first, tessera_ckpt.UnavailableError)
        self.assertIn("MemoryError", str(first))
        self.assertIsInstance(second, tessera_ckpt.DeadlineExceededError)

    def test_a_missing_rank_is_named(self):
        def body(transport):
            if transport.rank != 1:
                _group.Collectives(transport).gather(b"x", 0.3)

        results = run_ranks(2, body)
        self.assertIsInstance(results[0], tessera_ckpt.DeadlineExceededError)
        self.assertIn("1", str(results[0]))

    def test_ranks_that_have_left_each_other_stay_apart(self):
        """The next call fails at once, whether a rank was missed in Python or in the library."""
        for calls_before_it_leaves in (0, 1):
            def body(transport):
                state, errors = {"w": np.ones(3)}, []
                if transport.rank == 1:
                    for _ in range(calls_before_it_leaves):
                        with _group.together(_group.group_of(transport)):
                            pass
                    return errors
                for seconds in (0.5, 600):
                    try:
                        tessera_ckpt.save(self.folder, 1, state, transport,
                                          timeout_seconds=seconds)
                    except tessera_ckpt.DeadlineExceededError as error:
                        errors.append(str(error))
                return errors

            begin = time.monotonic()
            errors = run_ranks(2, body)[0]
            self.assertLess(time.monotonic() - begin, 60)
            self.assertEqual(len(errors), 2)
            self.assertTrue(errors[0].endswith(errors[1]), errors)  # which may begin with a phase
            self.assertIn("missing ranks: 1", errors[0])

    def test_ranks_that_do_not_cover_a_tensor(self):
        def body(transport):
            part = Box(np.ones((1, 4)), (transport.rank, 0), (3, 4))
            tessera_ckpt.save(self.folder, 1, {"w": part}, transport)

        results = run_ranks(2, body)
        for result in results:
            self.assertIsInstance(result, tessera_ckpt.InvalidArgumentError)
            self.assertIn("tensor w", str(result))

    def test_random_shardings(self):
        rng = random.Random(20)
        tensor = np.random.default_rng(5).random((13, 11)).astype("f4")
        for step in range(6):
            saved, loaded = rng.randint(1, 5), rng.randint(1, 5)

            def cut(size, dim, rank):
                extent = tensor.shape[dim]
                first, last = extent * rank // size, extent * (rank + 1) // size
                index = [slice(None)] * 2
                index[dim] = slice(first, last)
                offset = [0, 0]
                offset[dim] = first
                return tuple(index), tuple(offset)

            def save(transport):
                index, offset = cut(saved, step % 2, transport.rank)
                part = Box(tensor[index], offset, tensor.shape)
                tessera_ckpt.save(self.folder, step, {"w": part, "same": tensor}, transport)

            def load(transport):
                index, offset = cut(loaded, (step + 1) % 2, transport.rank)
                mine, same = np.zeros_like(tensor[index]), np.zeros_like(tensor)
                state = {"w": Box(mine, offset, tensor.shape), "same": same}
                tessera_ckpt.load(self.folder, state, transport, verify_digests=True)
                np.testing.assert_array_equal(mine, tensor[index])
                np.testing.assert_array_equal(same, tensor)

            self.assertEqual(run_ranks(saved, save), [None] * saved)
            self.assertEqual(run_ranks(loaded, load), [None] * loaded)


class DcpTest(Case):
    """Writer and Reader among ranks. A stand-in for torch has the names that they import."""

    def setUp(self):
        super().setUp()
        torch = unittest.mock.MagicMock()
        torch.distributed.is_initialized.return_value = False
        checkpoint = torch.distributed.checkpoint
        checkpoint.storage.StorageWriter = checkpoint.storage.StorageReader = object
        # Two threads that compare mocks for the first time may find them equal.
        checkpoint.planner.WriteItemType = types.SimpleNamespace(BYTE_IO="bytes", TENSOR="tensor")
        checkpoint.planner.LoadItemType = types.SimpleNamespace(BYTE_IO="bytes")
        modules = {"torch": torch, "torch.distributed": torch.distributed,
                   "torch.distributed.checkpoint": checkpoint, "torch.futures": torch.futures}
        for name in ("default_planner", "metadata", "planner", "storage"):
            modules[f"torch.distributed.checkpoint.{name}"] = getattr(checkpoint, name)
        with unittest.mock.patch.dict(sys.modules, modules):
            sys.modules.pop("tessera_ckpt.dcp", None)
            self.dcp = importlib.import_module("tessera_ckpt.dcp")

    def write(self, transport, places=None):
        """Saves a tensor of rank 0 and, of each rank, what the planner has pickled."""
        of_rank = f"of_rank_{transport.rank}"
        chunk = types.SimpleNamespace(sizes=(3,), offsets=(0,))
        items = [types.SimpleNamespace(index=types.SimpleNamespace(fqn=of_rank),
                                       type=self.dcp.WriteItemType.BYTE_IO)]
        if transport.rank == 0:
            items.append(types.SimpleNamespace(
                index=types.SimpleNamespace(fqn="w"), type=self.dcp.WriteItemType.TENSOR,
                tensor_data=types.SimpleNamespace(chunk=chunk, size=(3,))))
        planner = types.SimpleNamespace(
            resolve_data=lambda item: np.ones(3) if item is not items[0] else io.BytesIO(b"data"),
            lookup_object=lambda _: 7)
        writer = self.dcp.Writer(self.folder, step=np.int64(5), timeout_seconds=5)
        writer._group = _group.group_of(transport)
        writer.write_data(types.SimpleNamespace(
            items=items, planner_data=places or {of_rank: (of_rank,)}), planner)

    def check_told(self, results, failed, error):
        self.assertIsInstance(results[failed], error)
        self.assertIsInstance(results[1 - failed], tessera_ckpt.InvalidArgumentError)
        self.assertIn(f"rank {failed}: {error.__name__}", str(results[1 - failed]))

    def test_what_each_rank_has_is_saved(self):
        self.assertEqual(run_ranks(2, self.write), [None] * 2)
        saved = tessera_ckpt.open(self.folder)
        self.assertEqual((saved.step, saved.values), (5, {"of_rank_0": 7, "of_rank_1": 7}))
        self.assertEqual(saved.entry("torch.distributed.checkpoint/of_rank_1"), b"data")
        self.assertEqual(_structure.decode_paths(saved.entry(_structure.PLACES)),
                         {f"of_rank_{rank}": (f"of_rank_{rank}",) for rank in range(2)})

    def test_an_error_of_one_rank_is_that_of_all(self):
        with unittest.mock.patch.object(self.dcp._Values, "_take", side_effect=MemoryError):
            self.check_told(run_ranks(2, self.write), 0, MemoryError)
        places = {"x": (object(),)}
        self.check_told(run_ranks(2, lambda transport: self.write(
            transport, places if transport.rank == 1 else None)), 1, TypeError)
        self.assertIsNone(tessera_ckpt.latest(self.folder))

    def test_what_one_rank_cannot_take_is_an_error_of_all(self):
        self.assertEqual(run_ranks(2, self.write), [None] * 2)

        def read(transport):
            reader = self.dcp.Reader(self.folder)
            reader._group = _group.group_of(transport, timeout_seconds=5)
            reader._checkpoint = tessera_ckpt.open(self.folder)
            item = types.SimpleNamespace(type=self.dcp.LoadItemType.BYTE_IO,
                                         storage_index=types.SimpleNamespace(fqn="of_rank_0"))
            taken = {0: []}
            reader.read_data(types.SimpleNamespace(items=[item]), types.SimpleNamespace(
                load_bytes=lambda _, data: taken[transport.rank].append(data.read())))

        self.check_told(run_ranks(2, read), 1, KeyError)

    def test_damaged_places_are_data_loss(self):
        for step, damaged in enumerate((b"{", b"[]", b'{"w": 7}', b"\xff")):
            tessera_ckpt.save(self.folder, step, {"w": np.ones(2)},
                              entries={_structure.PLACES: damaged})
            with self.subTest(damaged), self.assertRaisesRegex(
                    tessera_ckpt.DataLossError, f"the entry {_structure.PLACES} is not as"):
                self.dcp.Reader(self.folder).read_metadata()


class JaxGroupTest(unittest.TestCase):
    def test_other_programs_that_connect_hold_nobody(self):
        store, written, this = {}, threading.Condition(), threading.local()
        strangers = []

        class Store:
            """The key-value store of jax.distributed. Others connect at once to each listener."""

            def key_value_set_bytes(self, key, value):
                with written:
                    store[key] = value
                    written.notify_all()

            def key_value_set(self, key, address):
                host, _, port = address.rpartition(":")
                for said in (b"", b"\0\0\0\x01x"):
                    strangers.append(socket.create_connection((host, int(port))))
                    strangers[-1].sendall(said)
                self.key_value_set_bytes(key, address)

            def blocking_key_value_get(self, key, _milliseconds):
                with written:
                    assert written.wait_for(lambda: key in store, 60), key
                    return store[key]

            blocking_key_value_get_bytes = blocking_key_value_get

        def rank(number):
            this.number = number
            transport = _jax_group.JaxTransport(0)
            sent = transport.send(b"from %d" % number, 1 - number, 7)
            got.append(transport.receive(6, 1 - number, 7)(60))
            sent(60)

        got = []
        inner = types.ModuleType("jax._src")
        inner.distributed = types.SimpleNamespace(global_state=types.SimpleNamespace(
            client=Store(), coordinator_address="127.0.0.1:1"))
        outer = types.SimpleNamespace(process_index=lambda: this.number, process_count=lambda: 2)
        with unittest.mock.patch.dict(sys.modules, {"jax": outer, "jax._src": inner}):
            threads = [threading.Thread(target=rank, args=(number,), daemon=True)
                       for number in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        for stranger in strangers:
            stranger.close()
        self.assertEqual(sorted(got), [b"from 0", b"from 1"])


if __name__ == "__main__":
    unittest.main()
