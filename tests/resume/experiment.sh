#!/usr/bin/env bash
# Starts an experiment beside the programs that it runs: tests/NAME/experiment.py.
set -euo pipefail
PYTHONPATH=tests/resume exec python3 "tests/$1/experiment.py" "${@:2}"
