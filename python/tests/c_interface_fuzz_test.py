#!/usr/bin/env python3
"""Random arguments for the C interface: each call returns a code and, with an error, a message; the
process lives on, and a checkpoint that was there before is still good.

  c_interface_fuzz_test.py [SEED [CALLS]]

Arguments are such that a library can tell that they are wrong: null pointers, handles of another
kind or freed ones (whose memory this test keeps), numbers of any size, texts of any bytes. Pointers
to nowhere are not among them.
"""

import ctypes
import os
import pathlib
import random
import sys
import tempfile
import unittest

import numpy as np
import tessera_ckpt
from tessera_ckpt import _library

SEED, CALLS = 1, 20000
NUMBERS = (0, 1, -1, 2, 3, 7, 8, 31, 32, 33, 255, 1 << 15, (1 << 31) - 1, -(1 << 31), 1 << 31,
           (1 << 62), (1 << 63) - 1, -(1 << 63))
TEXTS = (b"", b"w", b"a.b", b"\xff\xfe", b"tensor", b"x" * 5000, b"torch", b"tessera", b"dcp",
         b"file/x", b"s3://", b"..", b"local:", b"dp2", b"@[0:1]", b"\n")


class Fuzz:
    def __init__(self, folder, seed):
        self.random = random.Random(seed)
        self.folder = folder
        self.raw = ctypes.CDLL(str(_library.library_path()))
        self.raw.tessera_error_message.restype = ctypes.c_char_p
        self.memory = np.zeros(4096)
        self.handles = {kind: [] for kind in ("state", "folder", "checkpoint", "saver",
                                              "manager")}
        self.kept = []  # of structures
        self.merges = (_library.MERGE(), _library.MERGE(lambda *_: 9),
                       _library.merging(lambda by_rank: by_rank[0]))
        self.loads = (_library.LOAD_CHECKPOINT(), _library.LOAD_CHECKPOINT(lambda *_: 9),
                      _library.LOAD_CHECKPOINT(lambda *_: 0))
        self.describes = (_library.DESCRIBE_STATE(), _library.DESCRIBE_STATE(lambda *_: 9),
                          _library.DESCRIBE_STATE(self.describe))
        self.codes = {}

    def describe(self, _context, state):
        state[0] = self.handle("state")
        return 0

    def number(self, bits):
        choice = self.random.choice(NUMBERS) if self.random.random() < 0.5 else (
            self.random.randint(0, 40))
        return (choice + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))

    def text(self):
        roll = self.random.random()
        if roll < 0.1:
            return None
        if roll < 0.4:
            return os.fsencode(f"{self.folder}/{self.random.choice('abcd')}")
        if roll < 0.6:
            text = bytes(self.random.randint(1, 255) for _ in range(self.random.randint(0, 9)))
            return text.lstrip(b"/")  # nothing outside of the folder
        return self.random.choice(TEXTS)

    def handle(self, kind):
        """Mostly of the kind; otherwise null, or of another one."""
        if self.random.random() < 0.1:
            return None
        if self.random.random() < 0.1:
            kind = self.random.choice(list(self.handles))
        return self.random.choice(self.handles[kind]) if self.handles[kind] else None

    def numbers(self, at_least=32):
        if self.random.random() < 0.15:
            return None
        return (ctypes.c_int64 * at_least)(*(self.number(64) if self.random.random() < 0.3 else
                                            self.random.randint(0, 3) for _ in range(at_least)))

    def options(self, kind):
        if self.random.random() < 0.3:
            return None
        options = kind()
        for name, member in kind._fields_[1:]:
            if self.random.random() < 0.6:
                continue
            if member in (ctypes.c_int32, ctypes.c_uint32):
                setattr(options, name, self.number(32))
            elif member is ctypes.c_uint64 and name != "staging_bytes":
                setattr(options, name, abs(self.number(63)))
            elif member is ctypes.c_double:
                setattr(options, name, self.random.choice((0, -1, 1e-3, 5, float("nan"),
                                                           float("inf"))))
            elif member is ctypes.c_char_p:
                setattr(options, name, self.random.choice((b"", b"word", b"torch", b"tp2")))
            elif member is ctypes.POINTER(ctypes.c_int32):
                cancelled = ctypes.c_int32(self.random.choice((0, 0, 1)))
                setattr(options, name, ctypes.pointer(cancelled))
        # A saver that waits for ranks which never answer would keep the test waiting.
        if hasattr(options, "group") and self.random.random() < 0.3:
            group = _library.Group(rank=self.number(32), size=self.number(32))
            if self.random.random() < 0.5:
                group.rank, group.size = 0, 2  # and no callbacks
            self.kept.append(group)
            options.group = ctypes.pointer(group)
        if self.random.random() < 0.2:
            options.struct_bytes = self.random.choice((0, 1, 8, 16, ctypes.sizeof(kind) - 4,
                                                       1025, 1 << 62))
        self.kept.append(options)
        return ctypes.byref(options)

    def call(self):
        name, types = self.random.choice(list(_library._FUNCTIONS.items()))
        if name == "manager_open":  # which waits where another one has the folder
            for manager in self.handles["manager"]:
                self.raw.tessera_manager_free(manager)
            self.handles["manager"].clear()
        out = ctypes.c_void_p()
        arguments = []
        for position, kind in enumerate(types):
            if kind is _library._OUT:
                arguments.append(ctypes.byref(out) if self.random.random() < 0.9 else None)
            elif kind is ctypes.c_int64:
                arguments.append(ctypes.c_int64(self.number(64)))
            elif kind is ctypes.c_int32:
                arguments.append(ctypes.c_int32(self.number(32)))
            elif kind is ctypes.c_size_t:
                arguments.append(ctypes.c_size_t(0))
            elif kind is ctypes.c_char_p:
                arguments.append(self.text())
            elif kind is _library._NUMBERS:
                arguments.append(self.numbers())
            elif kind is ctypes.c_void_p:
                first = next((k for k in self.handles if name.startswith(k)), "checkpoint")
                if position == 0 and name != "messages_add":
                    arguments.append(self.handle(first))
                elif name in ("folder_save", "checkpoint_load", "saver_start"):
                    arguments.append(self.handle("state"))
                else:  # memory, of which boxes of at most 3 extents of 3 dims are read and written
                    arguments.append(ctypes.c_void_p(self.memory.ctypes.data)
                                     if self.random.random() < 0.9 else None)
            elif kind is _library.MERGE:
                arguments.append(self.random.choice(self.merges))
            elif kind is _library.LOAD_CHECKPOINT:
                arguments.append(self.random.choice(self.loads))
            elif kind is _library.DESCRIBE_STATE:
                arguments.append(self.random.choice(self.describes))
            elif kind is ctypes.POINTER(ctypes.c_size_t):
                arguments.append(ctypes.byref(ctypes.c_size_t()))
            else:
                arguments.append(self.options(kind._type_))
        arguments = self.keep_in_bounds(name, arguments)
        code = getattr(self.raw, f"tessera_{name}")(*arguments)
        assert 0 <= code <= 16, (name, code)
        assert code != 13, (name, self.raw.tessera_error_message())  # a bug of the library
        if code != 0:
            assert self.raw.tessera_error_message(), (name, code, "no message")
            assert out.value is None, (name, code, "a result with an error")
        self.codes[name, code] = self.codes.get((name, code), 0) + 1
        self.take(name, code, out)

    def keep_in_bounds(self, name, arguments):
        """What the library cannot know: how large the memory is. It is told."""
        if name == "state_add_shard":
            arguments[2] = ctypes.c_int64(self.random.choice((0, 1, 100, 512, -2)))
        elif name == "state_add_flat_range":
            arguments[5] = ctypes.c_int64(self.random.choice((0, 5, 400, -1)))
        elif name == "checkpoint_read_tensor":
            arguments[8] = ctypes.c_int64(self.random.choice((0, 1, 100, 512, -2)))
        elif name == "state_set_entry":
            data = self.random.choice((None, b"", b"abc"))
            arguments[2:] = [data, ctypes.c_size_t(len(data or b""))]
        return arguments

    def take(self, name, code, out):
        kind = {"state_create": "state", "folder_open": "folder",
                "folder_open_latest": "checkpoint", "folder_open_step": "checkpoint",
                "checkpoint_open": "checkpoint", "checkpoint_open_named": "checkpoint",
                "saver_create": "saver", "manager_open": "manager"}.get(name)
        if code != 0 or not out.value or name == "checkpoint_entry":
            return
        if kind is None:
            ctypes.string_at(out)  # a report
            self.raw.tessera_text_free(out)
            return
        self.handles[kind].append(out)
        if len(self.handles[kind]) > 6:
            victim = self.handles[kind].pop(self.random.randrange(6))
            getattr(self.raw, f"tessera_{kind}_free")(victim)

    def finish(self):
        for kind, handles in self.handles.items():
            for handle in handles:
                getattr(self.raw, f"tessera_{kind}_free")(handle)
            getattr(self.raw, f"tessera_{kind}_free")(None)


