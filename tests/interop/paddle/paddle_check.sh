#!/bin/bash
# PaddlePaddle loads what `ckpt convert` writes: $1 is ckpt, $2 paddle_check.py.
set -euo pipefail
exec "${TESSERA_PYTHON:-python3}" "$2" "$1" "$(dirname "$2")/testdata"
