"""Prints the table of docs/gpus.md from what `check_device --json=FILE` has written.

gpus_table.py FILE
"""

import json
import pathlib
import sys


def cell(text):
    return text.replace("|", "\\|").replace("\n", "<br>")


def table(results):
    """The table, under a sentence that names GPU, driver, library and day."""
    lines = [
        f"{results['device']}, driver {results['driver']}, {results['products']}, "
        f"{results['date']}:",
        "",
        "| check | outcome | seconds | result |",
        "| --- | --- | ---: | --- |",
    ]
    for check in results["checks"]:
        detail = check["detail"]
        # Checks have a line for each group of what they compare; figures are all of a result.
        if not check["figures"]:
            detail = detail.split("\n")[0]
        name, outcome = check["name"], check["outcome"]
        lines.append(f"| `{name}` | {outcome} | {check['seconds']:.1f} | {cell(detail)} |")
    seconds = sum(check["seconds"] for check in results["checks"])
    lines.append(f"| all | | {seconds:.1f} | |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads(pathlib.Path(sys.argv[1]).read_text())))