class FuzzTest(unittest.TestCase):
    def test_random_arguments(self):
        with tempfile.TemporaryDirectory() as outer:
            scratch = f"{outer}/inner"  # what ".." leads to is the test's own, too
            good = f"{scratch}/good"
            state = {"w": np.arange(1000.0), "n": {"x": np.ones((3, 4, 2), "f4")}}
            tessera_ckpt.save(good, 5, state)
            tessera_ckpt.save(f"{scratch}/a", 5, state)  # what random names mean, too
            os.chdir(scratch)
            pathlib.Path("file").touch()
            fuzz = Fuzz(scratch, SEED)
            print(f"seed {SEED}, {CALLS} calls")
            for _ in range(CALLS):
                fuzz.call()
            fuzz.finish()
            named = {name for name, code in fuzz.codes}
            self.assertEqual(named, set(_library._FUNCTIONS))
            worked = {name for name, code in fuzz.codes if code == 0}
            print(f"{len(worked)} of {len(named)} functions have worked, too; codes: "
                  f"{sorted({code for _, code in fuzz.codes})}")
            self.assertGreater(len(worked), 15)
            self.assertTrue(tessera_ckpt.verify(good, digests=True))
            for found in tessera_ckpt.list_checkpoints(f"{scratch}/a"):
                self.assertTrue(tessera_ckpt.verify(found.path, digests=True))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        SEED = int(sys.argv.pop(1))
    if len(sys.argv) > 1:
        CALLS = int(sys.argv.pop(1))
    unittest.main()
