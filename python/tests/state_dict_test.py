#!/usr/bin/env python3
"""What programs do with a state as with torch's own files: loading it without another one, states
of optimizers, how many checkpoints stay, paths, logs and errors."""

import collections
import enum
import glob
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import textwrap
import traceback
import types
import unittest
import unittest.mock
import zipfile

import numpy as np
import tessera_ckpt
from generated_states import Pair, difference
from gpt2_files import write_gpt2
from ranks import run_ranks
from scratch import Case
from tessera_ckpt import Box


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

    def test_the_versions_of_modules_come_back(self):
        """torch.nn.Module.state_dict() has them as an attribute, and load_state_dict() reads it."""
        def weights(key, version):
            made = collections.OrderedDict({key: np.ones(2)})
            made._metadata = collections.OrderedDict(
                {"": {"version": 1}, key.split(".")[0]: {"version": version}})
            return made

        self.save({"model": weights("a.w", 2)})
        found = tessera_ckpt.load(self.folder, framework="numpy")["model"]
        self.assertEqual(found._metadata, weights("a.w", 2)._metadata)
        self.assertIs(type(found._metadata), collections.OrderedDict)
        # Ranks have the modules of their stage.
        run_ranks(2, lambda transport: tessera_ckpt.save(self.folder, 2, {
            "model": weights("ab"[transport.rank] + ".w", 2 + transport.rank)}, transport))
        found = tessera_ckpt.load(self.folder, framework="numpy")["model"]
        self.assertEqual(dict(found._metadata), {
            "": {"version": 1}, "a": {"version": 2}, "b": {"version": 3}})
        # A rank may have nothing in the place of a module, and a plain dict in that of a state.
        for step, (mine, theirs) in enumerate(((1, 2), (2, 1)), 4):
            run_ranks(2, lambda transport: tessera_ckpt.save(self.folder, step, {
                "model": weights("a.w", (mine, theirs)[transport.rank]), "ema": {} if (
                    transport.rank == step % 2) else weights("a.w", 2)}, transport))
            found = tessera_ckpt.load(self.folder, framework="numpy")
            for name in ("model", "ema"):
                self.assertIs(type(found[name]), collections.OrderedDict)
                self.assertEqual(found[name]._metadata["a"], {"version": 2})
        self.assertEqual(tessera_ckpt._structure.decode(
            b'{"!": "dict", "value": [], "_metadata": 3}', lambda *_: None,
            tessera_ckpt._state.PerRank()), {})
        other = weights("a.w", 2)
        other._metadata["a"]["made by"], other.more = object(), 1
        with self.assertLogs("tessera_ckpt", "WARNING") as logs:
            self.save({"model": other}, step=6)
        self.assertIn("model: the attributes _metadata, more of an OrderedDict are not saved",
                      logs.output[0])
        self.assertFalse(vars(tessera_ckpt.load(self.folder, framework="numpy")["model"]))

    def test_keys_that_are_members_of_enums(self):
        """Whatever their format() is, their names are those of the plain keys, which equal them."""
        class Stage(str, enum.Enum):
            TRAIN = "train"

        class Number(enum.IntEnum):
            ONE = 1

        state = {"metrics": {Stage.TRAIN: np.ones(2), "lr": {Stage.TRAIN: 0.5}},
                 Number.ONE: {Number.ONE: np.zeros(1)}}
        self.save(state)
        self.assertEqual(sorted(tessera_ckpt.open(self.folder).tensors), ["1.1", "metrics.train"])
        plain = {"metrics": {"train": np.ones(2), "lr": {"train": 0.5}}, 1: {1: np.zeros(1)}}
        self.assertEqual(difference(plain, tessera_ckpt.load(self.folder, framework="numpy")), "")
        state["metrics"][Stage.TRAIN][:] = 7
        tessera_ckpt.load(self.folder, state)
        self.assertEqual(state["metrics"][Stage.TRAIN].tolist(), [1, 1])
        tessera_ckpt.load(self.folder, plain)

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
        # With fields that no namedtuple can have.
        odd = type("Odd", (tuple,), {"_fields": ("_x", "class"), "__module__": "no.such.module"})
        self.save({"odd": odd((1, 2))}, 3)
        self.assertEqual(tessera_ckpt.load(self.folder), {"odd": (1, 2)})
        self.assertEqual(tessera_ckpt.open(self.folder).values, {"odd": (1, 2)})

    def test_dtypes_that_numpy_has_not(self):
        folder = tessera_ckpt.Folder(self.folder, create=True)
        description = tessera_ckpt._state.Description({})
        bits = np.arange(4, dtype="u2")
        lib, numbers = tessera_ckpt._library.lib, tessera_ckpt._library.numbers
        lib.state_add_tensor(description.handle, b"w", 1, tessera_ckpt._tensors.DTYPES["bfloat16"],
                             1, numbers([4]))
        lib.state_add_shard(description.handle, bits.ctypes.data, 4, numbers([0]), numbers([4]),
                            None, 0)
        tessera_ckpt._library.report(lib.folder_save, folder.handle, 1, description.handle, None)
        fake = types.SimpleNamespace(bfloat16="u2")
        with unittest.mock.patch.dict(sys.modules, {"ml_dtypes": None}), self.assertRaisesRegex(
                tessera_ckpt.UnimplementedError, "tensor w: numpy has no .*bfloat16.*framework="):
            tessera_ckpt.load(self.folder, framework="numpy")
        with unittest.mock.patch.dict(sys.modules, {"ml_dtypes": fake}):
            made = tessera_ckpt._tensors.empty_of("numpy", "bfloat16", (4,), "w")
        self.assertEqual((made.dtype, made.shape), (np.dtype("u2"), (4,)))

    def test_values_of_one_name_in_a_file_of_torch(self):
        path = f"{self.folder}.pt"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("x/data.pkl", pickle.dumps({"a.b": 1, "a": {"b": 2, "c": 3}}, 2))
        foreign = tessera_ckpt.open_foreign(path)
        self.assertEqual(foreign.load(), {"a.b": 1, "a": {"c": 3}})
        self.assertRegex(foreign.notes[0], "Left out: .* another value or tensor: a.b.")

    def test_checkpoints_that_do_not_tell_their_containers(self):
        exported = write_gpt2(f"{self.folder}.gpt2", vocab_size=300)
        foreign = tessera_ckpt.open_foreign(exported)
        found = foreign.load()
        self.assertEqual(list(found), list(foreign.tensors))
        for name, tensor in found.items():
            np.testing.assert_array_equal(tensor, foreign.read(name))
        self.assertEqual(list(foreign.foreign_names), list(foreign.tensors))
        written = tessera_ckpt.convert(exported, f"{self.folder}.megatron", "megatron").path
        names = tessera_ckpt.open_foreign(written).foreign_names
        self.assertEqual(names["transformer.wte.weight"], "embedding.word_embeddings.weight")
        self.assertEqual(set(names), set(foreign.foreign_names))
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
        flat = {"model.a.b": np.ones(3), "n.0": 1, "n.1.x": (2,), "pair.0": np.zeros(2),
                "pair.1": 3}
        self.assertEqual(difference(flat, found), "")

    def test_names_of_parameters_that_the_files_do_not_tell(self):
        whole = "tests/interop/paddle/testdata/sharding2_v2_meta"
        copy = f"{self.folder}.paddle"
        shutil.copytree(whole, copy, ignore=shutil.ignore_patterns("model_*"))
        with open(f"{whole}/model_meta.json", encoding="utf-8") as file:
            metas = json.load(file)["sharding_metas"]
        names = {name: structured for meta in metas.values()
                 for structured, name in meta["structure_name_mapping"].items()}
        with self.assertRaisesRegex(tessera_ckpt.TesseraError, "would settle it"):
            tessera_ckpt.open_foreign(copy)
        path = pathlib.Path(f"{self.folder}.json")
        path.write_text(json.dumps(names), encoding="utf-8")
        expected = tessera_ckpt.open_foreign(whole).load(framework="numpy")
        for given in (names, path):
            found = tessera_ckpt.open_foreign(copy, parameter_names=given)
            self.assertEqual(difference(expected, found.load(framework="numpy")), "")
        self.assertTrue(tessera_ckpt.verify(copy, parameter_names=names))
        converted = tessera_ckpt.convert(copy, self.folder, "tessera", parameter_names=names)
        self.assertTrue(tessera_ckpt.diff(converted.path, whole, data=True).equal_tensors)

    def test_pickles_of_protocol_2(self):
        whole, copy = "tests/interop/paddle/testdata/dp", f"{self.folder}.paddle"
        shutil.copytree(whole, copy)
        for path in map(pathlib.Path, glob.glob(f"{copy}/*.pd*")):
            value = pickle.loads(path.read_bytes())
            path.unlink()
            path.write_bytes(pickle.dumps(value, protocol=2))
            self.assertEqual(b"latin1" in path.read_bytes(), "scheduler" not in path.name)
        expected = tessera_ckpt.open_foreign(whole).load(framework="numpy")
        found = tessera_ckpt.open_foreign(copy).load(framework="numpy")
        self.assertEqual(difference(expected, found), "")

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
            tessera_ckpt._library.report(tessera_ckpt._library.lib.folder_save, folder.handle, step,
                                         description.handle, None)
            with self.subTest(bad[:40]), self.assertRaisesRegex(
                    tessera_ckpt.DataLossError, f"the entry {entry} "):
                tessera_ckpt.load(self.folder)


