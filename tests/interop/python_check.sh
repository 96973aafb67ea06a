#!/bin/bash
# Tries the wheel with torch: see python_check.py.
set -euo pipefail
readonly wheel="$(realpath "$1")" script="$(realpath "$2")" ckpt="$(realpath "$3")"
shift 3
python="${TESSERA_PYTHON:-python3}"
if [[ -n "${TESSERA_PIP_INSTALL:-}" ]]; then
  python3 -m venv "$TEST_TMPDIR/venv"
  python="$TEST_TMPDIR/venv/bin/python"
  "$python" -m pip install --quiet torch numpy torchtitan mpi4py jax optax
fi
if ! "$python" -c "import torch" 2>/dev/null; then
  echo "$python lacks torch: set TESSERA_PYTHON to one that has, or TESSERA_PIP_INSTALL=1" >&2
  exit 1
fi
unzip -q "$wheel" -d "$TEST_TMPDIR/package"
export PYTHONPATH="$TEST_TMPDIR/package" PYTHONDONTWRITEBYTECODE=1
"$python" -W ignore "$script" "$ckpt" "$@"
