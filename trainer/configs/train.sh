#!/usr/bin/env bash
# train.sh PROGRAM CONFIG FLAGS...: trains, with relative paths meant from where the user stands.
set -euo pipefail
train=$PWD/$1
config=$PWD/$2
shift 2
cd "${BUILD_WORKING_DIRECTORY:-$PWD}"
exec "$train" --config="$config" "$@"
