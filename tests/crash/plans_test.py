"""The campaign finds checkpoints where they may be, and the trainer accepts whatever it draws: of
2000 draws, those that have a pair of flags which none before had, as dry runs.

  plans_test.py TRAIN
"""

import itertools
import os
import random
import subprocess
import sys
import tempfile

import campaign
import history
import settings


def find_checkpoints():
    """In the folder, in a slot, and in an attempt's folder of a slot. A tombstone is none."""
    with tempfile.TemporaryDirectory() as folder:
        places = ["step-00000001", "rolling-0/step-00000002", "rolling-1/1a2b3c4d/step-00000003",
                  "rolling-1/5e6f7081/step-00000004"]
        for place in places:
            os.makedirs(os.path.join(folder, place))
            with open(os.path.join(folder, place, history.MANIFEST), "wb") as manifest:
                manifest.write(history.TOMBSTONE if place == places[3] else b"TESSER\n")
        found = history.committed(folder)
        if found != [(step, os.path.join(folder, places[step - 1])) for step in (1, 2, 3)]:
            sys.exit(f"found of {places}: {found}")


def main():
    train, = sys.argv[1:]
    find_checkpoints()
    random_ = random.Random(7)
    accepted, seen = 0, set()
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "tokens.bin")
        settings.write_tokens(data, random_)
        for number in range(2000):
            model = settings.pick_model(number, 60, True, random_)
            plan = campaign.pick_plan(model, random_)
            pairs = set(itertools.combinations(sorted(plan.saving), 2)) - seen
            if not pairs:
                continue
            seen |= pairs
            command = [train, *model.command_flags(data), *plan.saving, f"--save={folder}/saved",
                       f"--run-dir={folder}", "--dry-run"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                sys.exit(f"refused: {' '.join(plan.saving)}\n{result.stderr}")
            accepted += 1
    print(f"{accepted} plans with {len(seen)} pairs of flags are accepted")


if __name__ == "__main__":
    main()
