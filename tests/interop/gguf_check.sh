#!/bin/sh
# Writes GGUF files, reads them with gguf and, where xllamacpp is there, runs them in llama.cpp:
# gguf_check.py.
set -eu
python="${TESSERA_PYTHON:-python3}"
if ! "$python" -c "import gguf, safetensors" 2> /dev/null; then
  echo "$python lacks gguf or safetensors: set TESSERA_PYTHON to one that has" >&2
  exit 1
fi
exec "$python" -B tests/interop/gguf_check.py "$@" tests/interop/pytorch
