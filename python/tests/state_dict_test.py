#!/usr/bin/env python3
"""What programs do with a state as with torch's own files: loading it without another one."""

import collections
import sys
import tempfile
import types
import unittest
import unittest.mock

import numpy as np
import tessera_ckpt
from generated_states import Pair, difference, torch
from gpt2_files import write_gpt2


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name + "/runs"

    def save(self, state, step=1, **options):
        return tessera_ckpt.save(self.folder, step, state, **options)


class LoadWithoutAStateTest(Case):
    def test_all_of_the_state_comes_back(self):
        table = np.arange(6.0).reshape(2, 3)
        state = collections.OrderedDict(
            model={"embedding": table, "head": table, "0": np.ones(2, "f2")},
            optimizer={"state": {0: {"step": np.array(3.0)}}, "param_groups": [{"params": [0, 1]}],
                       "betas": (0.9, [np.zeros((0, 3), "u1")]), "empty": {}},
            pair=Pair(np.ones(1, bool), {"x": Pair(1, None)}), lr=np.float32(0.5), raw=b"\0\xff")
        self.save(state)
        with unittest.mock.patch.dict(sys.modules):
            sys.modules.pop("torch", None)
            default = tessera_ckpt.load(self.folder)
        for found in (default, tessera_ckpt.load(self.folder, framework="numpy"),
                      tessera_ckpt.open(self.folder).load(None, tessera_ckpt.ALONE,
                                                          framework="numpy")):
            self.assertEqual(difference(state, found), "")
            self.assertIs(found["model"]["embedding"], found["model"]["head"])
            self.assertIs(type(found["pair"]), Pair)
        with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "framework: expected"):
            tessera_ckpt.load(self.folder, framework="jax")

    def test_a_namedtuple_of_another_program(self):
        gone = collections.namedtuple("Gone", "a b", module="no.such.module")
        self.save({"here": gone(np.ones(2), 5), "value": gone(1, (2,))})
        for _ in range(2):
            found = tessera_ckpt.load(self.folder)
            kind = type(found["here"])
            self.assertEqual((kind.__module__, kind.__qualname__, kind._fields),
                             ("no.such.module", "Gone", ("a", "b")))
            self.assertIs(type(found["value"]), kind)
            self.assertEqual((found["here"].b, found["value"]), (5, (1, (2,))))
            self.save(found, 2) if tessera_ckpt.latest(self.folder).step == 1 else None

    def test_dtypes_that_numpy_has_not(self):
        folder = tessera_ckpt.Folder(self.folder, create=True)
        description = tessera_ckpt._state.Description({})
        bits = np.arange(4, dtype="u2")
        lib, numbers = tessera_ckpt._library.lib, tessera_ckpt._library.numbers
        lib.state_add_tensor(description.handle, b"w", 1, tessera_ckpt._tensors.DTYPES["bfloat16"],
                             1, numbers([4]))
        lib.state_add_shard(description.handle, bits.ctypes.data, 4, numbers([0]), numbers([4]),
                            None, 0)
        tessera_ckpt._library.report(lib.save, folder.handle, 1, description.handle, None)
        fake = types.SimpleNamespace(bfloat16="u2")
        with unittest.mock.patch.dict(sys.modules, {"ml_dtypes": None}), self.assertRaisesRegex(
                tessera_ckpt.UnimplementedError, "tensor w: numpy has no .*bfloat16.*framework="):
            tessera_ckpt.load(self.folder, framework="numpy")
        with unittest.mock.patch.dict(sys.modules, {"ml_dtypes": fake}):
            made = tessera_ckpt._tensors.empty_of("numpy", "bfloat16", (4,), "w")
        self.assertEqual((made.dtype, made.shape), (np.dtype("u2"), (4,)))

    def test_checkpoints_that_do_not_tell_their_containers(self):
        exported = write_gpt2(f"{self.folder}.gpt2", vocab_size=300)
        foreign = tessera_ckpt.open_foreign(exported)
        found = foreign.load()
        self.assertEqual(list(found), list(foreign.tensors))
        for name, tensor in found.items():
            np.testing.assert_array_equal(tensor, foreign.read(name))
        state = {"model": {"a.b": np.ones(3)}, "n": [1, {"x": (2,)}]}
        pair = {"pair": (np.zeros(2), 3)}
        path = self.save({**state, "model": collections.OrderedDict(state["model"]),
                          "pair": Pair(*pair["pair"])}).path
        for to in ("torch", "dcp"):
            tessera_ckpt.convert(path, f"{self.folder}.{to}", to)
            foreign = tessera_ckpt.open_foreign(f"{self.folder}.{to}")
            found = foreign.load(framework="numpy")
            self.assertEqual(difference({**state, **pair}, found), "")
        # As versions without the entry of the containers have saved.
        with unittest.mock.patch.object(tessera_ckpt._structure, "STRUCTURE", "other"):
            found = tessera_ckpt.load(self.folder, framework="numpy")
        flat = {"model.a.b": np.ones(3), "n.0": 1, "n.1.x": (2,), "pair.0": np.zeros(2), "pair.1": 3}
        self.assertEqual(difference(flat, found), "")

    def test_a_damaged_structure_is_refused(self):
        folder = tessera_ckpt.Folder(self.folder, create=True)
        structure, places = tessera_ckpt._structure.STRUCTURE, tessera_ckpt._structure.PLACES
        cases = [(structure, bad) for bad in (
                b"", b"[]", b"{", b"3", b'{"!": "set", "value": []}', b'{"!": "dict"}',
                b'{"!": "dict", "value": [[["k"], null]]}', b'{"!": "dict", "value": [["k"]]}',
                b'{"!": "dict", "value": [["k", {"!": "namedtuple", "value": []}]]}',
                b'{"!": "tuple", "value": []}', b"[" * 100_000)]
        cases += [(places, bad) for bad in (
                b"", b"[1]", b'{"a": []}', b'{"a": [[]]}', b'{"a": ["x"], "b": ["x", 1]}')]
        for step, (entry, bad) in enumerate(cases):
            description = tessera_ckpt._state.Description({}, entries={entry: bad})
            tessera_ckpt._library.report(tessera_ckpt._library.lib.save, folder.handle, step,
                                         description.handle, None)
            with self.subTest(bad[:40]), self.assertRaisesRegex(
                    tessera_ckpt.DataLossError, f"the entry {entry} "):
                tessera_ckpt.load(self.folder)


@unittest.skipUnless(torch, "torch is not installed")
class TorchTest(Case):
    def test_a_state_that_dcp_has_saved(self):
        import torch.distributed.checkpoint as dcp
        from tessera_ckpt.dcp import Writer
        state = {"model": {"a.b": torch.ones(3, dtype=torch.bfloat16)}, "step": 5,
                 "groups": [{"lr": 0.5, "params": [0, 1]}, {"0": torch.arange(2)}]}
        dcp.save(state, storage_writer=Writer(self.folder, group=tessera_ckpt.ALONE), no_dist=True)
        self.assertEqual(difference(state, tessera_ckpt.load(self.folder)), "")


if __name__ == "__main__":
    unittest.main()
