#!/usr/bin/env python3
"""Pages about runs, as Chromium draws them.

    report_browser_test.py REPORT          runs the tests
    report_browser_test.py REPORT --picture=FILE RUN...    makes a picture of these runs' page
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
sys.path.insert(0, "tests/support")
import browser  # pylint: disable=wrong-import-position

REPORT = ""
STEPS = 40
HOSTILE = "</script><script>throw 1</script><img src=x onerror=throw(2)><!--\u2028&amp;\"'"


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def write_run(folder, *, steps=STEPS, loss=5.0, text="a sentence", settings="lr: 0.003"):
    """A run with everything that a page can show."""
    folder.mkdir(parents=True)
    ranks = [{"rank": rank, "weights": 1 << 20, "gradients": 1 << 20, "optimizer": 2 << 20,
              "activations": 3 << 20} for rank in range(4)]
    time = {"compute": .6, "communication": .2, "waiting": .15, "saving": .05}
    wire = {"dp": {"reduce-scatter": 1 << 20}, "tp": {"all-reduce": 3 << 20}}
    write_lines(folder / "metrics.jsonl", [
        {"kind": "step", "step": step, "loss": None if step == 20 else loss / step ** .5,
         "lr": 1e-3 * step, "grad_norm": 1.5, "tokens_per_second": 5000 + step, "peak_share": .5,
         "pipeline_wait_share": .1, "memory_bytes": 7 << 20, "step_seconds": 1, "time": time,
         "wire_bytes": 4 << 20, "wire": wire, "ledger": "ab" * 32}
        for step in range(1, steps + 1)
    ] + [{"kind": "eval", "step": step, "eval_loss": 1.0} for step in (10, 20, 30)])
    write_lines(folder / "saves.jsonl", [
        {"kind": "save", "step": step, "ledger": "11" * 32, "state": "22" * 32, "save": "33" * 32}
        for step in (10, 20)])
    start = {"topology": "dp2_tp2", "parameters": 124e6, "ranks": ranks,
             "predicted_step_seconds": .9}
    write_lines(folder / "events.jsonl", [{"kind": "event", "time": 1.8e9, "text": text, **event}
                                          for event in (
        {"event": "start", "step": 0, **start},
        {"event": "saved", "step": 10, "seconds": .5, "bytes": 1 << 20, "directory": "/x/step-10",
         "ranks": [{"rank": rank, "planning": .01, "copying": .1, "writing": .1 * rank,
                    "syncing": .05, "seconds": .2 + .1 * rank} for rank in range(4)]},
        {"event": "resume", "step": 10, **start, "lost_steps": 5, "lost_seconds": 2.5,
         "down_seconds": 60},
        {"event": "skipped_damaged", "step": 15}, {"event": "signal", "step": 25},
        {"event": "sample", "step": 30, "prompt": "once"}, {"event": "end", "step": 40})])
    (folder / "config.textproto").write_text(
        f'output {{\n  run_dir: "{folder}"\n}}\noptimizer {{\n  {settings}\n}}\n')
    return folder


class ReportPageTest(unittest.TestCase):
    def setUp(self):
        parent = tempfile.TemporaryDirectory()
        self.addCleanup(parent.cleanup)
        self.folder = pathlib.Path(parent.name)

    def open(self, *runs):
        output = self.folder / "page.html"
        subprocess.run([REPORT, *map(str, runs), f"--output={output}"], check=True,
                       stdout=subprocess.DEVNULL)
        page = browser.Page(output)
        self.addCleanup(page.close)
        self.addCleanup(lambda: self.assertEqual(page.faults, []))
        return page

    def points(self, page, chart):
        """Numbers of points of a chart's curves."""
        paths = page.evaluate(f"[...document.querySelectorAll('#{chart} .curve')]"
                              ".map((path) => path.getAttribute('d'))")
        return [len(re.findall("[ML]", path)) for path in paths]

    def texts(self, page, selector):
        return page.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})]"
                             ".map((node) => node.textContent)")

    def test_everything_of_one_run(self):
        page = self.open(write_run(self.folder / "mine"))
        loss = "loss_and_validation_loss"
        self.assertEqual(self.texts(page, ".chart h3"), [
            "loss, and validation loss", "gradient norm", "learning rate", "tokens/s",
            "share of peak", "pipeline bubble", "memory", "over steps",
            "save of step 10, 500 ms"])
        self.assertEqual(self.points(page, loss), [STEPS - 1, 3])  # one step has no loss: a gap
        self.assertEqual(self.points(page, "memory"), [STEPS])
        self.assertEqual(self.texts(page, "#memory .x"), ["10", "20", "30", "40"])
        self.assertEqual(self.texts(page, "#memory .y"), ["0 B", "2 MiB", "4 MiB", "6 MiB"])
        self.assertEqual(self.texts(page, "#memory .label"), ["step"])
        marks = page.evaluate(f"[...document.querySelectorAll('#{loss} .mark')]"
                              ".map((mark) => mark.classList[1])")
        self.assertEqual(marks, ["saved", "resume", "skipped_damaged", "signal", "end"])
        self.assertEqual(page.count(".events tbody tr"), 6)
        self.assertIn("dp2_tp2, 5 steps lost, 2.50 s computed again, down for 60.0 s",
                      page.text(".events"))
        self.assertRegex(page.text("#overview"),
                         r"resumes\s+1: 5 steps lost, 2.50 s computed again, down for 60.0 s\n")
        self.assertEqual(page.count("svg.times rect"), 4 * STEPS)
        shades = page.evaluate("[...document.querySelectorAll('svg.heat rect')]"
                               ".map((cell) => Number(cell.getAttribute('fill-opacity')))")
        self.assertEqual(len(shades), 5 * 4)
        self.assertAlmostEqual(shades[-1], .7)  # the whole of the slowest rank
        self.assertAlmostEqual(shades[-3], .7 * .6)  # its writing
        self.assertIn("rank 3", self.texts(page, "svg.heat text"))
        for text in ("60.0 %", "all-reduce", "3 MiB", "rank 3", "124 M", "ab" * 32, "33" * 32):
            self.assertIn(text, page.text())
        self.assertNotIn(str(self.folder), page.evaluate("document.documentElement.outerHTML"))
        self.assertEqual(page.overflow(375), 0)  # on a phone

    def test_mouse_and_scale(self):
        page = self.open(write_run(self.folder / "mine"))
        loss = "#loss_and_validation_loss"
        page.hover("#gradient_norm svg", 0.999)
        self.assertIn("step 40", page.text("#gradient_norm output"))
        self.assertIn("0.79057", page.text(f"{loss} output"))  # every chart shows that step
        before = self.texts(page, f"{loss} .y")
        page.click(f"{loss} input")
        self.assertNotEqual(self.texts(page, f"{loss} .y"), before)
        self.assertEqual(self.points(page, "loss_and_validation_loss"), [STEPS - 1, 3])

    def test_several_runs(self):
        page = self.open(write_run(self.folder / "a"),
                         write_run(self.folder / "b", steps=30, settings="lr: 0.001"))
        self.assertEqual(self.points(page, "gradient_norm"), [40, 30])
        self.assertEqual(page.text("#differences").split(),
                         ["a", "b", "optimizer.lr", "0.003", "0.001"])
        page.click("button.run")
        self.assertEqual(self.points(page, "gradient_norm"), [30])

    def test_texts_are_no_markup(self):
        name = "<b>run<b>&quot;"
        run = write_run(self.folder / name, text=HOSTILE)
        (run / "config.textproto").write_text(HOSTILE, encoding="utf-8")
        with (run / "events.jsonl").open("a", encoding="utf-8") as file:
            for event in ("constructor", "__proto__", HOSTILE):
                file.write(json.dumps({"kind": "event", "event": event, "step": 2, "time": 1e300,
                                       "topology": HOSTILE}) + "\n")
        with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
            for step in (1 << 62, -(1 << 62)):
                file.write(json.dumps({"kind": "step", "step": step, "loss": 1e308,
                                       "wire": {HOSTILE: {"__proto__": 1}}}) + "\n")
        page = self.open(run)
        self.assertEqual(page.text("h1"), name)
        self.assertEqual(page.count("img"), 0)
        self.assertEqual(page.evaluate("document.querySelector('.samples pre').textContent"),
                         HOSTILE)
        self.assertEqual(page.evaluate("document.querySelector('.settings pre').textContent"),
                         HOSTILE)

    def test_runs_that_lack_things(self):
        old = self.folder / "old"
        write_run(old)
        (old / "events.jsonl").unlink()
        records = [json.loads(line) for line in (old / "metrics.jsonl").read_text().splitlines()]
        for record in records:
            for name in ("time", "memory_bytes", "wire", "pipeline_wait_share", "ledger"):
                record.pop(name, None)
        write_lines(old / "metrics.jsonl", records)
        with (old / "metrics.jsonl").open("a") as file:
            file.write("damaged\n")
        page = self.open(old)
        self.assertIn("1 damaged line is left out", page.text(".warn"))
        self.assertEqual(self.texts(page, "h2"),
                         ["Curves", "Events", "Ledger and saves", "Settings"])
        self.assertEqual(page.count("#gradient_norm .mark.saved"), 2)  # as saves.jsonl has them
        with (old / "metrics.jsonl").open("a") as file:
            file.write('{"kind":"step","step":41,"loss":null,"skipped":true}\n')
        self.assertRegex(self.open(old).text("#overview"),
                         r"last loss\s+not finite\s+steps without an update\s+1\n")
        bare = self.folder / "bare"
        bare.mkdir()
        (bare / "metrics.jsonl").touch()
        self.assertIn("No step is recorded.", self.open(bare).text())
        self.assertEqual(self.points(self.open(bare, old), "gradient_norm"), [STEPS])  # and no 41st

    def test_the_browser_sees_faults(self):
        path = self.folder / "bad.html"
        path.write_text("<script>nowhere();</script><img src='other.png'>")
        with browser.Page(path) as page:
            self.assertIn("nowhere is not defined", str(page.faults))
            self.assertIn("other.png", str(page.faults))


def take_picture(output, runs):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([REPORT, *runs, f"--output={folder}/page.html"], check=True)
        with browser.Page(f"{folder}/page.html", width=1000, height=850) as page:
            page.hover(".chart svg", 0.6)
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(output)


if __name__ == "__main__":
    REPORT = os.path.abspath(sys.argv.pop(1))
    if browser.CHROMIUM is None:
        print(browser.SKIPPED)
    elif sys.argv[1:] and sys.argv[1].startswith("--picture="):
        take_picture(sys.argv[1].partition("=")[2], sys.argv[2:])
    else:
        unittest.main()
