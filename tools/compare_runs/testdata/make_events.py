#!/usr/bin/env python3
"""Writes the event files of testdata/summary_writer with PyTorch's SummaryWriter: a run of eight
steps that was stopped after step 6 and went on from step 4, with the tags of torchtitan, and
evaluations as tensors. Needs the packages torch and tensorboard.

make_events.py FOLDER
"""

import pathlib
import sys

import torch
from torch.utils.tensorboard import SummaryWriter


def write(folder, number, steps, offset, **options):
    """One process's event file: `offset` is added to its losses."""
    before = set(folder.iterdir())
    writer = SummaryWriter(str(folder), **options)
    writer.add_text("settings", "text, and a histogram, that are no scalars", 0)
    for step in steps:
        writer.add_scalar("loss_metrics/global_avg_loss", 4 / step + offset, step)
        writer.add_scalar("loss_metrics/global_max_loss", 9, step)
        writer.add_scalar("grad_norm", 1 / step, step)
        writer.add_scalar("throughput(tps)", 1000, step)
        writer.add_scalar("lr", 1e-3, step, new_style=True)
        if step % 4 == 0:
            writer.add_scalar("validation_metrics/loss", 5 / step, step, new_style=True,
                              double_precision=True)
    writer.add_histogram("weights", torch.arange(3.0), steps[-1])
    writer.close()
    (written,) = set(folder.iterdir()) - before
    written.rename(folder / f"events.out.tfevents.{number}.host")


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, 1, range(1, 7), 0.5)
    write(folder, 2, range(5, 9), 0, purge_step=5)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
