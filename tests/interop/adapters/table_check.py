"""The lines of the table "Coming from" of docs/python.md, each with the tool that it is of.

  table_check.py PAGE
"""

import importlib
import os
import re
import sys
import tempfile

import tessera_ckpt

# What a line finds: the module of the tool, and the program around it.
PROGRAMS = {
    "torch.save": ("torch", """
import torch
import tessera_ckpt
state = {"model": torch.nn.Linear(3, 4).state_dict(), "step": 7}
step = 7
"""),
    "torch.save, one file": ("torch", """
import torch
import tessera_ckpt
state = {"model": torch.nn.Linear(3, 4).state_dict(), "step": 7}
tessera_ckpt.save("runs/best", 0, {"model": {}, "step": 3})
"""),
    "DCP": ("torch", """
import torch
import torch.distributed.checkpoint as dcp
import tessera_ckpt.dcp
state = {"model": torch.nn.Linear(3, 4).state_dict(), "step": 7}
"""),
    "dcp_to_torch_save": ("torch", """
import torch
import torch.distributed.checkpoint as dcp
import tessera_ckpt.dcp
dcp.save({"w": torch.ones(3)}, storage_writer=tessera_ckpt.dcp.Writer("runs/a", step=7))
"""),
    "Lightning": ("lightning", """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = ""
from lightning import Trainer
import tessera_ckpt.lightning
"""),
    "accelerate": ("accelerate", """
import torch
import accelerate
import tessera_ckpt.accelerate
accelerator = accelerate.Accelerator(cpu=True)
model = torch.nn.Linear(3, 4)
accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
"""),
    "Transformers": ("transformers", """
import transformers
import tessera_ckpt.transformers
"""),
    "Megatron-Core": ("megatron.core", """
import os
import torch
from megatron.core import dist_checkpointing
import tessera_ckpt.megatron
if not torch.distributed.is_initialized():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                         world_size=1)
state = {"w": dist_checkpointing.ShardedTensor.from_rank_offsets("w", torch.ones(3))}
folder = "runs/megatron"
os.makedirs(folder)
"""),
    "torchtitan": ("torchtitan", """
import types
import tessera_ckpt.torchtitan
config = types.SimpleNamespace()
"""),
    "Orbax": ("jax", """
import jax
import tessera_ckpt
state = {"w": jax.numpy.ones(3)}
step = 7
"""),
}


def rows(page):
    with open(page, encoding="utf-8") as file:
        text = file.read()
    table = text[text.index("## Coming from"):].split("\n\n")[2]
    for line in table.splitlines()[2:]:
        tool, *_, code = (cell.strip() for cell in line.strip("|").split(" | "))
        yield re.sub(r"[`\[\]]|\(.*\)", "", tool), re.fullmatch(r"`(.*)`\s*", code)[1]


def main():
    found = list(rows(sys.argv[1]))
    assert [tool for tool, _ in found] == list(PROGRAMS), [tool for tool, _ in found]
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        for number, (tool, code) in enumerate(found):
            module, program = PROGRAMS[tool]
            try:
                importlib.import_module(module)
            except ImportError:
                print(f"{tool}: is not installed: not tried")
                continue
            os.makedirs(f"{folder}/{number}")
            os.chdir(f"{folder}/{number}")
            names = {}
            exec(program, names)  # pylint: disable=exec-used
            exec(compile(code, f"{tool} of {sys.argv[1]}", "exec"), names)
            print(f"{tool}: {code}")
        os.chdir("/")
    print(f"tessera_ckpt {tessera_ckpt.__version__}: all good")


if __name__ == "__main__":
    main()
