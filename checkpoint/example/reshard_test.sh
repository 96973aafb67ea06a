#!/bin/sh
# The example runs, and refuses to overwrite what it saved before.
set -eu
"$1" "$TEST_TMPDIR/state"
test -f "$TEST_TMPDIR/state/run/step-00000100/manifest.pb"
if "$1" "$TEST_TMPDIR/state" 2> "$TEST_TMPDIR/error"; then
  echo "a committed checkpoint was overwritten" >&2
  exit 1
fi
grep -q "never overwritten" "$TEST_TMPDIR/error"
