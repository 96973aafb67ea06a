#!/bin/sh
# The examples run, and what was saved under one sharding is there under another.
set -eu
reshard="$1"
load_tensor="$2"
ranks="$3"
manager="$4"
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

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export TMPDIR="$TEST_TMPDIR" OMPI_MCA_btl_vader_backing_directory="$TEST_TMPDIR"
mpi() { mpirun --oversubscribe --bind-to none -n "$@"; }
mpi 4 "$ranks" save "$TEST_TMPDIR/ranks"
# The last rank's columns, row by row.
mpi 2 "$ranks" load "$TEST_TMPDIR/ranks" > "$TEST_TMPDIR/columns"
for row in 0 1 2 3 4 5 6 7; do seq $((4 * row + 2)) $((4 * row + 3)); done > "$TEST_TMPDIR/expected"
diff "$TEST_TMPDIR/expected" "$TEST_TMPDIR/columns"
if mpi 2 "$ranks" save "$TEST_TMPDIR/ranks" 2> "$TEST_TMPDIR/error"; then
  echo "a committed checkpoint was overwritten by a group" >&2
  exit 1
fi
grep -q "never overwritten" "$TEST_TMPDIR/error"

# A job saves, keeps three checkpoints, and continues from the newest valid one.
jobs="$TEST_TMPDIR/jobs"
test "$("$manager" "$jobs" 45 | tail -1)" = "ends after step 45 with 45"
test "$(cd "$jobs" && echo step-*)" = "step-00000030 step-00000040 step-00000045"
echo damage > "$jobs/step-00000045/manifest.pb"
"$manager" "$jobs" 50 > "$TEST_TMPDIR/resumed"
grep -q "skipped .*/step-00000045: .*it is now called step-00000045.damaged" "$TEST_TMPDIR/resumed"
grep -q "begins after step 40" "$TEST_TMPDIR/resumed"
grep -q "ends after step 50 with 50" "$TEST_TMPDIR/resumed"
test -d "$jobs/step-00000045.damaged"
# A job that is complete trains no further when it is started again.
test "$("$manager" "$jobs" 50 | tail -1)" = "ends after step 50 with 50"
