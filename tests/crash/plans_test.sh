#!/usr/bin/env bash
set -euo pipefail
here=$(pwd)
exec /usr/bin/python3 -B "$here/tests/crash/plans_test.py" "$here/$1"
