#!/bin/sh
# Opens data files with Python's safetensors: with one shard per file and with several.
set -eu
python="${TESSERA_PYTHON:-python3}"
if ! "$python" -c "import safetensors, torch" 2> /dev/null; then
  echo "$python has no safetensors or no torch: set TESSERA_PYTHON to one that has" >&2
  exit 1
fi
"$1" "$TEST_TMPDIR/written"
"$python" "$2" "$TEST_TMPDIR/written/step-00000007"
"$python" "$2" tests/golden/v1/step-00000007
