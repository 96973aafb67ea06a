#!/bin/sh
# Checkpoints in another program's store: moto's server, and boto3 beside us as its client.
#
# Needs a Python with moto[server] and boto3: TESSERA_PYTHON. With TESSERA_PIP_INSTALL=1 they are
# installed into a new virtual environment, which is deleted afterwards.
set -eu
python="${TESSERA_PYTHON:-python3}"
if [ "${TESSERA_PIP_INSTALL:-0}" = 1 ]; then
  "$python" -m venv "$TEST_TMPDIR/venv"
  python="$TEST_TMPDIR/venv/bin/python"
  "$python" -m pip install --quiet "moto[server,s3]" boto3
fi
if ! "$python" -c "import boto3, flask, moto.server" 2> /dev/null; then
  echo "$python has no moto[server] or no boto3: set TESSERA_PYTHON, or TESSERA_PIP_INSTALL=1" >&2
  exit 1
fi
"$python" "$1" "$2" "$3"
