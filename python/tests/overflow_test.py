#!/usr/bin/env python3
"""No conversion to a narrower dtype makes an infinity of a number unasked."""

import math
import os
import unittest

import numpy as np
import tessera_ckpt
from scratch import Case

NAMED = r"tensor a: element \[1\] is 70000, which F16 cannot hold"


class OverflowTest(Case):
    def test_a_load(self):
        self.save({"a": np.array([1, 70000, math.inf, math.nan], "float32")})
        state = {"a": np.zeros(4, "float16")}
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, NAMED):
            tessera_ckpt.load(self.folder, state)
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, NAMED):
            tessera_ckpt.open(self.folder).read("a", np.zeros(4, "float16"))
        for load in (lambda **more: tessera_ckpt.load(self.folder, state, **more),
                     lambda **more: tessera_ckpt.open(self.folder).load(state, **more)):
            state["a"][:] = 0
            load(allow_overflow=True)
            self.assertEqual(repr(state["a"].tolist()), "[1.0, inf, inf, nan]")

    def test_memory_that_would_get_two_values(self):
        self.save({"a": np.array([1, 70000], "float32"), "b": np.array([1, 2], "float32")})
        memory = np.zeros(2, "float16")
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, "memory of their own"):
            tessera_ckpt.load(self.folder, {"a": memory[:], "b": memory[:]}, allow_overflow=True)
        self.assertEqual(memory.tolist(), [0, 0])

    def test_a_conversion(self):
        self.save({"a": np.array([1, 70000], "float32")})
        made = self.folder + ".torch"
        with self.assertRaisesRegex(tessera_ckpt.MismatchError, NAMED):
            tessera_ckpt.convert(self.folder, made, "torch", dtype="float16")
        self.assertFalse(os.path.exists(made))
        tessera_ckpt.convert(self.folder, made, "torch", dtype="float16", allow_overflow=True)
        self.assertEqual(tessera_ckpt.open_foreign(made).read("a").tolist(), [1, math.inf])
        with self.assertRaisesRegex(tessera_ckpt.InvalidArgumentError, "allow_overflow"):
            tessera_ckpt.convert(self.folder, made + "2", "tessera", allow_overflow=True)


if __name__ == "__main__":
    unittest.main()
