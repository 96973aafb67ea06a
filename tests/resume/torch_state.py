"""torch_state.py FILE [--bf16] < {"name": [shape], ...}

Writes what torch.save() of a model with these parameters and of its AdamW state holds: fp32
weights, or bf16 weights and their fp32 master copies.
"""

import json
import sys

import torch

file, bf16 = sys.argv[1], "--bf16" in sys.argv[2:]
weights = {name: torch.zeros(shape) for name, shape in json.load(sys.stdin).items()}
model = {name: weight.bfloat16() for name, weight in weights.items()} if bf16 else weights
optimizer = torch.optim.AdamW([torch.nn.Parameter(weight) for weight in weights.values()])
for group in optimizer.param_groups:
    for parameter in group["params"]:
        parameter.grad = torch.zeros_like(parameter)
optimizer.step()
state = {"model": model, "optimizer": optimizer.state_dict()}
if bf16:
    state["master_weights"] = weights
torch.save(state, file)
