#!/bin/bash
# The command as a process: tests output that cannot be written.
set -eu

ckpt="$PWD/$1"
work="$TEST_TMPDIR"
mkdir -p "$work/empty"

fail() {
  echo "FAILED: $1" >&2
  cat "$work/err" >&2
  exit 1
}

expect_lost() {
  [[ $1 == 2 ]] || fail "$2: exit code $1, expected 2"
  grep -q "cannot write to stdout" "$work/err" || fail "$2: no message"
}

"$ckpt" ls "$work/empty" > "$work/out" 2> "$work/err" || fail "ls"
grep -q "no checkpoints" "$work/out" || fail "ls printed nothing"

code=0
"$ckpt" ls "$work/empty" > /dev/full 2> "$work/err" || code=$?
expect_lost $code "a full disk"

code=0
"$ckpt" --help >&- 2> "$work/err" || code=$?
expect_lost $code "a closed stdout"

"$ckpt" --version > "$work/out" 2> "$work/err" || fail "--version"
grep -q "^ckpt [0-9.]*, checkpoint format 1\.[0-9]*$" "$work/out" ||
  fail "--version: $(cat "$work/out")"
"$ckpt" help verify > "$work/out" 2> "$work/err" || fail "help verify"
grep -q -- "--all" "$work/out" || fail "help verify says nothing of --all"
