#!/bin/bash
# Tries the wheel with the tools that its users have: the code of the user's pages, and each program
# of adapters/ whose package the Python has.
#
#   adapters_check.sh WHEEL GUIDE REFERENCE PAGE_TEST PROGRAM...
#
# TESSERA_ONLY names one of the programs.
set -euo pipefail
readonly wheel="$1" guide="$2" reference="$3" page_test="$4"
shift 4
python="${TESSERA_PYTHON:-python3}"
if [[ -n "${TESSERA_PIP_INSTALL:-}" ]]; then
  python3 -m venv "$TEST_TMPDIR/venv"
  python="$TEST_TMPDIR/venv/bin/python"
  "$python" -m pip install --quiet accelerate jax optax flax lightning transformers
fi
unzip -q "$wheel" -d "$TEST_TMPDIR/package"
export PYTHONPATH="$TEST_TMPDIR/package" PYTHONDONTWRITEBYTECODE=1
tried=0
for program in "$page_test" "$@"; do
  name="$(basename "$program" .py)"
  name="${name%_check}"
  if [[ "${TESSERA_ONLY:-$name}" != "$name" ]]; then continue; fi
  arguments=()
  case "$name" in
    page_test)
      arguments=("$guide" "$reference")
      for module in torch jax; do
        if "$python" -c "import $module" 2>/dev/null; then arguments+=("--$module"); fi
      done
      ;;
    table) arguments=("$guide") ;;
    *)
      if ! "$python" -c "import $name" 2>/dev/null; then
        echo "== $name: is not installed: not tried"
        continue
      fi
      ;;
  esac
  echo "== $name"
  "$python" -W ignore "$program" "${arguments[@]}"
  tried=$((tried + 1))
done
echo "$tried tried"
((tried > 0))
