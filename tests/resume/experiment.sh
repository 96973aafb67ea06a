#!/usr/bin/env bash
# Starts experiment.py with the programs that Bazel built beside it.
set -euo pipefail
here=$(pwd)
exec python3 "$here/tests/resume/experiment.py" --train="$here/$1" --prepare_data="$here/$2" \
  --ckpt="$here/$3" --compare_runs="$here/$4" --launcher="$here/$5" "${@:6}"
