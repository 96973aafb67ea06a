#!/bin/bash
# Groups over MPI transfer, save and load, and name a rank that does not come.
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Names of Open MPI's files contain a process id, which other tests' sandboxes use, too.
export TMPDIR=$TEST_TMPDIR OMPI_MCA_btl_vader_backing_directory=$TEST_TMPDIR
main=$1
for ranks in 1 2 3 5; do
  mpirun --oversubscribe --bind-to none -n "$ranks" "$main" conformance "$TEST_TMPDIR/of-$ranks"
done
# Ends as a job does that has lost a rank: mpirun complains.
mpirun --oversubscribe --bind-to none -n 3 "$main" missing "$TEST_TMPDIR/told" || true
ls "$TEST_TMPDIR/told-0" "$TEST_TMPDIR/told-2"
