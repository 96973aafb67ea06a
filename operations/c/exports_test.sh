#!/bin/bash
# exports_test.sh LIBRARY HEADER: the library exports the functions of the header and nothing else.
# A thread-local variable has an entry in its table, but a local one.
set -euo pipefail

readonly library="$1" header="$2"

declared="$(grep -oE '\btessera_[a-z_]+\(' "$header" | tr -d '(' | sort -u)"
exported="$(nm -D --defined-only --extern-only "$library" | awk '{print $3}' | sed 's/@.*//' |
  sort -u)"
diff <(printf '%s\n' "$declared") <(printf '%s\n' "$exported") ||
  { echo "exported (>) and declared (<) functions differ"; exit 1; }
echo "$(wc -l <<<"$exported") functions"
