#!/bin/sh
# Writes the golden checkpoint in torch's formats and loads it with torch.
set -eu
python="${TESSERA_PYTHON:-python3}"
if ! "$python" -c "import safetensors, torch, transformers" 2> /dev/null; then
  echo "$python lacks safetensors, torch or transformers: set TESSERA_PYTHON to one that has" >&2
  exit 1
fi
"$python" "$1" "$2" tests/golden/v1/step-00000007 tests/interop/state_dict/trainer
