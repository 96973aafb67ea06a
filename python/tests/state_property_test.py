#!/usr/bin/env python3
"""Whatever save accepts, load of the same structure gives back equal, with the same types, and it
changes nothing else; what save does not accept, it refuses by name.

  state_property_test.py [SEED [CASES]]

Uses torch and JAX, too, where they are installed.
"""

import collections
import contextlib
import itertools
import logging
import random
import shutil
import sys
import tempfile
import types
import unittest
import unittest.mock

import generated_states as generated
import numpy as np
import tessera_ckpt
from generated_states import Memory, States, build, difference, jax, jnp, torch
from ranks import run_ranks
from tessera_ckpt import ALONE, Box, _library, _packed, _shared_memory, _state, _tensors

if torch is not None:
    from fake_device import FakeDevice

SEED, CASES = 1, 200


def device(seed):
    """A device for tensors of torch, on which some seeds run all as late as they can."""
    return FakeDevice(seed if seed % 3 else None, has_streams=seed % 5 > 0) if (
        torch is not None) else contextlib.nullcontext()


class Case:
    """One state: saved, and loaded into another one of the same structure. `fake`: the device that
    has some of the tensors."""

    def __init__(self, seed, folder, fake):
        self.random = random.Random(seed)
        self.states = States(seed)
        self.description = self.states.description()
        self.seed, self.folder, self.fake = seed, folder, fake
        self.overwrites = seed % 4 == 0
        self.other = {"other": np.arange(100), "large": bytes(1000)}
        self.memory = Memory(seed, device=fake)
        self.state = build(self.description, self.memory)

    def save(self):
        """Directly or in the background, in which case the memory changes before the end; over
        another checkpoint, or over none."""
        if self.overwrites:
            tessera_ckpt.save(self.folder, 1, self.other)
        if self.random.random() < 0.7:
            tessera_ckpt.save(self.folder, 1, self.state, overwrite=self.overwrites)
            return
        lazy = self.random.random() < 0.5
        with tessera_ckpt.AsyncSaver(self.folder, lazy_copy=lazy,
                                     overwrite=self.overwrites) as saver:
            saver.save(1, self.state)
            if lazy:
                saver.wait_copied()
            self.memory.invert()
        self.memory.invert()
        if self.fake is not None:
            self.fake.synchronize()

    def target(self):
        memory = Memory(self.seed + 1_000_000_007, device=self.fake)
        return memory, build(self.description, memory, scramble=True)

    def expected_contents(self, memory):
        """The memory of a target after the load: the saved elements, and the rest as it was."""
        marks = Memory(0, fill=0)
        for leaf in self.states.leaves:
            leaf.view(marks)  # so that all pieces are there
        for leaf in self.states.leaves:
            if leaf.is_filled:
                leaf.mark(marks)
        before, saved, masks = memory.contents(), self.memory.contents(), marks.contents()
        return {key: bytes(s if m else b for b, s, m in zip(before[key], saved[key], masks[key]))
                for key in before}

    def run(self):
        """Returns "refused", or "restored"."""
        before = self.memory.contents()
        try:
            self.save()
        except tessera_ckpt.TesseraError as error:
            self.check_refusal(str(error))
            return "refused"
        finally:
            assert self.memory.contents() == before, "the save changed memory"
        assert not self.states.refused, f"{self.states.refused} was not refused"
        memory, state = self.target()
        expected = self.expected_contents(memory)
        tensors = dict(generated.tensors_of(state))
        self.check_refused_load()
        report = tessera_ckpt.load(self.folder, state, verify_digests=self.random.random() < 0.2)
        assert (report.missing, report.unexpected) == ([], []), report
        found = difference(self.state, state)
        assert not found, found
        assert memory.contents() == expected, "the load changed memory beside the tensors"
        self.check_same_tensors(tensors, state)
        assert tessera_ckpt.open(self.folder).values is not None
        self.check_load_without_a_state()
        return "restored"

    def check_load_without_a_state(self):
        """It gives all of the saved state, with its types and ties."""
        framework = self.random.choice(["numpy"] + ["torch"] * (torch is not None))
        infos = tessera_ckpt.open(self.folder).tensors.values()
        try:
            state = tessera_ckpt.load(self.folder, framework=framework)
        except tessera_ckpt.UnimplementedError as error:
            assert framework == "numpy" and "framework=" in str(error), error
            assert any(not hasattr(np, info.dtype) for info in infos), error
            return
        found = difference(generated.portable(self.state), generated.portable(state))
        assert not found, found
        tensors = [tensor for _, tensor in generated.tensors_of(state)]
        kind = np.ndarray if framework == "numpy" else torch.Tensor
        assert {type(tensor) for tensor in tensors} <= {kind}
        assert len({id(tensor) for tensor in tensors}) == sum(not info.alias_of for info in infos)

    def check_refusal(self, message):
        if self.overwrites:
            found = tessera_ckpt.load(self.folder, framework="numpy")
            assert not difference(self.other, found), "refused, and saved"
        else:
            assert tessera_ckpt.latest(self.folder) is None, "refused, and saved"
        if "two leaves have the name" in message:
            return
        for path in self.states.refused + self.states.refused_as_values:
            names = [".".join(map(str, path[1:end])) for end in range(2, len(path) + 1)]
            if any(message.startswith(f"{name}:") for name in names):
                return
        raise AssertionError(f"refused, with no reason known, or not by name: {message}")

    def check_same_tensors(self, before, state):
        """Tensors that can be written to are filled, and no others are put in their places."""
        for path, tensor in generated.tensors_of(state):
            old = before[path]
            written = not hasattr(old, "weak_type") and (
                not hasattr(old, "flags") or old.flags.writeable)
            assert (old is tensor) == written, path

    def check_refused_load(self):
        """A load that does not match changes nothing."""
        memory, state = self.target()
        extra = self.random.choice([{"more": 1}, {"more": np.ones(3)}])
        before = memory.contents()
        try:
            tessera_ckpt.load(self.folder, {**state, **extra})
        except tessera_ckpt.MismatchError as error:
            assert "more" in str(error), error
        else:
            raise AssertionError("more was wanted than was saved")
        assert memory.contents() == before, "a load was refused and has changed memory"
        found = difference(state, self.target()[1])
        assert not found, f"a load was refused and has changed {found}"


