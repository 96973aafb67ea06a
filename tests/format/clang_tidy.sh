#!/bin/bash
# clang_tidy.sh [FILE...]: clang-tidy over these sources, or over every one that git knows. Takes an
# hour of one processor for all. Generated headers are read from bazel-bin: build //... first.
set -uo pipefail

cd "${BUILD_WORKSPACE_DIRECTORY:-$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../..}" || exit 1
[[ -e WORKSPACE ]] || { echo "$PWD is not the source tree: run this outside the sandbox"; exit 1; }
command -v clang-tidy >/dev/null || { echo "clang-tidy is missing: run ./bazelw once"; exit 1; }

files=("$@")
if ((${#files[@]} == 0)); then
  # What is compiled with the CUDA toolkit has flags of its own.
  mapfile -t files < <(git -c safe.directory='*' ls-files '*.cc' ':!compute/kernels/cuda')
fi
mpi="$(dirname "$(find /usr/lib -name mpi.h -print -quit)")"
# One short write a file, so that lines of several processes do not mix.
output="$(printf '%s\0' "${files[@]}" | nice -n 19 xargs -0 -n 1 -P "$(nproc)" sh -c '
    found="$(clang-tidy --quiet "$1" -- -std=c++20 -DOMPI_SKIP_MPICXX -I. -isystem bazel-bin \
      -isystem "$0" 2>/dev/null)"
    [ -z "$found" ] || printf "%s\n" "$found"' "$mpi")"
if [[ -n "$output" ]]; then
  printf '%s\n' "$output"
  exit 1
fi
echo "${#files[@]} files: nothing found"
