#!/bin/sh
# The examples run, and what was saved under one sharding is there under another.
set -eu
reshard="$1"
load_tensor="$2"
ranks="$3"
state="$TEST_TMPDIR/state"

"$reshard" "$state" > "$TEST_TMPDIR/columns"
test -f "$state/run/step-00000100/manifest.pb"
{ seq 1 4 29; seq 2 4 30; } > "$TEST_TMPDIR/expected"
diff "$TEST_TMPDIR/expected" "$TEST_TMPDIR/columns"

"$load_tensor" "$state/run" weight > "$TEST_TMPDIR/elements"
seq 0 31 > "$TEST_TMPDIR/expected"
diff "$TEST_TMPDIR/expected" "$TEST_TMPDIR/elements"

if "$load_tensor" "$state/run" wait 2> "$TEST_TMPDIR/error"; then
  echo "a tensor that is not there was loaded" >&2
  exit 1
fi
grep -q "no tensor wait in" "$TEST_TMPDIR/error"

if "$reshard" "$state" 2> "$TEST_TMPDIR/error"; then
  echo "a committed checkpoint was overwritten" >&2
  exit 1
fi
grep -q "never overwritten" "$TEST_TMPDIR/error"

# Columns 0 and 1, row by row, then 2 and 3.
"$ranks" "$TEST_TMPDIR/ranks" > "$TEST_TMPDIR/columns"
for first in 0 2; do
  for row in 0 1 2 3 4 5 6 7; do seq $((4 * row + first)) $((4 * row + first + 1)); done
done > "$TEST_TMPDIR/expected"
diff "$TEST_TMPDIR/expected" "$TEST_TMPDIR/columns"
if "$ranks" "$TEST_TMPDIR/ranks" 2> "$TEST_TMPDIR/error"; then
  echo "a committed checkpoint was overwritten by a group" >&2
  exit 1
fi
grep -q "never overwritten" "$TEST_TMPDIR/error"