class StatePropertyTest(unittest.TestCase):
    def test_states_are_restored_or_refused(self):
        counts = collections.Counter()
        tensors = 0
        with tempfile.TemporaryDirectory() as scratch:
            for seed in range(SEED, SEED + CASES):
                folder = f"{scratch}/{seed}"
                least = random.Random(seed).choice((1, 16, _packed.MIN_BYTES))
                try:
                    with device(seed) as fake, unittest.mock.patch.object(
                            _packed, "MIN_BYTES", least):
                        case = Case(seed, folder, fake)
                        counts[case.run()] += 1
                except Exception as error:
                    raise AssertionError(f"seed {seed}: {error}") from error
                tensors += len(case.states.leaves)
                shutil.rmtree(folder, ignore_errors=True)
        libraries = [name for name in ("torch", "jax") if getattr(generated, name) is not None]
        print(f"seeds {SEED} to {SEED + CASES - 1}: {dict(counts)}, {tensors} tensors, with "
              f"{' and '.join(['numpy'] + libraries)}")
        self.assertGreater(counts["restored"], CASES // 2)
        self.assertGreater(counts["refused"], 0)

    def test_what_only_some_ranks_have_is_restored(self):
        restored = 0
        for seed in range(SEED, SEED + CASES):
            ranks = random.Random(seed).randint(2, 4)
            states = {key: States(1000 * seed + key, for_torch=torch is not None)
                      for key in range(-1, ranks)}  # -1: what all ranks have
            described = {key: each.description() for key, each in states.items()}
            if any(each.refused + each.refused_as_values for each in states.values()):
                continue

            def state_of(rank, scramble=False, on=None):
                return {f"of {key}": build(
                    described[key], Memory(-seed if scramble else seed, device=on), scramble)
                        for key in (-1, rank) if rank % 3 != 1 or key == -1}

            def save(transport, folder):
                mine = state_of(transport.rank, on=fake)
                if seed % 2 == 0:
                    tessera_ckpt.save(folder, 1, mine, transport)
                    return
                with tessera_ckpt.AsyncSaver(folder, transport) as saver:
                    saver.save(1, mine)

            def load(transport, folder):
                mine = state_of(transport.rank, scramble=True, on=fake)
                report = tessera_ckpt.load(folder, mine, transport)
                return (difference(state_of(transport.rank), mine), report.missing,
                        report.unexpected)

            least = random.Random(seed).choice((1, _packed.MIN_BYTES))
            patched = unittest.mock.patch.object(_packed, "MIN_BYTES", least)
            with self.subTest(seed=seed), tempfile.TemporaryDirectory() as folder, patched, (
                    device(seed)) as fake:
                saved = run_ranks(ranks, lambda transport: save(transport, folder))
                if saved != [None] * ranks:
                    self.assertIn("two leaves have the name", str(saved))
                    continue
                self.assertEqual(run_ranks(ranks, lambda transport: load(transport, folder)),
                                 [("", [], [])] * ranks)
                everything = {}
                for rank in range(ranks):
                    everything.update(state_of(rank))
                whole = run_ranks(ranks, lambda transport: tessera_ckpt.load(
                    folder, None, transport, framework="torch" if torch else "numpy"))
                for state in whole:
                    self.assertEqual(difference(generated.portable(everything),
                                                generated.portable(state)), "")
                restored += 1
        self.assertGreater(restored, CASES // 20)

    def test_each_type_that_cannot_be_restored_is_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            for make in generated.REFUSED:
                for place in (lambda leaf: leaf, lambda leaf: [leaf], lambda leaf: ({"x": leaf},),
                              lambda leaf: generated.Moments(1, leaf, np.ones(3))):
                    leaf = make()
                    with self.subTest(type(leaf)), self.assertRaisesRegex(
                            tessera_ckpt.TesseraError, r"a\.b"):
                        tessera_ckpt.save(folder, 1, {"a": {"b": place(leaf)}})
            self.assertIsNone(tessera_ckpt.latest(folder))


class FolderCase(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name + "/runs"

    def restore(self, state, target):
        tessera_ckpt.save(self.folder, 1, state)
        tessera_ckpt.load(self.folder, target)
        self.assertEqual(difference(state, target), "")


class NamedStatesTest(FolderCase):
    def test_states_of_random_generators(self):
        def state(seed):
            np.random.seed(seed)
            return {"numpy": np.random.get_state(), "python": random.Random(seed).getstate(),
                    "generator": np.random.default_rng(seed).bit_generator.state}

        before = state(3)
        restored = state(4)
        self.restore(before, restored)
        np.random.set_state(restored["numpy"])
        again = np.random.random(5)
        np.random.set_state(before["numpy"])
        np.testing.assert_array_equal(np.random.random(5), again)

    def test_tensors_below_tuples(self):
        def state(number):
            moments = {"w": np.full((2, 3), number), "one": np.full(1, number)}
            return {"optimizer": (generated.Empty(), (generated.Moments(
                np.int32(number), moments, {"w": np.full(1, -number)}), ({"t": np.array(number)},)),
                                  number)}

        restored = state(0)
        filled = restored["optimizer"][1][0].mu["w"]
        self.restore(state(7), restored)
        self.assertIs(restored["optimizer"][1][0].mu["w"], filled)

    def test_memory_that_would_get_two_values_is_not_loaded(self):
        """Nothing of it: the checkpoint has other elements than the state could hold."""
        ones, twos = np.full((3, 4), 1.0), np.full((3, 4), 2.0)
        tessera_ckpt.save(self.folder, 1, {
            "a": ones, "b": twos, "c": ones[:, 1], "n": 1, "rows": np.stack([ones[0], twos[0]])})
        whole, other, row = np.zeros((3, 4)), np.zeros((3, 4)), np.zeros(4)
        window = np.lib.stride_tricks.as_strided
        for names, first, second in (
                ("a.*b", whole, whole[::-1]), ("b.*c", whole, whole[:, 2]),
                ("rows", window(row, (2, 4), (0, 8)), None),
                ("rows", window(whole, (2, 4), (8, 8)), None)):
            key, beside = ("rows", None) if second is None else names.split(".*")
            state = {key: first, "n": 0, "a" if key != "a" else "b": other}
            if beside is not None:
                state[beside] = second
            with self.assertRaisesRegex(tessera_ckpt.MismatchError, f"tensor .*{names}.*memory"):
                tessera_ckpt.load(self.folder, state, allow_unexpected=True)
            self.assertEqual((whole.sum(), other.sum(), row.sum(), state["n"]), (0, 0, 0, 0))
        # What agrees is loaded, and what only lies between the elements of another.
        state = {"a": whole, "c": whole[:, 3], "b": np.zeros((3, 9))[:, ::2][:, :4], "n": 0}
        tessera_ckpt.load(self.folder, state, allow_unexpected=True)
        both = np.zeros((3, 8))
        state = {"a": both[:, ::2], "b": both[:, 1::2]}
        tessera_ckpt.load(self.folder, state, allow_unexpected=True)
        self.assertEqual(both.tolist(), [[1, 2] * 4] * 3)

    def test_views_are_saved_and_filled_without_a_copy(self):
        whole = np.arange(600, dtype="i4").reshape(20, 30)
        views = {"transposed": whole.T, "steps": whole[::3, 5:20:2], "reversed": whole[::-1, ::-1],
                 "column": whole[:, 7], "broadcast": np.broadcast_to(whole[0], (4, 30))}
        tessera_ckpt.save(self.folder, 1, views)
        target = np.zeros((90, 90), dtype="i4")
        filled = {"transposed": target[:30, :20], "steps": target[30:65:5, 0:80:10].copy().T,
                  "reversed": target[70:90, 30:60][::-1], "column": target[60, 0:60:3],
                  "broadcast": target[65:69, 60:90]}
        filled["steps"] = np.zeros((8, 7), "i4").T
        tessera_ckpt.load(self.folder, filled)
        for name, view in views.items():
            np.testing.assert_array_equal(view, filled[name], name)

    def test_dlpack_is_enough(self):
        source, target = np.arange(12.0).reshape(3, 4), np.zeros((3, 4))
        tessera_ckpt.save(self.folder, 1, {"a": generated.OnlyDLPack(source),
                                           "b": generated.OnlyDLPack(source.T)})
        into = np.zeros((4, 3))
        tessera_ckpt.load(self.folder, {"a": generated.OnlyDLPack(target),
                                        "b": generated.OnlyDLPack(into)})
        np.testing.assert_array_equal(source, target)
        np.testing.assert_array_equal(source.T, into)

    def test_tied_parameters_are_saved_once(self):
        table = np.random.default_rng(1).random((100, 50))
        report = tessera_ckpt.save(self.folder, 1, {"embedding": table, "head": table})
        self.assertLess(report.bytes_written, 1.5 * table.nbytes)
        checkpoint = tessera_ckpt.open(self.folder)
        self.assertEqual(checkpoint.tensors["head"].alias_of, "embedding")
        one, two = np.zeros_like(table), np.zeros_like(table)
        report = tessera_ckpt.load(self.folder, {"head": one, "embedding": one})
        self.assertLess(report.bytes_read, 1.5 * table.nbytes)
        np.testing.assert_array_equal(one, table)
        one.fill(0)
        tessera_ckpt.load(self.folder, {"embedding": one, "head": two})
        np.testing.assert_array_equal(one, table)
        np.testing.assert_array_equal(two, table)
        tessera_ckpt.save(self.folder, 2, {"embedding": one, "head": two})
        one.fill(0)
        tessera_ckpt.load(self.folder, {"embedding": one, "head": one})
        np.testing.assert_array_equal(one, table)
        two[1, 1] += 1
        tessera_ckpt.save(self.folder, 3, {"embedding": one, "head": two})
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, "embedding, head.* different"):
            tessera_ckpt.load(self.folder, {"embedding": one, "head": one})
        np.testing.assert_array_equal(one, table)

    def test_read_only_memory_is_not_written(self):
        tessera_ckpt.save(self.folder, 1, {"a": np.ones(3), "b": np.ones(3)})
        target = np.zeros(3)
        target.flags.writeable = False
        state = {"a": target, "b": Box(target, (0,), (3,))}
        tessera_ckpt.load(self.folder, state)
        for new in (state["a"], state["b"].data):
            self.assertEqual((new.sum(), new.flags.writeable), (3, False))
        with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "read-only"):
            tessera_ckpt.open(self.folder).read("a", target)
        self.assertEqual(target.sum(), 0)
        state = {"c": target}
        tessera_ckpt.load(self.folder, state, allow_missing=True, allow_unexpected=True)
        self.assertIs(state["c"], target)

    def test_parts_of_a_tensor_overlap_where_they_have_a_byte_in_common(self):
        rng = random.Random(SEED)
        for _ in range(3000):
            strides = [rng.randint(1, 12) for _ in range(rng.randrange(4))]
            name, dtype = rng.choice(sorted(_tensors.DTYPES.items()))
            size = _tensors.item_bytes(dtype)
            one, two = (_tensors.Elements(
                "cpu", 1000 + rng.randrange(40) * rng.choice((1, size)), False, dtype,
                [rng.randint(1, 4) for _ in strides], strides) for _ in range(2))

            def addresses(part):
                places = itertools.product(*map(range, part.shape))
                return {part.address + size * sum(i * s for i, s in zip(place, strides)) + byte
                        for place in places for byte in range(size)}

            self.assertEqual(_shared_memory._may_overlap(one, two),
                             not addresses(one).isdisjoint(addresses(two)), (name, one, two))

    def test_keys_that_have_one_name_are_refused(self):
        for state in ({1: np.ones(1), "1": np.ones(2)}, {"1": 5, 1: np.ones(2)},
                      {"a": {"b": 1}, "a.b": 2}):
            with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "two leaves .* 1|a.b"):
                tessera_ckpt.save(self.folder, 1, state)

    def test_lists_that_contain_themselves_are_refused(self):
        itself, deep, node = [], {}, {}
        itself += [itself, itself]
        for _ in range(200):
            deep = {"x": deep, "y": [1]}
        node["x"] = ({"y": [node]},)
        lists = []
        for _ in range(5000):
            lists = [lists]
        for state in (itself, deep, node, lists, (1, lists)):
            with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "contains itself"):
                tessera_ckpt.save(self.folder, 1, {"a": state})

    def test_a_namedtuple_whose_class_is_gone(self):
        state = {"a": [generated.Local(1, (2.5,))], "n": np.ones(1)}
        tessera_ckpt.save(self.folder, 1, state)
        self.assertEqual(tessera_ckpt.open(self.folder).values, {"a": [(1, (2.5,))]})
        other = {"a": [None], "n": np.zeros(1)}
        with self.assertRaisesRegex(tessera_ckpt.MismatchError,
                                    r"value a: saved as a namedtuple .*Local\(first, second\)"):
            tessera_ckpt.load(self.folder, other)
        self.assertEqual((other["a"], other["n"].sum()), ([None], 0))
        other["a"] = [generated.Local(None, None)]
        tessera_ckpt.load(self.folder, other)
        self.assertEqual(difference(state, other), "")

    def test_values_in_the_form_of_older_versions(self):
        """And such as no version writes."""
        stored = (b'{"n": 5, "big": 1208925819614629174706176, "f": -0.0, "t": "t\xc3\xa4st",'
                  b'"lone": "\xed\xa0\x80", "none": null, "on": true, "list": [1, [2.5, "x"]],'
                  b'"inf": {"!": "float", "value": "-inf"},'
                  b'"raw": {"!": "bytes", "value": "AP8="},'
                  b'"betas": {"!": "tuple", "value": [0.9, {"!": "dict", "value": [[1, "x"]]}]},'
                  b'"named": {"!": "tuple", "value": [3, null, [4]]}}')
        expected = {"n": 5, "big": 1 << 80, "f": -0.0, "t": "täst", "lone": "\ud800", "none": None,
                    "on": True, "list": [1, [2.5, "x"]], "inf": float("-inf"), "raw": b"\0\xff",
                    "betas": (0.9, {1: "x"}), "named": (3, None, [4])}
        self.write(stored)
        self.assertEqual(difference(expected, tessera_ckpt.open(self.folder).values), "")
        state = {**dict.fromkeys(expected, 0), "named": generated.Moments(0, 0, 0)}
        tessera_ckpt.load(self.folder, state)
        expected["named"] = generated.Moments(3, None, [4])
        self.assertEqual(difference(expected, state), "")
        for step, (bad, error) in enumerate((
                (b"[1]", "no JSON object"), (b"{", "no JSON"), (b"[" * 100_000, "no JSON"),
                (b'{"a": {"!": "more", "value": 1}}', "value a: of kind 'more'"),
                (b'{"a": {"value": 1}}', "value a: is not stored"),
                (b'{"a": {"!": "namedtuple", "value": [1]}}', "value a: is not stored"),
                (b'{"a": {"!": "numpy", "value": 1, "dtype": "O"}}', "value a: is not stored"),
                (b'{"a": {"!": "dict", "value": [[[1], 2]]}}', "value a: is not stored"),
                (b'{"a": {"!": "int", "value": "x"}}', "value a: is not stored")), 2):
            self.write(bad, step)
            with self.subTest(bad[:40]), self.assertRaisesRegex(tessera_ckpt.TesseraError, error):
                tessera_ckpt.load(self.folder, {"a": 1})

    def write(self, stored, step=1):
        folder = tessera_ckpt.Folder(self.folder, create=True)
        description = _state.Description({}, entries={_state.VALUES: stored})
        _library.report(_library.lib.folder_save, folder.handle, step, description.handle, None)


