#!/bin/bash
# `comm` on RANKS (default 2) processes of this machine; flags are passed on.
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec mpirun --oversubscribe --bind-to none -n "${RANKS:-2}" \
  "$0.runfiles/tessera/tests/perf/comm_main" "$@"
