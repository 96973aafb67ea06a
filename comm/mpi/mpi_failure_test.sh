#!/bin/bash
# Real processes that die, stop, fail or are late: the others end with one message that names the
# rank. They miss a rank that is stopped or late after 4 s, and one that does not arrive after 3 s
# (mpi_test_main); what fails or dies ends them without a deadline, which is 2 min there. The cases
# do little but wait: they run at the same time.
set -uo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Names of Open MPI's files contain a process id, which other tests' sandboxes use, too.
export TMPDIR=$TEST_TMPDIR OMPI_MCA_btl_vader_backing_directory=$TEST_TMPDIR
main=$1
readonly patience=$((TEST_TIMEOUT - 30))  # for jobs that would never end
failures=0

fail() {
  echo "FAILED: $1"
  echo "$output"
  failures=$((failures + 1))
}

# run NAME MPIRUN_OPTION... -- ARGUMENT...
run() {
  name=$1
  shift
  local options=()
  while [[ $1 != -- ]]; do
    options+=("$1")
    shift
  done
  shift
  output=$(timeout "$patience" mpirun --oversubscribe --bind-to none "${options[@]}" -n 4 "$main" \
    "$@" 2>&1)
  code=$?
  ((code != 124)) || fail "$name: does not end"
}

# Checks that exactly one rank prints a message, and that it matches.
readonly all_reduce="[0-9]+: all-reduce #[0-9]+ of 'dp'"
expect_message() {
  local spoken
  spoken=$(grep -c '^rank [0-9]*: ' <<<"$output")
  [[ $spoken == 1 ]] || fail "$name: $spoken messages"
  grep -Eq "^rank $1" <<<"$output" || fail "$name: no message like '$1'"
}

exits_with_error() { [[ $code != 0 ]] || fail "$name: exit code 0"; }

error_on_one_rank() {
  run "error on one rank" -- error 2
  expect_message "2: shard 'x' is damaged$"
  exits_with_error
}

error_on_all_ranks() {
  run "error on all ranks" -- error all
  expect_message "[0-3]: shard 'x' is damaged$"
  exits_with_error
}

stopped_rank() {
  run "stopped rank" -- stop 1
  local after="is not complete after ([4-9]|[1-9][0-9])"
  local stopped="rank 1.*does not answer: its process is stopped.*reported: "
  expect_message "$all_reduce \(gradients\) $after.*waiting for $stopped"
  exits_with_error
}

late_rank() {
  run "late rank" -- late 3
  expect_message "$all_reduce .*waiting for rank 3; rank 3 has computed for .* since all-reduce"
  exits_with_error
}

# Before the world exists, each rank can report only its own state.
absent_rank() {
  run "absent rank" -- absent 1
  grep -Eq '^rank [023]: MPI_Init did not complete: some rank has not arrived after 3s$' \
    <<<"$output" ||
    fail "$name: no message"
  exits_with_error
}

# mpirun itself notices the death of a process that it started, and names it.
killed_rank() {
  run "killed rank" -- die 1
  grep -q 'process rank 1 .*exited on signal 9' <<<"$output" ||
    fail "$name: mpirun does not name it"
  exits_with_error
}

# Emulates a launcher that does not end the other ranks. (Open MPI's returns 0 with this option.)
unnoticed_death() {
  run "killed rank, unnoticed by the launcher" --enable-recovery -- die 1
  expect_message "$all_reduce .*waiting for rank 1; rank 1 .*has gone: its process has ended"
}

# Ranks must end even if the reader of their stderr has gone away and the pipe is full. mpirun waits
# for them and prints nothing.
no_reader() {
  # shellcheck disable=SC2016  # expanded by the ranks
  output=$(timeout --kill-after=5 "$patience" mpirun --oversubscribe --bind-to none \
    --enable-recovery -n 4 sh -c 'exec "$0" "$@" 2>'"$folder/full" "$main" "$@" 2>&1)
  code=$?
  ((code != 124 && code != 137)) || fail "no reader: $*: does not end"
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkfifo "$folder/full"
exec 9<>"$folder/full"
dd if=/dev/zero of="$folder/full" oflag=nonblock bs=4096 2>/dev/null

declare -A cases=()
for each in error_on_one_rank error_on_all_ranks stopped_rank late_rank absent_rank killed_rank \
  unnoticed_death "no_reader error all" "no_reader die 1"; do
  # shellcheck disable=SC2086  # a function and its arguments
  # Launchers that begin at the same time must not create the same folder.
  (TMPDIR=$(mktemp -d "$TEST_TMPDIR/XXX"); $each; exit $((failures > 0))) \
    >"$folder/$each.log" 2>&1 9>&- &
  cases[$each]=$!
done
for each in "${!cases[@]}"; do
  wait "${cases[$each]}" || { cat "$folder/$each.log"; failures=1; }
done
exit $((failures > 0))
