#!/bin/bash
# Runs the conformance suite over processes.
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Names of Open MPI's files contain a process id, which other tests' sandboxes use, too.
export TMPDIR=$TEST_TMPDIR OMPI_MCA_btl_vader_backing_directory=$TEST_TMPDIR
main=$1
for ranks in 1 2 3 5 8; do
  mpirun --oversubscribe --bind-to none -n "$ranks" "$main" conformance
done
mpirun --oversubscribe --bind-to none -n 3 "$main" parts
# Without a launcher, the world has one rank.
"$main" conformance
