#!/usr/bin/env python3
"""The package with numpy: state in and out, under other shardings, damaged, killed."""

import math
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import unittest

import numpy as np
import tessera_ckpt
from gpt2_files import write_gpt2, write_tokenizer
from ranks import run_ranks
from scratch import Case
from tessera_ckpt import Box, FlatShard

DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
          "uint16", "uint32", "uint64")


def crc32c(data):
    value = 0xffffffff
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82f63b78 if value & 1 else 0)
    return value ^ 0xffffffff


def mark_diverged(path):
    """Makes the manifest say that the state is not finite, as the trainer's would: in protobuf, the
    bytes of a field are added at the end."""
    manifest = pathlib.Path(path) / "manifest.pb"
    payload = manifest.read_bytes()[32:] + bytes([5 << 3 | 2, 4, 8 << 3 | 2, 2, 2 << 3, 1])
    header = manifest.read_bytes()[:16] + struct.pack("<QI", len(payload), crc32c(payload))
    manifest.write_bytes(header + struct.pack("<I", crc32c(header)) + payload)


def data_file(path):
    return next(pathlib.Path(path).glob("*.safetensors"))


class StateTest(Case):
    def test_what_is_saved_is_loaded(self):
        rng = np.random.default_rng(3)
        arrays = {name: (rng.random((3, 5)) * 100).astype(name) for name in DTYPES}
        arrays.update(scalar=np.array(2.5), empty=np.empty((0, 4)), long=rng.random(100_003))
        values = {"step": 12, "lr": 1e-3, "name": "täst", "none": None, "on": True,
                  "betas": (0.9, 0.95), "list": [1, [2.5, "x"]], "raw": b"\0\xff", "inf": math.inf,
                  "big": 1 << 80, "numpy": np.float32(0.5),
                  "groups": [{"lr": 0.1, "params": [0, 1]}]}
        report = self.save({"model": arrays, "trainer": values}, 12)
        self.assertEqual(report.step, 12)
        self.assertTrue(os.path.exists(report.path + "/manifest.pb"))
        zeros = {name: np.zeros_like(array) for name, array in arrays.items()}
        state = {"model": zeros, "trainer": {name: 0 for name in values}}
        state["trainer"]["groups"] = [{"lr": 0, "params": []}]
        loaded = tessera_ckpt.load(self.folder, state, verify_digests=True)
        self.assertEqual((loaded.step, loaded.missing, loaded.unexpected), (12, [], []))
        for name, array in arrays.items():
            self.assertIs(state["model"][name], zeros[name])
            self.assertEqual(array.tobytes(), zeros[name].tobytes(), name)
        self.assertEqual(state["trainer"], values)
        self.assertIsInstance(state["trainer"]["betas"], tuple)
        self.assertIsInstance(state["trainer"]["numpy"], np.float32)

    def test_dtypes_are_converted_unless_they_must_not(self):
        self.save({"a": np.arange(5, dtype="f4")})
        target = {"a": np.zeros(5, "f8")}
        tessera_ckpt.load(self.folder, target)
        np.testing.assert_array_equal(target["a"], np.arange(5))
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, "tensor a"):
            tessera_ckpt.load(self.folder, target, exact_dtypes=True)

    def test_all_mismatches_are_told_and_nothing_is_changed(self):
        self.save({"a": np.ones(3), "b": np.ones(3), "n": 5})
        state = {"a": np.zeros(4), "c": np.zeros(3), "n": 7}
        with self.assertRaises(tessera_ckpt.MismatchError) as caught:
            tessera_ckpt.load(self.folder, state)
        for name in "abc":
            self.assertIn(f"tensor {name}", str(caught.exception))
        self.assertEqual((state["a"].sum(), state["c"].sum(), state["n"]), (0, 0, 7))
        with self.assertRaises(tessera_ckpt.MismatchError) as caught:
            tessera_ckpt.load(self.folder, {"a": np.zeros(4), "c": np.zeros(3), "m": 1})
        for line in ("tensor a: saved with shape [3], wanted with shape [4]",
                     "tensor b: saved, not wanted", "tensor c: wanted, not saved",
                     "value m: wanted, not saved", "value n: saved, not wanted",
                     "what is saved, not wanted: allow_unexpected= leaves it out, and a load "
                     "without a state returns it"):
            self.assertIn(line, str(caught.exception))
        with self.assertRaisesRegex(tessera_ckpt.MismatchError,
                                    "1 leaf does not match:\n  value a: wanted, saved as a tensor"):
            tessera_ckpt.load(self.folder, {"a": 1, "b": np.zeros(3), "n": 1})
        state = {"a": np.zeros(3), "c": np.zeros(3), "m": 1}
        report = tessera_ckpt.load(self.folder, state, allow_missing=True, allow_unexpected=True)
        self.assertEqual((report.missing, report.unexpected), (["c", "m"], ["b", "n"]))
        self.assertEqual(state["a"].sum(), 3)

    def test_leaves_of_named_branches_may_be_missing(self):
        self.save({"model": {"a": np.ones(3)}, "step": 1})
        extra = {"gate": np.zeros(2), "scale": 5, "lines": list(range(50_000))}
        wanted = {"model": {"a": np.zeros(3)}, "extra": extra, "step": 0}
        for branches in ([], ["model"], ["extra.gat"], ["gate"]):
            with self.assertRaisesRegex(tessera_ckpt.MismatchError, "extra.gate: wanted, not sav"):
                tessera_ckpt.load(self.folder, wanted, allow_missing=branches)
        self.assertEqual((wanted["model"]["a"].sum(), wanted["step"]), (0, 0), "nothing changes")
        report = tessera_ckpt.load(self.folder, wanted, allow_missing=["extra"])
        self.assertEqual(sorted(report.missing), ["extra.gate", "extra.lines", "extra.scale"])
        self.assertEqual((wanted["model"]["a"].sum(), wanted["step"], extra["scale"]), (3, 1, 5))
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, "tensor model.b: wanted, not in"):
            tessera_ckpt.load(self.folder, {**wanted, "model": {"a": np.ones(3), "b": np.ones(1)}},
                              allow_missing=["extra"])
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, "value model.a: wanted, saved as"):
            tessera_ckpt.load(self.folder, {"model": {"a": 1}, "step": 1}, allow_missing=["model"])
        with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "allow_missing: expected"):
            tessera_ckpt.load(self.folder, wanted, allow_missing="extra")

    def test_leaves_of_named_branches_may_be_left_out(self):
        table = np.ones(4)
        self.save({"model": {"a": np.ones(3), "b": np.ones(3), "wte": table, "head": table},
                   "random": {"c": np.ones(2), "n": 5, "long": list(range(50_000))}})
        model = {"a": np.zeros(3), "head": np.zeros(4)}
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, "tensor model.b: saved, not want"):
            tessera_ckpt.load(self.folder, {"model": model}, allow_unexpected=["random"])
        self.assertEqual((model["a"].sum(), model["head"].sum()), (0, 0), "nothing is changed")
        model["b"] = np.zeros(3)
        with self.assertRaises(tessera_ckpt.MismatchError) as caught:
            tessera_ckpt.load(self.folder, {"model": model}, allow_unexpected=["model"])
        for leaf in ("tensor random.c", "value random.n", "tensor random.long"):
            self.assertIn(f"{leaf}: saved, not wanted", str(caught.exception))
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, "value random.n: saved"):
            tessera_ckpt.load(self.folder, {"model": model}, allow_unexpected=[])
        for second in ("head", "wte"):  # of one tensor
            state = {"model": {"a": np.zeros(3), "b": np.zeros(3), second: np.zeros(4)}}
            report = tessera_ckpt.load(self.folder, state, allow_unexpected=["random"])
            self.assertEqual(sum(map(np.sum, state["model"].values())), 10)
            self.assertEqual(set(report.unexpected), {"random.c", "random.n", "random.long"})

        def load(transport):  # each rank wants a part
            state = {"model": {"ab"[transport.rank]: np.zeros(3), "wte": np.zeros(4)}}
            return tessera_ckpt.load(self.folder, state, transport, allow_unexpected=["random"])

        self.assertEqual([type(r) for r in run_ranks(2, load)], [tessera_ckpt.LoadReport] * 2)
        with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "allow_unexpected"):
            tessera_ckpt.load(self.folder, {"model": model}, allow_unexpected="random")
        for all_of_them in ({"allow_unexpected": 1}, {"strict": False, "allow_unexpected": []}):
            report = tessera_ckpt.load(self.folder, {"model": {"a": np.zeros(3)}}, **all_of_them)
            self.assertIn("model.b", report.unexpected)

        def differ(transport):
            allowed = [True, ["model", "random"]][transport.rank]
            return tessera_ckpt.load(self.folder, {"model": {"a": np.zeros(3)}}, transport,
                                     allow_unexpected=allowed)

        for error in run_ranks(2, differ):
            self.assertIn("not the same on all ranks", str(error))

    def test_flat_parts_and_boxes(self):
        tensor = np.arange(7 * 5 * 3, dtype="f4").reshape(7, 5, 3)
        flat = tensor.reshape(-1)
        cuts = [0, 17, 18, 60, 105]

        def save(transport):
            begin, end = cuts[transport.rank:transport.rank + 2]
            part = FlatShard(flat[begin:end], begin, tensor.shape)
            return tessera_ckpt.save(self.folder, 1, {"w": part, "n": 5}, transport)

        self.assertEqual([type(r) for r in run_ranks(4, save)], [tessera_ckpt.SaveReport] * 4)
        whole = {"w": np.zeros_like(tensor), "n": 9}
        tessera_ckpt.load(self.folder, whole)
        np.testing.assert_array_equal(whole["w"], tensor)
        self.assertEqual(whole["n"], 5)

        def load(transport):
            rows = np.zeros((7, 5 // 3 + (transport.rank < 2), 3), "f4")
            first = [0, 2, 4][transport.rank]
            state = {"w": Box(rows, (0, first, 0), tensor.shape), "n": 0}
            tessera_ckpt.load(self.folder, state, transport, verify_digests=True)
            np.testing.assert_array_equal(rows, tensor[:, first:first + rows.shape[1]])

        self.assertEqual(run_ranks(3, load), [None] * 3)

    def test_one_tensor_or_a_box_of_it(self):
        tensor = np.arange(24, dtype="i8").reshape(4, 6)
        self.save({"w": tensor}, entries={"log": b"abc"}, program="mine 1.0")
        checkpoint = tessera_ckpt.open(self.folder)
        self.assertEqual((checkpoint.step, checkpoint.program), (1, "mine 1.0"))
        self.assertEqual(checkpoint.entry("log"), b"abc")
        self.assertEqual(checkpoint.tensors["w"].shape, (4, 6))
        np.testing.assert_array_equal(checkpoint.read("w"), tensor)
        out = np.zeros((2, 3), "i8").T
        box = checkpoint.read("w", out, offset=(1, 2), shape=(3, 2))
        self.assertIs(box, out)
        np.testing.assert_array_equal(out, tensor[1:4, 2:4])
        for bad in (dict(offset=(1, 2)), dict(offset=(3, 3), shape=(3, 2)),
                    dict(offset=(-1, 0), shape=(1, 1)), dict(offset=(0,), shape=(1,)),
                    dict(offset=(0, 0), shape=(-1, 1)), dict(out=np.zeros(3)),
                    dict(out="text"), dict(offset=(0, 1 << 70), shape=(1, 1))):
            with self.assertRaises(tessera_ckpt.InvalidArgumentError, msg=bad):
                checkpoint.read("w", **bad)
        with self.assertRaises(tessera_ckpt.NotFoundError):
            checkpoint.read("v")
        checkpoint.close()
        with self.assertRaises(tessera_ckpt.InvalidArgumentError):
            checkpoint.read("w")


class FolderTest(Case):
    def test_steps(self):
        self.assertIsNone(tessera_ckpt.latest(self.folder))
        self.assertEqual(tessera_ckpt.list_checkpoints(self.folder), [])
        for step in (3, 1, 20):
            self.save({"a": np.full(3, step)}, step)
        self.assertEqual([i.step for i in tessera_ckpt.list_checkpoints(self.folder)], [1, 3, 20])
        self.assertEqual(tessera_ckpt.latest(self.folder).step, 20)
        state = {"a": np.zeros(3, int)}
        tessera_ckpt.load(self.folder + "/step-00000003", state)
        self.assertEqual(state["a"].tolist(), [3, 3, 3])
        self.assertEqual(tessera_ckpt.Folder(self.folder).at(1).step, 1)
        with self.assertRaisesRegex(tessera_ckpt.AlreadyExistsError, "step-00000003"):
            self.save({"a": np.ones(3)}, 3)
        with self.assertRaises(tessera_ckpt.NotFoundError):
            tessera_ckpt.load(self.folder + "/step-00000004", state)
        tessera_ckpt.Folder(self.folder).prune(2)
        self.assertEqual([i.step for i in tessera_ckpt.list_checkpoints(self.folder)], [3, 20])

    def test_a_folder_is_its_newest_checkpoint_of_a_run_that_had_not_diverged(self):
        for step in (1, 2):
            self.save({"w": np.full(3, step)}, step)
        path = f"{self.folder}/step-00000002"
        mark_diverged(path)
        skipped = f"{path}: the run had diverged at step 2: the state is not finite"
        state = {"w": np.zeros(3, int)}
        with self.assertLogs("tessera_ckpt", "WARNING") as logged:
            self.assertEqual(tessera_ckpt.load(self.folder, state).step, 1)
        self.assertEqual((state["w"][0], len(logged.output)), (1, 1))
        self.assertIn(skipped, logged.output[0])
        with self.assertLogs("tessera_ckpt", "WARNING") as logged:
            self.assertIn(skipped, tessera_ckpt.open(self.folder).notes[0])
            tessera_ckpt.load(self.folder)
            results = run_ranks(2, lambda transport: tessera_ckpt.load(
                self.folder, {"w": np.zeros(3, int)}, transport).step)
        self.assertEqual((results, len(logged.output)), ([1, 1], 3))
        with self.assertLogs("tessera_ckpt") as logged:
            self.assertEqual(tessera_ckpt.load(path)["w"][0], 2)  # it is named
        self.assertNotIn("diverged", str(logged.output))
        self.assertEqual(tessera_ckpt.latest(self.folder).step, 2)
        mark_diverged(f"{self.folder}/step-00000001")
        with self.assertLogs("tessera_ckpt", "WARNING") as logged:
            self.assertEqual(tessera_ckpt.load(self.folder)["w"][0], 2)
        self.assertIn("holds only checkpoints of a run that had diverged", logged.output[0])

    def test_a_later_step_that_cannot_be_read_is_not_ignored(self):
        self.save({"a": np.ones(3)}, 4)
        later = pathlib.Path(self.folder) / "step-00000003"
        later.mkdir()
        (later / "manifest.pb.fenced").touch()
        (later / "manifest.pb").symlink_to("manifest.pb")
        self.assertEqual(tessera_ckpt.latest(self.folder).step, 4)
        later.rename(pathlib.Path(self.folder) / "step-00000005")
        for find in (tessera_ckpt.latest, tessera_ckpt.open):
            with self.assertRaisesRegex(tessera_ckpt.TesseraError, "step-00000005"):
                find(self.folder)

    def test_overwrite(self):
        directory = self.save({"a": np.zeros(3)}, 7).path
        for value in (1, 2):
            self.save({"a": np.full(3, value)}, 7, overwrite=True)
            self.assertEqual(tessera_ckpt.load(self.folder)["a"].tolist(), [value] * 3)
            self.assertEqual(len(os.listdir(directory)), 2)
        with tessera_ckpt.AsyncSaver(self.folder, overwrite=True) as saver:
            saver.save(7, {"a": np.full(3, 3)})
            saver.save(7, {"a": np.full(3, 4)})
        # One that is open is read to its end.
        opened = tessera_ckpt.open(self.folder)
        self.save({"a": np.full(3, 5)}, 7, overwrite=True)
        self.assertEqual(opened.read("a").tolist(), [4] * 3)
        opened.close()
        self.assertTrue(tessera_ckpt.verify(self.folder, digests=True))
        self.save({"a": np.full(3, 6)}, 7, overwrite=True)
        self.assertEqual(len(os.listdir(directory)), 2)

    def test_overwrite_in_a_group(self):
        def save(transport, value, overwrite):
            rows = Box(np.full((2, 3), value), (2 * transport.rank, 0), (6, 3))
            tessera_ckpt.save(self.folder, 7, {"a": rows}, transport, overwrite=overwrite)

        for value in (1, 2):
            self.assertEqual(run_ranks(3, lambda each: save(each, value, True)), [None] * 3)
        for error in run_ranks(3, lambda each: save(each, 3, each.rank == 1)):
            self.assertIsInstance(error, tessera_ckpt.InvalidArgumentError)
            self.assertIn("rank 1 overwrites", str(error))
        self.assertEqual(tessera_ckpt.load(self.folder)["a"].tolist(), [[2] * 3] * 6)

    def test_diff_and_convert(self):
        state = {"model": {"w": np.arange(6.0).reshape(2, 3)}, "n": 5}
        self.save(state, 1)
        state["model"]["w"][1, 1] += 1
        self.save(state, 2)
        one, two = (f"{self.folder}/step-0000000{n}" for n in (1, 2))
        self.assertTrue(tessera_ckpt.diff(one, one, data=True))
        found = tessera_ckpt.diff(one, two, data=True)
        self.assertFalse(found)
        self.assertIn("1 element differs", found.tensors["model.w"])
        for to in ("torch", "dcp"):
            other = f"{self.folder}.{to}"
            seen = []
            report = tessera_ckpt.convert(two, other, to, progress=lambda *n: seen.append(n))
            self.assertEqual(report.format, to)
            self.assertTrue(seen)
            foreign = tessera_ckpt.open_foreign(other)
            self.assertEqual(foreign.format, to)
            with self.assertRaisesRegex(tessera_ckpt.NotFoundError, "open_foreign.*to=\"tessera\""):
                tessera_ckpt.load(other, {"model": {"w": np.zeros((2, 3))}})
            np.testing.assert_array_equal(foreign.read("model.w"), state["model"]["w"])
            loaded = {"model": {"w": np.zeros((2, 3))}}
            foreign.load(loaded, allow_unexpected=True)
            np.testing.assert_array_equal(loaded["model"]["w"], state["model"]["w"])
            self.assertTrue(tessera_ckpt.diff(two, other, data=True))
            self.assertTrue(tessera_ckpt.verify(other))
            back = tessera_ckpt.convert(other, f"{self.folder}.{to}.back", "tessera")
            self.assertEqual(tessera_ckpt.diff(two, back.path, data=True).tensors, {})

    def test_conversions_keep_values_and_nesting(self):
        def state(fill, one):
            return {"model": {"a.weight": np.full((2, 3), fill), "b": [np.full(2, fill)]},
                    "optimizer": {
                        "state": {0: {"step": 3.0 * one, "exp_avg": np.full((2, 3), fill)}},
                        "param_groups": [{"lr": 1e-3 * one, "betas": (0.9 * one, 0.95)}]},
                    "scheduler": {"last_epoch": 4 * one, "raw": b"\0\xff" * one, "none": None},
                    "epoch": 3 * one}
        source = self.save(state(5.0, 1), 1000).path
        for i, to in enumerate(("torch", "dcp", "torch", "tessera")):
            report = tessera_ckpt.convert(source, f"{self.folder}.{i}", to)
            self.assertEqual(report.notes, [])
            source = report.path
            loaded = state(0.0, 0)
            report = tessera_ckpt.open_foreign(source).load(loaded)
            self.assertEqual(report.missing, [])
            np.testing.assert_equal(loaded, state(5.0, 1))
            with self.assertRaisesRegex(tessera_ckpt.MismatchError, "value lr: wanted, not saved"):
                tessera_ckpt.open_foreign(source).load({**loaded, "lr": 0.0})
        loaded = state(0.0, 0)
        self.assertEqual(tessera_ckpt.load(source, loaded).step, 1000)
        np.testing.assert_equal(loaded, state(5.0, 1))
        self.assertIsInstance(loaded["optimizer"]["param_groups"][0]["betas"], tuple)

    def test_a_conversion_takes_the_tokenizer_along(self):
        exported = write_gpt2(f"{self.folder}.gpt2", vocab_size=300)
        tokenizer = write_tokenizer(f"{self.folder}.tokenizer")
        new = f"{self.folder}.hf"
        tessera_ckpt.convert(exported, new, "hf", tokenizer=tokenizer)
        self.assertIn("vocab", (pathlib.Path(new) / "tokenizer.json").read_text())
        tessera_ckpt.convert(new, f"{new}.gguf", "gguf", tokenizer=pathlib.Path(new))
        self.assertIn(b"tokenizer.ggml.tokens", pathlib.Path(f"{new}.gguf").read_bytes())
        small = write_gpt2(f"{self.folder}.small", vocab_size=255)
        for source, to, path, message in (
                (small, "hf", tokenizer, "258 ids, but the model has only 255"),
                (new, "torch", tokenizer, "is written in the formats hf and gguf, not in torch"),
                (new, "tessera", tokenizer, "for other formats than tessera"),
                (new, "hf", f"{new}.none", "No such file")):
            with self.subTest(message), self.assertRaisesRegex(tessera_ckpt.TesseraError, message):
                tessera_ckpt.convert(source, f"{self.folder}.bad", to, tokenizer=path)

    def test_a_flipped_byte_is_refused_with_its_place(self):
        path = self.save({"a": np.arange(500_000.0), "b": np.ones(3)}).path
        file = data_file(path)
        for offset in (3_000_000, 700_001, 9, file.stat().st_size - 1):
            raw = bytearray(file.read_bytes())
            raw[offset] ^= 0x10
            file.write_bytes(raw)
            state = {"a": np.zeros(500_000), "b": np.zeros(3)}
            with self.assertRaises(tessera_ckpt.DataLossError) as caught:
                tessera_ckpt.load(self.folder, state, allow_unexpected=True)
            self.assertIn(file.name, str(caught.exception))
            self.assertRegex(str(caught.exception), r"offset \d+")
            report = tessera_ckpt.verify(self.folder)
            self.assertFalse(report)
            place = report.damage[0]
            self.assertEqual(pathlib.Path(place.file).name, file.name)
            self.assertLessEqual(place.offset, offset)
            self.assertLess(offset - place.offset, 1 << 20)
            with self.assertRaisesRegex(tessera_ckpt.DataLossError, file.name):
                report.raise_if_damaged()
            raw[offset] ^= 0x10
            file.write_bytes(raw)
        self.assertTrue(tessera_ckpt.verify(self.folder, digests=True))
        manifest = pathlib.Path(path) / "manifest.pb"
        raw = bytearray(manifest.read_bytes())
        raw[40] ^= 1
        manifest.write_bytes(raw)
        with self.assertRaisesRegex(tessera_ckpt.DataLossError, "manifest.pb"):
            tessera_ckpt.open(self.folder)

    def test_progress(self):
        seen = []
        state = {"a": np.arange(3_000_000.0)}
        self.save(state, progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(sorted(seen), seen)
        self.assertEqual(seen[-1][0], seen[-1][1])
        seen.clear()
        tessera_ckpt.load(self.folder, state, progress=lambda *n: seen.append(n))
        self.assertEqual(seen[-1], (24_000_000, 24_000_000))

        class Bar:
            """As tqdm's."""
            total = n = 0

            def update(self, more):
                self.n += more

            def reset(self, total):
                self.n, self.total = 0, total

        made = []

        class Maker(Bar):
            """As tqdm itself."""

            def __init__(self, **options):
                self.options = options
                made.append(self)

            def close(self):
                self.options = None

        tessera_ckpt.load(self.folder, state, progress=Maker)
        self.assertEqual((made[0].n, made[0].options), (24_000_000, None))
        bar = Bar()
        tessera_ckpt.verify(self.folder, progress=bar)
        self.assertEqual((bar.n, bar.total), (bar.total, bar.n))
        self.assertGreater(bar.n, 24_000_000)

        def fails(*_):
            raise KeyError("mine")
        with self.assertLogs("tessera_ckpt", "WARNING") as logged:
            self.save(state, 2, progress=fails)
            with tessera_ckpt.AsyncSaver(f"{self.folder}.more", progress=fails) as saver:
                saver.save(1, state)
        self.assertEqual(len(logged.output), 2)
        for line in logged.output:
            self.assertIn("KeyError('mine')", line)
        self.assertEqual(tessera_ckpt.latest(self.folder).step, 2)

        def interrupted(*_):
            raise KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt):
            self.save(state, 3, progress=interrupted)


class BadInputTest(Case):
    """One clear exception each, and nothing is written."""

    def test_states(self):
        itself = {}
        itself["again"] = itself
        nested = []
        nested.append(nested)
        cases = {
            "no dict": [1], "none": None, "set": {"a": {1}}, "object": {"a": object()},
            "key": {("a", 1): np.ones(3)}, "bytes key": {b"a": 1},
            "same": {"a": {"b": 1}, "a.b": 2},
            "same tensors": {"a": {"b": np.ones(2)}, "a.b": np.ones(2)}, "itself": itself,
            "list itself": {"a": nested}, "complex": {"a": np.ones(3, complex)},
            "objects": {"a": np.array([object()])}, "texts": {"a": np.array(["x"])},
            "swapped": {"a": np.ones(3, ">f4")}, "dates": {"a": np.array("2020", "M8[D]")},
            "name": {"": np.ones(3)}, "control": {"a\x01": np.ones(3)}, "nul": {"a\0b": np.ones(3)},
            "surrogate": {"a\ud800": np.ones(3)}, "reserved": {"__metadata__": np.ones(3)},
            "boxes": {"a": Box(np.ones(3), (4,), (5,))},
            "dims": {"a": Box(np.ones(3), (0, 0), (5, 5))},
            "negative": {"a": Box(np.ones(3), (-1,), (5,))},
            "flat": {"a": FlatShard(np.ones(3), 4, (5,))},
            "flat dims": {"a": FlatShard(np.ones((3, 1)), 0, (5,))},
            "flat begin": {"a": FlatShard(np.ones(3), -1, (5,))},
            "hole": {"a": Box(np.ones(3), (0,), (5,))},
        }
        for name, state in cases.items():
            with self.subTest(name), self.assertRaises(tessera_ckpt.TesseraError) as caught:
                self.save(state)
            self.assertGreater(len(str(caught.exception)), 5)
        self.assertIsNone(tessera_ckpt.latest(self.folder))

    def test_arguments(self):
        good = {"a": np.ones(3)}
        for step in (-1, 1.5, "1", None, 1 << 64):
            with self.subTest(step), self.assertRaises(tessera_ckpt.InvalidArgumentError):
                self.save(good, step)
        for options in (dict(io_threads=-1), dict(io_threads=1 << 40), dict(timeout_seconds=-1.0),
                        dict(timeout_seconds=math.nan), dict(group="x"), dict(progress=3),
                        dict(entries={"a": "text"}), dict(entries={"tessera_ckpt.values": b""}),
                        dict(entries={"a\0": b""}), dict(s3_endpoint=3)):
            with self.subTest(options), self.assertRaises(tessera_ckpt.InvalidArgumentError):
                self.save(good, **options)
        for folder in (None, 3, "", "a\0b", "/dev/null/x", "s3://", "ftp://x"):
            with self.subTest(folder), self.assertRaises(tessera_ckpt.TesseraError):
                tessera_ckpt.save(folder, 1, good)
        self.save(good)
        new = self.folder + "2"
        for bad in (lambda: tessera_ckpt.convert(self.folder, new, "word"),
                    lambda: tessera_ckpt.convert(self.folder, new, "torch", dtype="f99"),
                    lambda: tessera_ckpt.convert(self.folder, new, "tessera", topology="many"),
                    lambda: tessera_ckpt.convert(self.folder, self.folder, "torch"),
                    lambda: tessera_ckpt.open_foreign(self.folder, "word"),
                    lambda: tessera_ckpt.open("/no/such/folder"),
                    lambda: tessera_ckpt.verify("/no/such/folder"),
                    lambda: tessera_ckpt.diff(self.folder, "/no/such/folder"),
                    lambda: tessera_ckpt.verify(self.folder, threads=-1),
                    lambda: tessera_ckpt.Folder(self.folder).prune(0),
                    lambda: tessera_ckpt.Folder(self.folder).at(-5),
                    lambda: tessera_ckpt.load(self.folder, {"a": np.ones(3).tobytes()})):
            with self.assertRaises(tessera_ckpt.TesseraError):
                bad()


class KilledTest(Case):
    def test_a_process_that_is_killed_leaves_the_old_or_the_new_checkpoint(self):
        program = textwrap.dedent("""
            import sys, numpy as np, tessera_ckpt
            print("ready", flush=True)
            for step in range(1, 1000):
                tessera_ckpt.save(sys.argv[1], step, {"w": np.full(3_000_000, step), "s": step})
                print(step, flush=True)
        """)
        rng = random.Random(7)
        for attempt in range(6):
            folder = f"{self.folder}/{attempt}"
            process = subprocess.Popen([sys.executable, "-c", program, folder],
                                       stdout=subprocess.PIPE, text=True)
            process.stdout.readline()
            time.sleep(rng.uniform(0.05, 0.6))
            process.send_signal(signal.SIGKILL)
            done = process.stdout.read().split()
            process.wait()
            process.stdout.close()
            found = tessera_ckpt.latest(folder)
            if done:
                self.assertGreaterEqual(found.step, int(done[-1]))
            if found is None:
                continue
            self.assertTrue(tessera_ckpt.verify(folder, digests=True))
            state = {"w": np.zeros(3_000_000, int), "s": 0}
            tessera_ckpt.load(folder, state)
            self.assertEqual((state["w"][0], state["w"][-1], state["s"]), (found.step,) * 3)
            tessera_ckpt.save(folder, found.step + 1, state)  # over what the dead one left

    def test_threads(self):
        """Several threads save and load at once."""
        failed = []

        def run(number):
            try:
                state = {"w": np.full(50_000, number)}
                for step in range(4):
                    tessera_ckpt.save(f"{self.folder}/{number}", step, state)
                    target = {"w": np.zeros(50_000, int)}
                    tessera_ckpt.load(f"{self.folder}/{number}", target)
                    assert target["w"][-1] == number
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])


if __name__ == "__main__":
    unittest.main()
