#!/usr/bin/env bash
# train.sh LAUNCHER PROGRAM PREPARE_DATA CONFIG FLAGS...: trains; relative paths refer to the user's
# directory.
set -euo pipefail
launcher=$PWD/$1 train=$PWD/$2 prepare_data=$PWD/$3 config=$PWD/$4
shift 4
cd "${BUILD_WORKING_DIRECTORY:-$PWD}"
exec python3 "$launcher" "$train" "$prepare_data" "$config" "$@"
