#!/usr/bin/env python3
"""Large values beside tensors, and states of torch that have them, saved and loaded."""

import array
import collections
import dataclasses
import datetime
import enum
import fractions
import json
import logging
import math
import os
import pathlib
import random
import struct
import unittest

import numpy as np
import tessera_ckpt
from generated_states import difference, torch
from ranks import run_ranks
from scratch import Case


def bits_of(numbers):
    return array.array("d", numbers).tobytes()


class LargeValuesTest(Case):
    """They go through the data files."""

    def setUp(self):
        super().setUp()
        rng = random.Random(7)
        odd = struct.unpack("3d", struct.pack("3Q", 0x7FF8_0000_0000_0123, 0xFFF0_0000_0000_0001,
                                              1 << 63))
        self.packed = {
            "ints": [rng.randrange(-(1 << 63), 1 << 63) for _ in range(20_000)],
            "floats": [*odd, math.inf, *(rng.random() for _ in range(20_000))],
            "tuple": tuple(range(20_000)), "text": "täst\ud800\0" * 20_000,
            "raw": rng.randbytes(300_000), "array": bytearray(rng.randbytes(70_000)),
            "items": [rng.randbytes(n % 500) for n in range(1_000)],
            "two": (rng.randbytes(70_000), b"")}
        self.others = {
            "truths": [True] * 20_000, "mixed": [1, True] * 10_000, "both": [1, 1.0] * 10_000,
            "large": [1 << 63] + [1] * 20_000, "nested": [[[n] * 99] for n in range(500)],
            "texts": ["ä"] * 20_000, "numpy": [np.int64(1)] * 9_000, "short": [1, 2]}
        self.state = {"w": np.ones(3), "loader": {**self.packed, **self.others},
                      "@[0": b"x" * 70_000, "__metadata__": b"y" * 70_000}

    def check(self, found):
        self.assertEqual(difference(self.state, found), "")
        self.assertEqual(bits_of(found["loader"]["floats"]), bits_of(self.packed["floats"]))
        found["loader"]["array"].append(1)  # nothing else has its memory

    def test_they_come_back_with_their_types(self):
        path = self.save(self.state).path
        self.assertLess(os.path.getsize(path + "/manifest.pb"), 1_500_000)
        self.check(tessera_ckpt.load(self.folder, framework="numpy"))
        target = {"w": np.zeros(3), "loader": dict.fromkeys(self.state["loader"], 0),
                  "@[0": None, "__metadata__": None}
        report = tessera_ckpt.load(self.folder, target, verify_digests=True)
        self.assertEqual((report.missing, report.unexpected), ([], []))
        self.check(target)
        checkpoint = tessera_ckpt.open(self.folder)
        self.assertEqual(list(checkpoint.tensors), ["w"])
        self.assertEqual(checkpoint.values["loader.raw"], self.packed["raw"])
        self.assertEqual(checkpoint.values.keys(), {"@[0", "__metadata__"} | {
            f"loader.{name}" for name in self.state["loader"]})
        with tessera_ckpt.AsyncSaver(self.folder) as saver:
            copies = {**self.state["loader"], "array": bytearray(self.packed["array"]),
                      "ints": list(self.packed["ints"])}
            saver.save(2, {**self.state, "loader": copies})
            copies["array"] *= 2
            copies["ints"].clear()
        self.check(tessera_ckpt.load(self.folder, framework="numpy"))

    def test_a_branch_may_have_the_name_of_one(self):
        state = {"a": {0: b"x" * 100_000, "0": {"w": np.ones(3)}}}
        self.save(state)
        self.assertEqual(difference(state, tessera_ckpt.load(self.folder, framework="numpy")), "")

    def test_small_lists_of_odd_numbers_are_json(self):
        """Which has no form for them of its own."""
        def refuse(name):
            raise AssertionError(name)

        state = {"a": [math.nan, 1.0], "b": (math.inf,), "c": [-math.inf] * 9, "d": [1 << 63, 1]}
        self.save(state)
        checkpoint = tessera_ckpt.open(self.folder)
        json.loads(checkpoint.entry("tessera_ckpt.values"), parse_constant=refuse)
        self.assertEqual(difference(state, checkpoint.load()), "")
        self.assertEqual(difference(state, checkpoint.values), "")

    def test_what_does_not_match_is_told(self):
        path = self.save({"raw": self.packed["raw"], "n": 1}).path
        state = {"raw": 0, "n": 0, "more": 1}
        for bad, message in (
                ({"raw": np.zeros(300_000, "u1"), "n": 0}, "tensor raw: wanted, saved was a bytes"),
                ({"n": 0}, "tensor raw: saved, not wanted"), (state, "value more: wanted, not")):
            with self.assertRaisesRegex(tessera_ckpt.MismatchError, message):
                tessera_ckpt.load(self.folder, bad)
        self.assertEqual(state, {"raw": 0, "n": 0, "more": 1})
        report = tessera_ckpt.load(self.folder, {"n": 0}, allow_unexpected=True)
        self.assertEqual(report.unexpected, ["raw"])
        file = next(pathlib.Path(path).glob("*.safetensors"))
        raw = bytearray(file.read_bytes())
        raw[200_000] ^= 1
        file.write_bytes(raw)
        with self.assertRaisesRegex(tessera_ckpt.DataLossError, file.name):
            tessera_ckpt.load(self.folder, {"raw": None, "n": 0})

    def test_ranks(self):
        def save(transport, step, differing):
            ints = list(range(9_000)) if not transport.rank or not differing else differing(9_000)
            tessera_ckpt.save(self.folder, step, {"x": {"ints": ints}}, transport)

        self.assertEqual(run_ranks(3, lambda each: save(each, 1, None)), [None] * 3)
        found = run_ranks(2, lambda each: tessera_ckpt.load(self.folder, None, each))
        self.assertEqual(found, [{"x": {"ints": list(range(9_000))}}] * 2)
        for step, (differing, message) in enumerate((
                (lambda n: [1] * n, "tensor x.ints: ranks 0 and 1 have different elements"),
                (lambda n: tuple(range(n)), "x.ints: a tuple on rank 1, and a list on another"),
                (lambda n: [1] * (n + 1), "x.ints"), (lambda n: [1], "x.ints: is a leaf")), 2):
            for error in run_ranks(2, lambda each: save(each, step, differing)):
                self.assertIsInstance(error, tessera_ckpt.TesseraError)
                self.assertIn(message, str(error))

    def test_conversions(self):
        """Other formats have tensors in their places, and this package knows what these were."""
        state = {"w": np.ones(3), "loader": self.packed}
        path = self.save(state).path
        back = tessera_ckpt.convert(path, f"{self.folder}.back", "tessera").path
        self.assertEqual(difference(state, tessera_ckpt.load(back, framework="numpy")), "")
        self.assertTrue(tessera_ckpt.diff(path, back, data=True))
        for to in ("torch", "dcp"):
            report = tessera_ckpt.convert(path, f"{self.folder}.{to}", to)
            self.assertEqual(report.notes, [])
            found = tessera_ckpt.open_foreign(report.path).load(framework="numpy")
            self.assertEqual(difference(state, {"w": found["w"], "loader": found["loader"]}), "")
            if to == "torch" and torch is not None:
                found = torch.load(f"{report.path}/checkpoint.pt")["loader"]
                self.assertEqual({name: str(found[name].dtype) for name in found}, {
                    "ints": "torch.int64", "floats": "torch.float64", "tuple": "torch.int64",
                    "text": "torch.uint8", "raw": "torch.uint8", "array": "torch.uint8",
                    "items": "torch.uint8", "two": "torch.uint8"})
                self.assertEqual(found["raw"].numpy().tobytes(), self.packed["raw"])
                self.assertEqual(found["ints"].tolist(), self.packed["ints"])

    def test_a_refusal_says_what_to_save_instead(self):
        def fail(_):
            raise RuntimeError("it is closed")

        for value, advice in (
                ({1, 2}, "list(...) of it"), (range(3), "list(...) of it"),
                (fractions.Fraction(1, 3), None), (int, None), (array.array, None),
                (datetime.date(2026, 1, 2), "what its isoformat() returns"),
                (datetime.timedelta(1), "what its total_seconds() returns"),
                (pathlib.PurePath("a"), "str(...) of it"), (logging.Formatter, None),
                (np.random.default_rng(), "its bit_generator.state"),
                (np.random.RandomState(1), "what its get_state() returns"),
                (enum.Enum("Color", "RED")(1), "its value"),
                (type("Text", (str,), {})("x"), "str(...) of it"),
                (dataclasses.make_dataclass("Point", ["x"])(1), "a dict of its fields"),
                (collections.UserString("x"), "str(...) of it"),
                (memoryview(b"x"), "bytes(...) of it"),
                ((collections.UserDict(a=1),), "dict(...) of it"),
                (type("Strange", (), {"state_dict": property(fail), "to_local": property(fail),
                                      "global_shape": property(fail)})(), None),
                (np.ones(2, "complex64"), "its .real and its .imag")):
            with self.assertRaises(tessera_ckpt.UnimplementedError) as caught:
                self.save({"branch": {"leaf": value}})
            self.assertTrue(str(caught.exception).startswith("branch.leaf: "))
            found = str(caught.exception).partition("; save ")[2]
            self.assertTrue(found.startswith(advice) if advice else not found, (value, found))

    def test_damaged_types_are_refused(self):
        folder = tessera_ckpt.Folder(self.folder, create=True)
        for step, (bad, tensor, message) in enumerate((
                (b"[", np.zeros(3, "u1"), "is no JSON"), (b"[1]", np.zeros(3, "u1"), "no types"),
                (b'{"x": 1}', np.zeros(3, "u1"), "no types"),
                (b'{"x": "set"}', np.zeros(3, "u1"), "'set', which this version does not know"),
                (b'{"x": "bytes"}', np.zeros(3), "value x: a bytes cannot be a tensor of float64"),
                (b'{"x": "list"}', np.zeros(3, "f4"), "value x: a list cannot be"),
                (b'{"x": "list"}', np.zeros((3, 1)), "value x: a list cannot be"),
                (b'{"x": "str"}', np.full(3, 255, "u1"), "value x: .*can't decode byte 0xff"),
                *((b'{"x": "list of bytes"}', np.frombuffer(data, "u1"), "value x: .* items do not")
                  for data in (b"\1", struct.pack("q", 1), struct.pack("2q", 1 << 60, 1),
                               struct.pack("2q", 1, 1), struct.pack("3qx", 2, 2, -1))))):
            description = tessera_ckpt._state.Description(
                {"x": tensor}, entries={tessera_ckpt._packed.PACKED: bad})
            tessera_ckpt._library.report(tessera_ckpt._library.lib.folder_save, folder.handle, step,
                                         description.handle, None)
            with self.subTest(bad), self.assertRaisesRegex(tessera_ckpt.TesseraError, message):
                tessera_ckpt.load(self.folder, {"x": None})


