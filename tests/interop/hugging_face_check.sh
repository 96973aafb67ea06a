#!/bin/bash
# hugging_face_check.sh CKPT SCRIPT FIXTURE: FIXTURE is a file in the folder of the fixtures.
set -euo pipefail
python="${TESSERA_PYTHON:-python3}"
"$python" -c 'import torch, transformers' || {
  echo "this test needs a Python with torch and transformers, in TESSERA_PYTHON"
  exit 1
}
exec "$python" -B "$2" "$PWD/$1" "$PWD/$(dirname "$3")"
