#!/bin/bash
# Tries the wheel with the tools that its users have: each program of adapters/ whose packages the
# Python has. `adapters_check.sh WHEEL PROGRAM...`; TESSERA_ONLY names one of them.
set -euo pipefail
python="${TESSERA_PYTHON:-python3}"
unzip -q "$1" -d "$TEST_TMPDIR/package"
shift
export PYTHONPATH="$TEST_TMPDIR/package" PYTHONDONTWRITEBYTECODE=1
if [[ -n "${TESSERA_PIP_INSTALL:-}" ]]; then
  python3 -m venv "$TEST_TMPDIR/venv"
  python="$TEST_TMPDIR/venv/bin/python"
  "$python" -m pip install --quiet accelerate jax optax flax lightning transformers
fi
tried=0
for program in "$@"; do
  name="$(basename "$program" _check.py)"
  if [[ "${TESSERA_ONLY:-$name}" != "$name" ]]; then continue; fi
  if ! "$python" -c "import $name" 2>/dev/null; then
    echo "== $name: is not installed: not tried"
    continue
  fi
  echo "== $name"
  "$python" -W ignore "$program"
  tried=$((tried + 1))
done
echo "$tried of $# tried"
((tried > 0))
