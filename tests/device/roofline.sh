#!/bin/bash
# roofline.sh OBJECT...
set -euo pipefail
PYTHONPATH=compute/kernels/cuda exec python3 -B tests/device/roofline.py "$@"
