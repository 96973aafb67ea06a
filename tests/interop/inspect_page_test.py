#!/usr/bin/env python3
"""The page of `ckpt inspect --html` as a browser draws it.

  inspect_page_test.py CKPT
"""

import collections
import io
import json
import math
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import zipfile

CKPT = pathlib.Path(sys.argv[1]).resolve()
MEGATRON = pathlib.Path("tests/interop/megatron/gpt2_tp2_pp2")
sys.path.insert(0, "tests/support")
import browser  # pylint: disable=wrong-import-position

HOSTILE = ("</script><script>document.title = 'owned'</script>",
           "<img src=x onerror=\"document.title = 'owned'\">", "<!--<script>", "a\u2028b\u2029c",
           "'\"`${document.title = 'owned'}", "{{DATA}}", "__proto__", "&lt;b&gt;", "n" * 2000)


def save_torch(path, tensors):
    """What torch.save() writes of {name: [numbers]}, all float or all int, without torch."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    storages = {kind: type(name, (), {"__module__": "torch"})
                for kind, name in ((float, "FloatStorage"), (int, "LongStorage"))}

    def rebuild(*_):
        pass
    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    rebuild.__name__ = "_rebuild_tensor_v2"
    torch.FloatStorage, torch.LongStorage = storages[float], storages[int]
    utils._rebuild_tensor_v2, torch._utils = rebuild, utils
    key_of = collections.namedtuple("key_of", "key count kind")

    class Tensor:
        def __init__(self, key, values):
            self.storage = key_of(str(key), len(values), type(values[0]))

        def __reduce__(self):
            return rebuild, (self.storage, 0, (self.storage.count,), (1,), False,
                             collections.OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if isinstance(obj, key_of):
                return ("storage", storages[obj.kind], obj.key, "cpu", obj.count)
            return None

    sys.modules.update({"torch": torch, "torch._utils": utils})
    pickled = io.BytesIO()
    Pickler(pickled, protocol=2).dump(
        {name: Tensor(i, values) for i, (name, values) in enumerate(tensors.items())})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled.getvalue())
        archive.writestr("archive/byteorder", "little")
        for i, values in enumerate(tensors.values()):
            code = "f" if isinstance(values[0], float) else "q"
            archive.writestr(f"archive/data/{i}", struct.pack(f"<{len(values)}{code}", *values))
        archive.writestr("archive/version", "3\n")


class InspectPage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.page = self.folder / "page.html"

    def ckpt(self, *arguments, code=0):
        result = subprocess.run([str(word) for word in (CKPT, *arguments)], check=False, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(result.returncode, code, result.stdout)
        return result.stdout

    def open(self, checkpoint, *flags, code=0):
        self.printed = self.ckpt("inspect", checkpoint, f"--html={self.page}", *flags, code=code)
        page = browser.Page(self.page, 1400, 1000)
        self.addCleanup(page.close)
        return page

    def sharded(self, topology):
        self.ckpt("convert", MEGATRON, self.folder / "ours", "--to=tessera",
                  f"--topology={topology}")
        return next((self.folder / "ours").iterdir())

    def check_tensor(self, page, name, shape):
        """Boxes cover the plane exactly once; bars count every element."""
        boxes = page.evaluate(
            "[...document.querySelectorAll('#plane rect.box')].map((box) => ['row', 'column',"
            "'rows', 'columns'].map((key) => Number(box.dataset[key])))")
        rows, columns = ([1, 1] + shape)[-2:]
        covered = collections.Counter((row + i, column + j) for row, column, height, width in boxes
                                      for i in range(height) for j in range(width))
        self.assertEqual(covered, collections.Counter(
            (i, j) for i in range(rows) for j in range(columns)), name)
        counts = page.evaluate("[...document.querySelectorAll('#histogram rect')]"
                               ".reduce((sum, bar) => sum + Number(bar.dataset.count), 0)")
        self.assertEqual(counts, rows * columns, name)
        return len(boxes)

    def test_tensors_boxes_and_histograms(self):
        for topology in ("tp2_pp2", "dp2_zero2_tp2_pp2"):
            self.setUp()
            checkpoint = self.sharded(topology)
            told = json.loads(self.ckpt("inspect", checkpoint, "--json"))
            page = self.open(checkpoint)
            self.assertEqual(page.count("#tensors tbody tr"), len(told["tensors"]))
            pieces = 0
            for i, tensor in enumerate(told["tensors"]):
                page.evaluate(f"document.querySelectorAll('#tensors tbody tr')[{i}].click()")
                self.assertEqual(page.text("#chosen"), tensor["name"])
                if "alias_of" not in tensor:
                    self.assertEqual(self.check_tensor(page, tensor["name"], tensor["shape"]),
                                     tensor["shards"])
                    pieces += tensor["shards"]
            self.assertGreater(pieces, len(told["tensors"]))
            self.assertTrue(page.evaluate(
                "tensors.every((t) => filesOf(t).length === (t.file_count ?? 0))"))
            self.assertEqual(page.count("#files svg.map"), len(told["files"]))
            # The weights are so small that the first replica writes all of them.
            replicas = 2 if topology.startswith("dp2") else 1
            self.assertEqual(page.evaluate("data.files.filter((file) => file.rank >= 0).length"),
                             sum(replicas == 1 or "optimizer" in file["path"]
                                 for file in told["files"]))
            self.assertIn(topology, page.text("#head"))
            self.assertGreater(page.count("#norms circle"), 3 * 20)
            self.assertEqual(page.overflow(375), 0)  # on a phone
            self.assertEqual(page.faults, [])

    def test_every_format(self):
        shown = 0
        for path in sorted(pathlib.Path("tests/interop").glob("*/*")):
            told = subprocess.run([CKPT, "inspect", path, "--json"], check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if told.returncode != 0:
                continue  # not a checkpoint by itself
            shown += 1
            self.ckpt("inspect", path, f"--html={self.page}")
            text = self.page.read_text(encoding="utf-8")
            data = json.loads(text.split('id="data">')[1].split("</script>")[0])
            tensors = json.loads(told.stdout)["tensors"]
            self.assertEqual([t["name"] for t in data["tensors"]], [t["name"] for t in tensors])
            for tensor in data["tensors"]:
                if "alias_of" in tensor or tensor["elements"] == 0:
                    continue
                boxes = sum(math.prod(box["shape"]) for box in tensor["boxes"])
                sides = (tensor["histogram"].get(side, {}) for side in ("negative", "positive"))
                counts = sum(sum(side.get("counts", ())) for side in sides)
                counts += tensor["histogram"].get("tiny", 0) + sum(tensor.get(key, 0) for key in (
                    "zeros", "nan", "positive_infinities", "negative_infinities"))
                self.assertEqual((boxes, counts), 2 * (tensor["elements"],), tensor["name"])
        self.assertGreater(shown, 40)

    def test_search_sorts_and_filters(self):
        page = self.open(MEGATRON)
        rows = page.count("#tensors tbody tr")
        page.evaluate("at('search').value = 'H.1 bias'; at('search').oninput()")
        names = page.evaluate("[...document.querySelectorAll('#tensors tbody tr')]"
                              ".map((row) => row.dataset.name)")
        self.assertTrue(0 < len(names) < rows)
        for name in names:
            self.assertIn("h.1", name)
            self.assertIn("bias", name)
        page.evaluate("at('search').value = ''; at('role').value = 'OPTIMIZER_STATE';"
                      "at('role').onchange()")
        self.assertTrue(0 < page.count("#tensors tbody tr") < rows)
        page.click("#tensors th:nth-child(6)")  # the norm, the largest first
        norms = page.evaluate("matching().map((tensor) => tensor.norm)")
        self.assertEqual(norms, sorted(norms, reverse=True))
        self.assertEqual(page.faults, [])

    def test_names_are_texts(self):
        values = [0.0, -0.0, 1e-45, -3.5, 2.0, 2.5, float("inf"), float("-inf"), float("nan")]
        save_torch(self.folder / "hostile.pt", {name: values for name in HOSTILE})
        page = self.open(self.folder / "hostile.pt")
        self.assertEqual(page.evaluate("tensors.map((tensor) => tensor.name)"), list(HOSTILE))
        for i, name in enumerate(HOSTILE):
            page.evaluate(f"document.querySelectorAll('#tensors tbody tr')[{i}].click()")
            self.assertEqual(page.evaluate("at('chosen').textContent"), name)
            self.check_tensor(page, name, [len(values)])
        self.assertEqual(page.evaluate("document.title"), f"{self.folder}/hostile.pt - checkpoint")
        self.assertEqual(page.count("img") + page.count("#tensors script"), 0)
        self.assertEqual(page.evaluate("COLUMNS.find((c) => c.title === 'not finite')"
                                       ".value(tensors[0])"), 3)
        self.assertEqual(page.faults, [])

    def test_difference(self):
        same = {"same": [1.0, 2.0]}
        save_torch(self.folder / "a.pt", {**same, "other": [1.0, 2.0, 3.0], "gone": [1.0]})
        save_torch(self.folder / "b.pt", {**same, "other": [1.0, 2.5, 3.0], "new": [1.0]})
        page = self.open(self.folder / "a.pt", f"--diff={self.folder}/b.pt", code=1)
        self.assertEqual(page.evaluate("tensors.map((tensor) => tensor.difference.short)"),
                         ["equal", "1 element differs, by at most 0.5", "only in the first"])
        difference = page.evaluate("byName.get('other').difference")
        self.assertEqual((difference["elements"], difference["max"], difference["norm"]),
                         (1, 0.5, 0.5))
        self.assertAlmostEqual(difference["rms"], (0.25 / 3) ** .5)
        self.assertEqual(page.evaluate("data.other.only"), ["new"])
        self.assertIn("equal tensors: 1, tensor differences: 3", page.text("#verdict"))
        self.assertIn("tensor differences: 3", self.printed)
        self.assertEqual(page.count("#differing tbody tr"), 2)
        infinite = float("inf")
        save_torch(self.folder / "c.pt", {"count": [1, 2, 3], "far": [1.0, 2.0]})
        save_torch(self.folder / "d.pt", {"count": [1, 5, 3], "far": [4.0, infinite]})
        page = self.open(self.folder / "c.pt", f"--diff={self.folder}/d.pt", code=1)
        # Nothing is said of how far integers are apart.
        self.assertEqual(page.evaluate("byName.get('count').difference"),
                         {"elements": 1, "short": "1 element differs",
                          "messages": ["1 element differs"]})
        page.evaluate("choose(byName.get('far'))")
        self.assertRegex(page.text("#detail"),
                         r"difference, without distance\s+1\n*\s*difference, max\s+inf")
        self.assertEqual(page.faults, [])
        page = self.open(self.folder / "a.pt", f"--diff={self.folder}/a.pt")
        self.assertIn("the two hold the same state", page.text("#other"))
        self.assertEqual(page.faults, [])

    def test_damage(self):
        intact = self.sharded("tp2_pp2")
        name = "transformer.h.0.mlp.c_fc.weight"
        page = self.open(intact)
        box = page.evaluate(f"byName.get('{name}').boxes[1]")
        path = intact / page.evaluate(f"data.files[{box['file']}].path")
        contents = bytearray(path.read_bytes())
        contents[box["at"] + 3] ^= 1
        path.write_bytes(contents)
        page = self.open(intact, code=1)
        self.assertIn(name, self.printed)
        self.assertIn(name, page.text("#damage"))
        self.assertEqual(page.text("#chosen"), name)
        self.assertEqual(page.evaluate("tensors.filter((tensor) => tensor.damaged).length"), 1)
        path.write_bytes(contents[:box["at"] + 3])
        page = self.open(intact, f"--diff={MEGATRON}", code=1)
        self.assertIn(name, page.text("#damage"))
        self.assertIn(name, page.text("#differing"))
        self.assertNotIn("the same state", self.printed)
        self.assertEqual(page.faults, [])

    def test_damage_of_what_the_other_lacks(self):
        intact, weights = self.sharded("tp2_pp2"), self.folder / "hf"
        self.ckpt("convert", MEGATRON, weights, "--to=hf")
        page = self.open(intact, f"--diff={weights}")
        equal = page.evaluate("data.other.equal")
        self.assertGreater(equal, 20)
        box = page.evaluate("tensors.findLast((t) => t.role === 'OPTIMIZER_STATE').boxes[0]")
        path = intact / page.evaluate(f"data.files[{box['file']}].path")
        contents = bytearray(path.read_bytes())
        contents[box["at"] + 3] ^= 1
        path.write_bytes(contents)
        page = self.open(intact, f"--diff={weights}", code=1)
        self.assertEqual(page.evaluate("[data.other.equal, data.other.tensors]"), [equal, 1])
        self.assertIn("damaged in the first", page.text("#differing"))
        self.assertEqual(page.faults, [])

    def test_damage_of_what_is_sealed(self):
        theirs = self.folder / "theirs"
        shutil.copytree(MEGATRON, theirs)
        self.ckpt("seal", theirs)
        page = self.open(theirs)
        self.assertRegex(page.text("#damage"), r"every byte of \d+ files is what it was")
        name = "transformer.h.1.mlp.c_proj.weight"
        box = page.evaluate(f"byName.get('{name}').boxes[0]")
        path = theirs / page.evaluate(f"data.files[{box['file']}].path")
        contents = bytearray(path.read_bytes())
        contents[box["at"]] ^= 1
        path.chmod(0o644)
        path.write_bytes(contents)
        page = self.open(theirs, code=1)
        self.assertIn(f"{path.name} at offset {box['at']}", page.text("#damage"))
        self.assertEqual(page.text("#chosen"), name)
        self.assertEqual(page.evaluate("tensors.filter((tensor) => tensor.damaged).length"), 1)
        # A damaged seal proves nothing.
        seal = theirs / "tessera.seal"
        seal.write_bytes(seal.read_bytes()[:-1])
        page = self.open(theirs, code=1)
        self.assertIn("tessera.seal", page.text("#damage"))
        self.assertEqual(page.faults, [])


if __name__ == "__main__":
    if browser.CHROMIUM is None:
        print(browser.SKIPPED)
    else:
        unittest.main(argv=sys.argv[:1])
