#!/bin/bash
# faults.sh TESSERA_RANK FAULTS_PY [FLAG...]: in a user namespace of its own, where there are such,
# so that it may mount small and read-only file systems.
#
# Needs a Python with torch, orbax-checkpoint and jax: TESSERA_PYTHON. With TESSERA_PIP_INSTALL=1
# they are installed into a new virtual environment, which is deleted afterwards.
set -euo pipefail
python="${TESSERA_PYTHON:-python3}"
if [[ "${TESSERA_PIP_INSTALL:-0}" == 1 ]]; then
  "$python" -m venv "$TEST_TMPDIR/venv"
  python="$TEST_TMPDIR/venv/bin/python"
  "$python" -m pip install --quiet torch jax orbax-checkpoint
fi
if ! "$python" -c "import torch, jax, orbax.checkpoint" 2> /dev/null; then
  echo "$python has no torch, jax or orbax-checkpoint: set TESSERA_PYTHON, or" \
    "TESSERA_PIP_INSTALL=1" >&2
  exit 1
fi
namespace=()
if unshare --user --map-root-user --mount true 2> /dev/null; then
  namespace=(unshare --user --map-root-user --mount)
fi
exec "${namespace[@]}" "$python" -B "$2" "$1" "${@:3}"
