#!/usr/bin/env bash
# Starts campaign.py with the programs that Bazel built beside it.
set -euo pipefail
here=$(pwd)
exec /usr/bin/python3 -B "$here/tests/crash/campaign.py" \
  --train="$here/$1" --ckpt="$here/$2" --s3-server="$here/$3" "${@:4}"