class OptimizerTest(Case):
    """An optimizer that has taken no step has no state yet."""

    def setUp(self):
        super().setUp()
        self.groups = [{"lr": 0.5, "params": [0, 1]}]
        self.saved = {"w": np.ones(3), "optimizer": {"state": {
            n: {"step": np.array(2.0), "exp_avg": np.full(3, n), "note": "x"} for n in (0, 1)},
            "param_groups": self.groups}}
        self.save(self.saved)

    def fresh(self):
        return {"w": np.zeros(3), "optimizer": {"state": {}, "param_groups": [{
            "lr": 0, "params": []}]}}

    def test_it_gets_what_was_saved(self):
        for options in ({}, {"allow_unexpected": True}, {"strict": False}):
            state = self.fresh()
            report = tessera_ckpt.load(self.folder, state, framework="numpy", **options)
            self.assertEqual(difference(self.saved, state), "")
            self.assertEqual((report.missing, report.unexpected), ([], []))
        with unittest.mock.patch.object(tessera_ckpt._tensors, "empty_of", side_effect=(
                tessera_ckpt._tensors.empty_of)) as made:
            tessera_ckpt.load(self.folder, self.fresh(), framework="numpy")
        self.assertEqual(made.call_count, 4)
        for size in (1, 3):
            def load(transport):
                mine = self.fresh()
                tessera_ckpt.load(self.folder, mine, transport, framework="numpy")
                return difference(self.saved, mine)
            self.assertEqual(run_ranks(size, load), [""] * size)
        del state["w"]
        state["optimizer"]["state"] = {}
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, "tensor w: saved, not wanted"):
            tessera_ckpt.load(self.folder, state)
        self.assertEqual(state["optimizer"]["state"], {})

    def test_parts_of_tensors_need_more_than_whole_moments(self):
        parts = {**self.fresh(), "w": Box(np.zeros(3), (0,), (3,))}
        with self.assertRaisesRegex(tessera_ckpt.MismatchError,
                                    r"optimizer\.state: is empty.* 6 tensors.*get_state_dict\(\)"):
            tessera_ckpt.load(self.folder, parts)
        report = tessera_ckpt.load(self.folder, parts, strict=False)
        self.assertEqual(len(report.unexpected), 6)
        self.assertEqual(parts["optimizer"]["state"], {})
        with unittest.mock.patch.object(tessera_ckpt._structure, "STRUCTURE", "other"), (
                self.assertRaisesRegex(tessera_ckpt.MismatchError, "get_state_dict")):
            tessera_ckpt.load(self.folder, self.fresh())

    def test_strict(self):
        state = {"v": np.zeros(3), "w": np.zeros(3), "n": 3}
        with self.assertRaises(tessera_ckpt.MismatchError):
            tessera_ckpt.load(self.folder, state)
        for load in (tessera_ckpt.load, lambda folder, *a, **o: tessera_ckpt.open(folder).load(
                *a, **o)):
            report = load(self.folder, state, strict=False)
            self.assertEqual(sorted(report.missing), ["n", "v"])
            self.assertEqual(len(report.unexpected), 8)
            self.assertEqual(state["w"].sum(), 3)


