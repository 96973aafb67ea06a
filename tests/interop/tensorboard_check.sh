#!/bin/sh
# Reads the event file of a run folder with the package tensorboard, and compares its scalars with
# metrics.jsonl.
set -eu
python="${TESSERA_PYTHON:-python3}"
if ! "$python" -c "import tensorboard" 2> /dev/null; then
  echo "$python has no tensorboard: set TESSERA_PYTHON to one that has" >&2
  exit 1
fi
exec "$python" -B - "${1:?the folder of a run is missing: --test_arg=FOLDER}" << 'END'
import json
import math
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

folder = sys.argv[1]
events = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
expected = {}
with open(folder + "/metrics.jsonl", encoding="utf-8") as file:
    for record in map(json.loads, file):
        prefix = "train/" if record["kind"] == "step" else "validation/"
        for name, value in record.items():
            if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool):
                tag = prefix + ("loss" if name == "eval_loss" else name)
                expected.setdefault(tag, {})[record["step"]] = value
assert expected, "metrics.jsonl holds nothing"
for tag, values in expected.items():
    found = events.Scalars(tag)
    assert [event.step for event in found] == list(values), tag
    for event in found:
        assert math.isclose(event.value, values[event.step], rel_tol=1e-6), (tag, event)
for tag in events.Tags()["tensors"]:
    for event in events.Tensors(tag):
        assert events.SummaryMetadata(tag).plugin_data.plugin_name == "text", tag
        print(tag, event.step, event.tensor_proto.string_val[0].decode()[:60])
print(len(expected), "tags are as metrics.jsonl has them:", ", ".join(expected))
END
