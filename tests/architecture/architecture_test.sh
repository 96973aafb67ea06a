#!/bin/bash
# architecture_test.sh GRAPH: outside the sandbox this file's own path leads to the source tree.
set -euo pipefail
test="$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/architecture_test.py"
graph="$(readlink -f "$1")"
cd "$(dirname "$test")/../.."
[[ -e WORKSPACE ]] || {
  echo "$PWD is not the source tree: run this test outside the sandbox"
  exit 1
}
exec python3 -B "$test" "$graph"