class MissingTest(Case):
    """What a state may have that was not saved."""

    def test_a_new_branch_beside_master_weights(self):
        for version in ("v1", "v1_3"):
            checkpoint = tessera_ckpt.open(f"tests/golden/{version}/step-00000007")
            lora = {"A": np.full(2, 7.0), "wte": {"weight": np.full(3, 8.0)}}
            for options in ({"allow_missing": True}, {"allow_missing": ["lora"]}):
                state = {name: np.zeros(info.shape, "f4")
                         for name, info in checkpoint.tensors.items() if info.role == "weight"}
                report = checkpoint.load({**state, "lora": lora}, allow_unexpected=True, **options)
                self.assertEqual(report.missing, ["lora.A", "lora.wte.weight"])
                self.assertTrue(state["wte.weight"].any())
            with self.assertRaisesRegex(tessera_ckpt.MismatchError, "tensor lora.A: wanted, not"):
                checkpoint.load({**state, "lora": lora}, allow_unexpected=True)
            # The master weight stands for a weight that was not saved.
            wanted = {"wte.weight": np.zeros((7, 4), "f4"), "n": 1}
            del checkpoint.tensors["wte.weight"]
            report = checkpoint.load(wanted, allow_missing=["wte", "n"], allow_unexpected=True)
            self.assertEqual(report.missing, ["n"])
            self.assertTrue(wanted["wte.weight"].any())

    def test_another_name_of_memory_that_is_loaded_is_not_missing(self):
        self.save({"model": {"w": np.ones(3)}, "n": 1})
        for first in ("model", "x"):
            for options in ({"allow_missing": True}, {"allow_missing": ["x"]}):
                memory, new = np.zeros(3), np.zeros(2)
                x = {"z": new, "y": 5, "a": new, "b": memory, "c": 6}
                state = {"n": 0, "model": {"w": memory}, "x": x}
                state = {first: state.pop(first), **state}
                report = tessera_ckpt.load(self.folder, state, **options)
                self.assertEqual(report.missing, ["x.z", "x.a", "x.c", "x.y"])
                self.assertEqual((memory.sum(), new.sum(), x["y"]), (3, 0, 5))

    def test_branches_are_named_by_their_keys(self):
        self.save({"model": {"w": np.ones(2), "v": 1}, 0: {"a": 1}, "a.b": np.ones(3)})
        wanted = {"model": {"w": np.zeros(2), "v": 0, "new": {"x": np.zeros(1), "y": 1}},
                  0: {"a": 0}, 1: {"n": 2}, "a.b": np.zeros(3), "a.c": 4}
        report = tessera_ckpt.load(self.folder, wanted, allow_missing=[1, "model.new", "a.c"])
        self.assertEqual(report.missing, ["model.new.x", "1.n", "a.c", "model.new.y"])
        for named, refused in ((["model", 1], "a.c"), (["model", "a"], "1.n"),
                               (["model.ne", 1, "a"], "model.new.y"), (["new", 1], "model.new.y")):
            with self.assertRaisesRegex(tessera_ckpt.MismatchError, f"value {refused}: wanted"):
                tessera_ckpt.load(self.folder, wanted, allow_missing=named)
        report = tessera_ckpt.load(self.folder, {"model": {"v": 0}}, allow_unexpected=[
            0, "a.b", "model.w"])
        self.assertEqual(sorted(report.unexpected), ["0.a", "a.b", "model.w"])
        for option in ("allow_missing", "allow_unexpected"):
            for bad in ("model", b"model", ["model", b"a"], [None], [True], [1.0]):
                with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, f"{option}: expec"):
                    tessera_ckpt.load(self.folder, dict(wanted), **{option: bad})


