#!/bin/bash
# fuzz_campaign.sh MINUTES [TARGET...]: runs libFuzzer's programs of all parsers, or of these, for
# so many minutes each, as many at once as there are processors. They begin with the files of the
# tests and with what earlier campaigns left below TESSERA_FUZZ (default: /var/tmp/tessera-fuzz),
# go up to inputs of 2 MiB, and know the tokens of their formats. An input may take 64 MiB of memory
# and 64 times its size.
# Prints a line each: executions, seconds of processor time, coverage. Fails where an input made a
# program fail, and names it.
set -uo pipefail

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1
minutes="${1:-}"
if [[ ! "$minutes" =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: tests/interop/fuzz_campaign.sh MINUTES [//PACKAGE:NAME_fuzzer...]" >&2
  exit 2
fi
shift
home="${TESSERA_FUZZ:-/var/tmp/tessera-fuzz}"

targets=("$@")
if ((${#targets[@]} == 0)); then
  mapfile -t targets < <(./bazelw query --noshow_progress 'filter("_fuzzer$", //...)')
fi
./bazelw build --config=fuzz --noshow_progress "${targets[@]}" || exit 1

names=()
for target in "${targets[@]}"; do
  path="${target#//}"
  path="${path/://}"
  name="${path//\//_}"
  names+=("$name")
  mkdir -p "$home/$name/corpus" "$home/$name/seeds" "$home/$name/failures" || exit 1
  cp -f "bazel-bin/$path" "$home/$name/fuzzer" || exit 1
  ./bazelw query --noshow_progress \
    "kind(\"source file\", deps(labels(data, ${target%er}_test)))" 2>/dev/null |
    sed -n 's|^//||; s|:|/|p' | while read -r file; do
    cp -f "$file" "$home/$name/seeds/${file//\//_}"
  done
  ./bazelw query --noshow_progress "labels(srcs, ${target%er}_dictionaries)" 2>/dev/null |
    sed -n 's|^//||; s|:|/|p' | xargs cat >"$home/$name/dictionary" || exit 1
done

printf '%s\0' "${names[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c '
  cd "$1/$2" || exit 1
  TIMEFORMAT="%U"
  seconds="$({ time ./fuzzer -max_total_time="$(($0 * 60))" -timeout=30 -rss_limit_mb=3000 \
    -max_len=2097152 -dict=dictionary \
    -print_final_stats=1 -artifact_prefix=failures/ corpus seeds >log 2>&1; } 2>&1)"
  printf "%s: %s executions, %s s, %s\n" "$2" \
    "$(sed -n "s/^stat::number_of_executed_units: *//p" log)" "$seconds" \
    "$(grep -ao "cov: [0-9]*" log | tail -n 1)"' "$minutes" "$home"

failures="$(find "$home" -path '*/failures/*' ! -name 'slow-unit-*')"
if [[ -n "$failures" ]]; then
  printf 'failed: %s\n' $failures
  exit 1
fi
