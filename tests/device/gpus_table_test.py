#!/usr/bin/env python3
"""The table of docs/gpus.md, from the form that check.cc writes."""

import unittest

import gpus_table


class GpusTableTest(unittest.TestCase):
    def test_checks_have_a_line_and_figures_all_of_theirs(self):
        def check(name, outcome, seconds, detail, **figures):
            return {"name": name, "outcome": outcome, "seconds": seconds, "detail": detail,
                    "figures": figures}

        results = {
            "device": "NVIDIA X",
            "driver": "580.1",
            "products": "cuBLASLt 13.1",
            "date": "2026-12-01",
            "checks": [
                check("operations", "passed", 58.04, "45 groups agree\nAdd 0.1 | 0.2"),
                check("gpt2_124m", "passed", 9.5, "1 tokens/s\na save", tokens_per_second=1),
                check("pytorch_1558m", "left out", 0, "does not fit into --deadline=300"),
            ],
        }
        self.assertEqual(
            gpus_table.table(results),
            """NVIDIA X, driver 580.1, cuBLASLt 13.1, 2026-12-01:

| check | outcome | seconds | result |
| --- | --- | ---: | --- |
| `operations` | passed | 58.0 | 45 groups agree |
| `gpt2_124m` | passed | 9.5 | 1 tokens/s<br>a save |
| `pytorch_1558m` | left out | 0.0 | does not fit into --deadline=300 |
| all | | 67.5 | |""",
        )


if __name__ == "__main__":
    unittest.main()