class RetentionTest(Case):
    def steps(self):
        return [info.step for info in tessera_ckpt.list_checkpoints(self.folder)]

    def test_only_so_many_stay(self):
        state = {"w": np.ones(3)}
        for step in range(4):
            report = self.save(state, step, keep=2)
            self.assertEqual(report.note, "")
            self.assertEqual(self.steps(), list(range(max(0, step - 1), step + 1)))
        opened = tessera_ckpt.open(f"{self.folder}/step-00000002")
        self.save(state, 4, keep=1)
        self.assertEqual(self.steps(), [2, 4])  # what is open stays
        np.testing.assert_array_equal(opened.read("w"), state["w"])
        opened.close()
        tessera_ckpt.prune(self.folder, 1)
        self.assertEqual(self.steps(), [4])
        for bad in (0, -1, "2", 1.5):
            with self.assertRaises(tessera_ckpt.InvalidArgumentError):
                self.save(state, 5, keep=bad)
            with self.assertRaises(tessera_ckpt.InvalidArgumentError):
                tessera_ckpt.AsyncSaver(self.folder, keep=bad)
        with self.assertRaises(tessera_ckpt.NotFoundError):
            tessera_ckpt.prune(f"{self.folder}/none", 1)
        self.assertEqual(self.steps(), [4])

    def test_a_save_of_an_earlier_step_than_others_stays(self):
        state = {"w": np.ones(3)}
        for step in (900, 1000):
            self.save(state, step)
        self.save(state, 100, keep=2)
        self.assertEqual(self.steps(), [100, 900, 1000])
        self.save(state, 200, keep=1)
        self.assertEqual(self.steps(), [200, 1000])
        with tessera_ckpt.AsyncSaver(self.folder, keep=1) as saver:
            saver.save(300, state)
        self.assertEqual(self.steps(), [300, 1000])
        tessera_ckpt.prune(self.folder, 1)
        self.assertEqual(self.steps(), [1000])

    def test_one_rank_deletes(self):
        with unittest.mock.patch.object(tessera_ckpt.Folder, "prune") as prune:
            run_ranks(3, lambda each: tessera_ckpt.save(self.folder, 1, {"n": 1}, each, keep=1))
        prune.assert_called_once_with(1, 1)

    def test_in_the_background_and_on_ranks(self):
        with tessera_ckpt.AsyncSaver(self.folder, keep=2) as saver:
            for step in range(5):
                saver.save(step, {"w": np.full(3, step)})
                self.assertLessEqual(len(self.steps()), 5)
        self.assertEqual(self.steps(), [3, 4])
        saver = tessera_ckpt.AsyncSaver(self.folder, keep=1)
        saver.save(5, {"w": np.ones(3)})
        saver.close()
        self.assertEqual(self.steps(), [5])
        errors = run_ranks(3, lambda each: tessera_ckpt.save(
            self.folder, 6 + each.size, {"w": np.ones(3)}, each, keep=1) and None)
        self.assertEqual(errors, [None] * 3)
        self.assertEqual(self.steps(), [9])

    def test_a_deletion_that_fails_does_not_undo_the_save(self):
        self.save({"w": np.ones(3)})
        with self.assertLogs("tessera_ckpt", "WARNING"), unittest.mock.patch.object(
                tessera_ckpt.Folder, "prune", side_effect=tessera_ckpt.AccessError("no leave")):
            report = self.save({"w": np.ones(3)}, 2, keep=1)
        self.assertIn("older checkpoints were not deleted: no leave", report.note)
        self.assertEqual(self.steps(), [1, 2])


