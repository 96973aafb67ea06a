#!/bin/bash
# spill_test.sh REPORT...
set -euo pipefail
exec python3 -B compute/kernels/cuda/spill_test.py "$@"