@unittest.skipUnless(torch, "torch is not installed")
class TorchTest(FolderCase):
    def test_views_of_the_same_memory(self):
        def state(scale):
            whole = scale * torch.arange(1, 9, dtype=torch.float32).view(torch.complex64)
            bf16 = scale * torch.ones(2, 2, dtype=torch.bfloat16)
            return {"imag": whole.imag, "negative": whole.conj().imag, "real": whole.real,
                    "bf16": bf16, "bits": bf16.view(torch.int16), "transposed": bf16.T,
                    "expanded": bf16[0].expand(2, 2), "overlapping": whole.real.unfold(0, 2, 1),
                    "negative, expanded": whole.conj().imag[1:2].expand(3)}

        restored = state(-3)
        self.restore(state(1), restored)
        self.assertEqual(restored["negative"].tolist(), [-2, -4, -6, -8])
        self.assertTrue(restored["negative"].is_neg())
        found = tessera_ckpt.open(self.folder).tensors.values()
        self.assertEqual({info.alias_of for info in found}, {None})

    def test_plain_tensors_that_say_which_shards_they_are(self):
        """As torch.distributed.checkpoint.CheckpointableTensor has it."""
        def shard(elements, offsets, places, sizes, shape=(4, 2)):
            elements.global_shape, elements.global_offsets = shape, offsets
            elements.local_offsets, elements.local_sizes = places, sizes
            return elements

        def states(rank, dtype, sign=1):
            of = sign * torch.arange(8).reshape(4, 2).to(dtype)
            padded = torch.zeros(3, 2, dtype=dtype)  # rows 0 and 3, or 1 and 2
            rows = (0, 3) if rank == 0 else (1, 2)
            padded[1], padded[2] = of[rows[0]], of[rows[1]]
            return {"halves": shard(of[2 * rank:2 * rank + 2].clone(), ((2 * rank, 0),), ((),),
                                    ((2, 2),)),
                    "rows": shard(padded, tuple((row, 0) for row in rows), ((1, 0), (2, 0)),
                                  ((1, 2), (1, 2))),
                    "none": shard(of[:4 - 4 * rank].clone(), ((0, 0),) * (1 - rank),
                                  ((0, 0),) * (1 - rank), ((4, 2),) * (1 - rank))}

        def body(transport):
            saved = states(transport.rank, dtype)
            tessera_ckpt.save(self.folder, 1, saved, transport, overwrite=True)
            loaded = states(transport.rank, dtype, -1)
            tessera_ckpt.load(self.folder, loaded, transport)
            return all(torch.equal(loaded[name], saved[name]) for name in saved)

        for dtype in (torch.float32, torch.int64):  # small tensors of integers are compared
            self.assertEqual(run_ranks(2, body), [True, True])
            for name, tensor in tessera_ckpt.load(self.folder, framework="torch").items():
                self.assertEqual(tensor.tolist(), [[0, 1], [2, 3], [4, 5], [6, 7]], name)
        for wrong in (shard(torch.ones(2, 2), ((0, 0),), ((1, 0),), ((2, 2),)),
                      shard(torch.ones(2, 2), ((0, 0), (2, 0)), ((0, 0),), ((2, 2),))):
            with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "w: .*local_"):
                tessera_ckpt.save(self.folder, 2, {"w": wrong})

    def test_tensors_that_consist_of_others(self):
        """As torchao's quantized weights and optimizers do."""
        class Scaled(torch.Tensor):
            @staticmethod
            def __new__(cls, codes, scale, shape=None, context=None):
                return torch.Tensor._make_wrapper_subclass(cls, shape or codes.shape,
                                                           dtype=scale.dtype)

            def __init__(self, codes, scale, shape=None, context=None):
                self.codes, self.scale, self.context = codes, scale, context

            def __tensor_flatten__(self):
                return ["codes", "scale"], self.context

            @classmethod
            def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                raise NotImplementedError(function)

        def state(number):
            scaled, inner = (
                Scaled(torch.full(shape, number, dtype=torch.uint8), torch.tensor(0.5 * number))
                for shape in ((3, 4), (2,)))
            return {"w": scaled, "states": [inner], "pair": (inner.codes.clone(), inner)}

        restored = state(0)
        before = restored["w"]
        tessera_ckpt.save(self.folder, 1, state(6))
        tessera_ckpt.load(self.folder, restored)
        self.assertIs(restored["w"], before)
        self.assertEqual((before.codes.sum(), before.scale), (72, 3.0))
        self.assertEqual(restored["states"][0].codes.tolist(), [6, 6])
        self.assertEqual(sorted(tessera_ckpt.open(self.folder).tensors), [
            "pair.0", "pair.1.codes", "pair.1.scale", "states.0.codes", "states.0.scale", "w.codes",
            "w.scale"])

        # The others alone do not tell what the tensor is.
        def flat(number, shape=(2, 3), scale=1.0, context=(8, {"of": torch.int4})):
            return {"w": Scaled(torch.full((6,), number, dtype=torch.uint8), torch.tensor(scale),
                                shape, (*context, torch.device("cpu"), object()))}

        tessera_ckpt.save(self.folder, 2, flat(6))
        tessera_ckpt.load(self.folder, state := flat(0))
        self.assertEqual(state["w"].codes.tolist(), [6] * 6)
        for other in (flat(0, (3, 2)), flat(0, context=(8, {"of": torch.uint4})),
                      flat(0, context=(4, {"of": torch.int4}))):
            with self.assertRaisesRegex(tessera_ckpt.MismatchError, r"tensor w: saved as .*int4"):
                tessera_ckpt.load(self.folder, other)
            self.assertEqual(other["w"].codes.tolist(), [0] * 6)
        # Of NF4's context, some is that of the tensor and not of its elements.
        def told(offset, trains):
            return ({"bits": 4, "storage_offset": offset, "requires_grad": trains,
                     "device": f"cuda:{offset}"},)

        tessera_ckpt.save(self.folder, 4, flat(7, context=told(0, False)))
        tessera_ckpt.load(self.folder, state := flat(0, context=told(6, True)))
        self.assertEqual(state["w"].codes.tolist(), [7] * 6)
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, "w: the ranks have different"):
            raise run_ranks(2, lambda transport: tessera_ckpt.save(
                self.folder, 3, flat(6, (2 + transport.rank, 3)), transport))[0]

    def test_tensors_without_memory_of_their_own_are_refused_by_their_class(self):
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            fake = torch.ones(3)
        masked = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
        jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        cases = {"FakeTensor": fake, "MaskedTensor": masked, "NestedTensor": jagged}
        for kind, tensor in cases.items():
            with self.subTest(kind), self.assertRaisesRegex(
                    tessera_ckpt.UnimplementedError, rf"a\.b: the elements of a torch.*\.{kind}"):
                tessera_ckpt.save(self.folder, 1, {"a": {"b": tensor}})

        def save_in_vmap(tensor):
            with self.assertRaisesRegex(tessera_ckpt.UnimplementedError, r"a: the elements of a"):
                tessera_ckpt.save(self.folder, 1, {"a": tensor})
            return tensor

        torch.vmap(save_in_vmap)(torch.ones(2, 3))
        self.assertIsNone(tessera_ckpt.latest(self.folder))

    def test_a_negative_view_of_memory_that_would_get_other_values(self):
        tessera_ckpt.save(self.folder, 1, {"imag": torch.ones(4), "negative": torch.ones(4)})
        whole = torch.zeros(4, dtype=torch.complex64)
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, "imag, negative"):
            tessera_ckpt.load(self.folder, {"imag": whole.imag, "negative": whole.conj().imag})
        self.assertEqual(whole.abs().sum(), 0)

    def test_tied_tensors_of_which_a_rank_has_nothing(self):
        class Sharded:
            """As a DTensor, of two rows."""
            placements = ()
            shape = (2, 3)

            def __init__(self, local, row):
                self.local, self.row = local, row

            def to_local(self):
                return self.local

            def __create_chunk_list__(self):
                return [types.SimpleNamespace(offsets=(self.row, 0))]

        def state(transport, number):
            rows = 1 if transport.rank < 2 else 0
            locals_ = [torch.full((rows, 3), number + i) for i in range(2)]
            one, two = (Sharded(local, min(transport.rank, 2)) for local in locals_)
            return {"a": one, "b": two, "a again": one, "b again": two}

        def save(transport):
            tessera_ckpt.save(self.folder, 1, state(transport, 7), transport)

        def load(transport):
            restored = state(transport, 0)
            tessera_ckpt.load(self.folder, restored, transport)
            self.assertTrue((restored["a"].local == 7).all())
            self.assertTrue((restored["b again"].local == 8).all())

        self.assertEqual(run_ranks(4, save), [None] * 4)
        self.assertEqual(run_ranks(4, load), [None] * 4)

    def test_optimizers_and_schedules(self):
        def make(seed):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 3))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
            warmup = torch.optim.lr_scheduler.LinearLR(optimizer)
            decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
            return model, optimizer, torch.optim.lr_scheduler.SequentialLR(
                optimizer, [warmup, decay], [2])

        def train(parts):
            for _ in range(3):
                parts[1].zero_grad()
                parts[0](torch.ones(2, 3)).square().sum().backward()
                parts[1].step()
                parts[2].step()

        def state(parts):
            found = [part.state_dict() for part in parts]
            return {"model": found[0], "optimizer": found[1], "scheduler": found[2],
                    "rng": torch.get_rng_state()}

        one, two = make(1), make(2)
        train(one)
        train(two)
        saved, restored = state(one), state(two)
        self.restore(saved, restored)
        for part, name in zip(two, ("model", "optimizer", "scheduler")):
            part.load_state_dict(restored[name])
        train(one)
        train(two)
        self.assertEqual(difference(state(one), {**state(two), "rng": saved["rng"]}), "")

    def test_what_dcp_restores_from_its_own_files_it_restores_from_ours(self):
        import torch.distributed.checkpoint as dcp
        from tessera_ckpt.dcp import Reader, Writer
        logging.disable(logging.WARNING)
        counts = collections.Counter()

        def outcome(seed, save, load):
            description = States(seed, for_torch=True).description()
            state = build(description, Memory(seed))
            restored = build(description, Memory(-seed), scramble=True)
            try:
                save(state)
                load(restored)
            except BaseException:  # torch's CheckpointException is none of the others
                return "refused"
            return difference(state, restored) or "restored"

        for seed in range(SEED, SEED + CASES):
            states = States(seed, for_torch=True)
            states.description()
            if states.refused:
                continue  # torch pickles some of these
            theirs, ours = f"{self.folder}/theirs/{seed}", f"{self.folder}/step-{seed:08d}"
            expected = outcome(
                seed, lambda state: dcp.save(state, checkpoint_id=theirs, no_dist=True),
                lambda state: dcp.load(state, checkpoint_id=theirs, no_dist=True))
            found = outcome(
                seed, lambda state: dcp.save(state, storage_writer=Writer(ours, group=ALONE),
                                             no_dist=True),
                lambda state: dcp.load(state, storage_reader=Reader(ours, group=ALONE),
                                       no_dist=True))
            self.assertIn(found, ("restored", "refused"), seed)
            self.assertTrue(found == "restored" or expected != "restored", seed)
            counts[found] += 1
            crossed = outcome(seed, lambda state: None,
                              lambda state: tessera_ckpt.load(ours, state))
            self.assertIn(crossed, ("restored", "refused"), seed)
            counts[f"{crossed} by tessera_ckpt.load"] += 1
        print(f"dcp.save and dcp.load: {dict(counts)}")
        self.assertGreater(counts["restored"], CASES // 10)


@unittest.skipUnless(jax, "JAX is not installed")
class JaxTest(FolderCase):
    def test_states_of_optax(self):
        """Training goes on from what is loaded as it would have without the load."""
        import optax
        schedule = optax.warmup_cosine_decay_schedule(0, 1e-2, 3, 10)
        by_name = {"dense": "adam", "scale": "sgd"}
        for number, optimizer in enumerate((
                optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule)),
                optax.MultiSteps(optax.sgd(0.1, momentum=0.9), 2), optax.adafactor(1e-3),
                optax.inject_hyperparams(optax.adam)(learning_rate=schedule),
                optax.apply_if_finite(optax.lion(1e-3), 3),
                optax.multi_transform({"adam": optax.adam(1e-3), "sgd": optax.sgd(1e-2)},
                                      by_name))):
            def make(seed):
                keys = jax.random.split(jax.random.PRNGKey(seed))
                weights = {"dense": {"kernel": jax.random.normal(keys[0], (4, 3))},
                           "scale": jax.random.normal(keys[1], (3,)).astype(jnp.float16)}
                return train({"weights": weights, "state": optimizer.init(weights), "rng": keys})

            def loss(weights, data):
                return jnp.sum((data @ weights["dense"]["kernel"]) * weights["scale"]) ** 2

            def train(state):
                for step in range(3):
                    gradients = jax.grad(loss)(state["weights"], jnp.full((2, 4), step + 1.0))
                    updates, state["state"] = optimizer.update(gradients, state["state"],
                                                               state["weights"])
                    state["weights"] = optax.apply_updates(state["weights"], updates)
                return state

            saved, restored = make(1), make(2)
            before = restored["weights"]["dense"]["kernel"]
            elements = np.array(before)
            self.folder = f"{self.folder}/{number}"
            self.restore(saved, restored)
            self.assertEqual(jax.tree_util.tree_structure(saved),
                             jax.tree_util.tree_structure(restored))
            np.testing.assert_array_equal(elements, before)  # arrays of JAX do not change
            self.assertEqual(difference(train(saved), train(restored)), "")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        SEED = int(sys.argv.pop(1))
    if len(sys.argv) > 1:
        CASES = int(sys.argv.pop(1))
    unittest.main()
