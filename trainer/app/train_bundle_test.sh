#!/bin/bash
# train_bundle_test.sh ARCHIVE
set -euo pipefail
exec python3 -B "$(dirname "${BASH_SOURCE[0]}")/train_bundle_test.py" "$1"
