#!/bin/bash
# Runs over TCP, where MPI splits a long message.
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Names of Open MPI's files contain a process id, which other tests' sandboxes use, too.
export TMPDIR=$TEST_TMPDIR OMPI_MCA_btl_vader_backing_directory=$TEST_TMPDIR
mpirun --oversubscribe --bind-to none --mca pml ob1 --mca btl self,tcp -n 2 "$1"
