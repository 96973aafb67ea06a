#!/usr/bin/env bash
# Starts an experiment beside the programs that it runs: tests/NAME.py.
set -euo pipefail
PYTHONPATH=tests/resume exec python3 "tests/$1.py" "${@:2}"
