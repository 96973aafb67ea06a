"""Tests with a folder of their own."""

import tempfile
import unittest

import tessera_ckpt


class Case(unittest.TestCase):
    """`folder` is not there until something is saved, and is deleted afterwards."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name + "/runs"

    def save(self, state, step=1, **options):
        return tessera_ckpt.save(self.folder, step, state, **options)
