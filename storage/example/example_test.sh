#!/bin/bash
# Programs that share a folder, and a bucket, take numbers of their own, and read what is complete.
set -eu
releases="$1"
server="$2"

check() {
  local storage="$1" i programs=()
  for i in 1 2 3 4; do
    echo "contents $i" > "$TEST_TMPDIR/file$i"
    "$releases" "$storage" put "$TEST_TMPDIR/file$i" > "$TEST_TMPDIR/number$i" &
    programs+=($!)
  done
  for i in "${programs[@]}"; do wait "$i"; done
  test "$(sort "$TEST_TMPDIR"/number?)" = "$(seq 1 4)"
  for i in 1 2 3 4; do
    "$releases" "$storage" get "$(cat "$TEST_TMPDIR/number$i")" | cmp - "$TEST_TMPDIR/file$i"
  done
  test "$("$releases" "$storage" list)" = "$(for i in 1 2 3 4; do echo "$i: 11 bytes"; done)"
  if "$releases" "$storage" get 5 2> "$TEST_TMPDIR/error"; then exit 1; fi
  grep -q NOT_FOUND "$TEST_TMPDIR/error"
}

check "$TEST_TMPDIR/folder"

# An interrupted release is none.
rm "$TEST_TMPDIR/folder/3/done"
test "$("$releases" "$TEST_TMPDIR/folder" list | wc -l)" = 3

coproc SERVER { "$server" --mirror="$TEST_TMPDIR/mirror"; }
read -r endpoint <&"${SERVER[0]}"
export AWS_ENDPOINT_URL="$endpoint" AWS_ACCESS_KEY_ID=TESTKEY AWS_SECRET_ACCESS_KEY=a/secret+key
check s3://bucket/releases
eval "exec ${SERVER[1]}>&-"
wait
