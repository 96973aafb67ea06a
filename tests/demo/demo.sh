#!/usr/bin/env bash
# Starts demo.py with the programs that Bazel built beside it.
set -euo pipefail
here=$(pwd)
exec python3 "$here/tests/demo/demo.py" --train="$here/$1" --prepare_data="$here/$2" \
  --ckpt="$here/$3" --config="$here/$4" --launcher="$here/$5"