class PathTest(Case):
    def test_the_name_of_a_checkpoint_is_that_of_the_checkpoint(self):
        state = {"w": np.ones(3)}
        path = f"{self.folder}/step-00000100"
        for given in (path, f"{self.folder}/step-00000101/", pathlib.Path(path + "x"),
                      f"{self.folder}/step-100"):
            step = 101 if str(given).endswith("/") else 100
            report = tessera_ckpt.save(given, step, state)
            self.assertEqual(tessera_ckpt.open(given).step, step)
            self.assertTrue(report.path.startswith(str(given).rstrip("/")))
        self.assertEqual([info.step for info in tessera_ckpt.list_checkpoints(self.folder)],
                         [100, 101])
        for bad in (lambda: tessera_ckpt.save(path, 101, state),
                    lambda: tessera_ckpt.AsyncSaver(path),
                    lambda: tessera_ckpt.Folder(path, create=True)):
            with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "is (not )?the name of"):
                bad()


class LogTest(Case):
    def test_all_is_logged_and_nothing_written(self):
        """By a program that does not configure logging, whose saver fails at its end."""
        program = textwrap.dedent("""
            import atexit, logging, sys, numpy as np, tessera_ckpt
            records = []
            handler = logging.Handler()
            handler.emit = lambda record: records.append((record.levelname, record.getMessage()))
            logging.getLogger("tessera_ckpt").addHandler(handler)
            logging.getLogger("tessera_ckpt").setLevel("INFO")
            folder, state = sys.argv[1], {"w": np.ones(3)}
            tessera_ckpt.save(folder, 1, state)
            tessera_ckpt.load(folder, state)
            tessera_ckpt.load(folder, framework="numpy")
            tessera_ckpt.prune(folder, 1)
            saver = tessera_ckpt.AsyncSaver(folder, progress=lambda *_: 1 / 0)
            saver.save(2, state)
            saver.save(1, state)
            atexit._run_exitfuncs()
            for record in records: print(*record)
        """)
        found = subprocess.run([sys.executable, "-c", program, self.folder], check=True,
                               capture_output=True, text=True, timeout=120)
        self.assertEqual(found.stderr, "")
        lines = found.stdout.splitlines()
        path = f"{self.folder}/step-0000000"
        for line, pattern in zip(lines, (
                rf"INFO saved {path}1: \d+ bytes in ", rf"INFO loaded {path}1: \d+ bytes in ",
                f"INFO loaded {path}1: ", f"INFO kept the newest 1 checkpoints of {self.folder}",
                "WARNING progress has failed.*ZeroDivisionError", f"INFO saved {path}2: ",
                "ERROR the save of step 1 failed: ")):
            self.assertRegex(line, f"^{pattern}")
        self.assertEqual(len(lines), 7, lines)