@unittest.skipUnless(torch, "torch is not installed")
class TorchTest(Case):
    def test_autograd_counts_a_load_as_a_change(self):
        self.save({"w": torch.arange(3.0)})
        weight = torch.nn.Parameter(torch.ones(3))
        for load in (lambda: tessera_ckpt.load(self.folder, {"w": weight}),
                     lambda: tessera_ckpt.open(self.folder).read("w", out=weight)):
            squares = (weight * weight).sum()
            load()
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                squares.backward()

    def test_what_a_new_state_lacks_of_a_file_of_torch_is_logged(self):
        torch.save({"w": torch.ones(3), "spread": torch.zeros(1).expand(3)}, f"{self.folder}.pt")
        with self.assertLogs("tessera_ckpt", "WARNING") as logged:
            found = tessera_ckpt.open_foreign(f"{self.folder}.pt").load()
        self.assertEqual(list(found), ["w"])
        self.assertIn("an expanded tensor", logged.output[0])

    def test_a_state_that_dcp_has_saved(self):
        import torch.distributed.checkpoint as dcp
        from tessera_ckpt.dcp import Writer
        state = {"model": {"a.b": torch.ones(3, dtype=torch.bfloat16)}, "step": 5,
                 "groups": [{"lr": 0.5, "params": [0, 1]}, {"0": torch.arange(2)}]}
        for state["step"] in (5, 6):
            writer = Writer(self.folder, step=1, group=tessera_ckpt.ALONE, overwrite=True)
            dcp.save(state, storage_writer=writer, no_dist=True)
            self.assertEqual(difference(state, tessera_ckpt.load(self.folder)), "")

    def test_large_values_of_dcp_are_not_pickled(self):
        import torch.distributed.checkpoint as dcp
        from tessera_ckpt.dcp import Reader, Writer

        class Own(dcp.DefaultSavePlanner):
            def transform_object(self, write_item, data):
                own = ["own", data] if write_item.index.fqn == "raw" else data
                return super().transform_object(write_item, own)

        large = {"items": [b"x" * 100] * 1_000, "raw": b"y" * 100_000, "ints": tuple(range(9_000))}
        state = {**large, "mixed": [b"z" * 100_000, 1], "small": b"x", "w": torch.ones(3)}
        alone = {"group": tessera_ckpt.ALONE}
        dcp.save(state, storage_writer=Writer(self.folder, **alone), no_dist=True)
        checkpoint = tessera_ckpt.open(self.folder)
        self.assertEqual(sorted(name.rpartition("/")[2] for name in checkpoint.entries
                                if "checkpoint/" in name), ["mixed", "small"])
        self.assertEqual(difference(state, tessera_ckpt.load(self.folder)), "")
        target = {**dict.fromkeys(state), "w": torch.zeros(3)}
        dcp.load(target, storage_reader=Reader(self.folder, **alone), no_dist=True)
        self.assertEqual(difference(state, target), "")
        dcp.save(state, storage_writer=Writer(self.folder, **alone), planner=Own(), no_dist=True)
        dcp.load(target, storage_reader=Reader(self.folder, **alone), no_dist=True)
        self.assertEqual(target["raw"], ["own", state["raw"]])

    def test_a_fresh_optimizer_continues_as_the_saved_one(self):
        for make_optimizer in (torch.optim.AdamW, torch.optim.Adagrad, torch.optim.LBFGS,
                               lambda each: torch.optim.SGD(each, lr=0.1, momentum=0.9)):
            def make(seed):
                torch.manual_seed(seed)
                model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 3))
                return model, make_optimizer(model.parameters())

            def train(model, optimizer):
                def closure():
                    optimizer.zero_grad()
                    loss = model(torch.ones(2, 3)).square().sum()
                    loss.backward()
                    return loss
                for _ in range(2):
                    optimizer.step(closure)

            def state(model, optimizer):
                return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

            one, two, three = make(1), make(2), make(3)
            train(*one)
            folder = f"{self.folder}/{type(one[1]).__name__}"
            tessera_ckpt.save(folder, 1, state(*one))
            into = state(*two)
            tessera_ckpt.load(folder, into)
            two[1].load_state_dict(into["optimizer"])
            new = tessera_ckpt.load(folder)
            three[0].load_state_dict(new["model"])
            three[1].load_state_dict(new["optimizer"])
            for each in (one, two, three):
                train(*each)
            self.assertEqual(difference(state(*one), state(*two)), "")
            self.assertEqual(difference(state(*one), state(*three)), "")

    def test_a_path_for_dcp_is_the_one_that_is_used(self):
        import torch.distributed.checkpoint as dcp
        from tessera_ckpt.dcp import Reader, Writer
        logging.disable(logging.CRITICAL)  # torch writes tracebacks
        self.addCleanup(logging.disable, logging.NOTSET)
        alone = tessera_ckpt.ALONE
        for number, (name, inside, step) in enumerate((
                ("step-100", "/step-00000100", 100), ("step-00000007", "", 7),
                ("step_3/", "step-00000003", 3), ("final", "/step-00000000", 0))):
            path = f"{self.folder}/{name}"
            state = {"w": torch.full((3,), number), "n": number}
            dcp.save(state, checkpoint_id=pathlib.Path(path) if number else path,
                     storage_writer=Writer(group=alone), no_dist=True)
            self.assertTrue(os.path.exists(f"{path}{inside}/manifest.pb"))
            self.assertEqual(tessera_ckpt.open(path).step, step)
            for reader in (Reader(group=alone), Reader(path, group=alone)):
                target = {"w": torch.zeros(3, dtype=int), "n": 0}
                dcp.load(target, checkpoint_id=path if reader._path is None else None,
                         storage_reader=reader, no_dist=True)
                self.assertEqual(difference(state, target), "")
            self.assertEqual(difference(state, tessera_ckpt.load(path)), "")
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["final", "step-00000007", "step-100", "step_3"])
        dcp.save(state, storage_writer=Writer(path, group=alone), no_dist=True)
        self.assertEqual(tessera_ckpt.open(path).step, 1)
        dcp.save(state, storage_writer=Writer(path, step=50, group=alone), no_dist=True)
        self.assertEqual(tessera_ckpt.open(path).step, 50)
        for call, message in (
                (lambda: dcp.save(state, storage_writer=Writer(group=alone), no_dist=True),
                 "neither a path nor"),
                (lambda: dcp.load(state, storage_reader=Reader(group=alone), no_dist=True),
                 "neither a path nor"),
                (lambda: dcp.save(state, storage_writer=Writer(
                    f"{self.folder}/step-00000008", step=9, group=alone), no_dist=True),
                 "is not that of step 9")):
            try:
                call()
            except BaseException as error:  # torch's CheckpointException is one of these
                self.assertIn(message, str(error))
            else:
                self.fail(message)

    def test_dcp_reads_large_values(self):
        import torch.distributed.checkpoint as dcp
        from tessera_ckpt.dcp import Reader
        saved = {"a": {"raw": b"x" * 100_000, "ints": list(range(9_000))}, "w": torch.ones(2)}
        self.save(saved)
        state = {"a": {"raw": b"", "ints": []}, "w": torch.zeros(2)}
        dcp.load(state, storage_reader=Reader(self.folder, group=tessera_ckpt.ALONE), no_dist=True)
        self.assertEqual(difference(saved, state), "")


if __name__ == "__main__":
    unittest.main()