class ErrorTest(Case):
    def test_errors_have_the_names_by_which_programs_know_them(self):
        with self.assertRaises(tessera_ckpt.NotFoundError) as caught:
            tessera_ckpt.open(self.folder)
        line = traceback.format_exception_only(type(caught.exception), caught.exception)[-1]
        self.assertTrue(line.startswith("tessera_ckpt.NotFoundError: "), line)
        for name in tessera_ckpt.__all__:
            error = getattr(tessera_ckpt, name)
            if isinstance(error, type) and issubclass(error, Exception):
                self.assertEqual(f"{error.__module__}.{error.__qualname__}", f"tessera_ckpt.{name}")
                self.assertIs(type(pickle.loads(pickle.dumps(error("x")))), error)

        class Mine(tessera_ckpt.TesseraError):
            pass

        self.assertEqual(Mine.__module__, __name__)

    def test_missing_credentials(self):
        clean = {name: value for name, value in os.environ.items()
                 if "ACCESS_KEY" not in name and not name.startswith("AWS_")}
        clean.update(HOME=self.folder, AWS_EC2_METADATA_DISABLED="true")
        for extra in ({}, {"AWS_PROFILE": "none"}, {"AWS_ACCESS_KEY_ID": "x"}):
            with unittest.mock.patch.dict(os.environ, {**clean, **extra}, clear=True), (
                    self.assertRaisesRegex(tessera_ckpt.AccessError, "s3://bucket/runs: ")):
                tessera_ckpt.open("s3://bucket/runs", s3_endpoint="http://127.0.0.1:9")


if __name__ == "__main__":
    unittest.main()
