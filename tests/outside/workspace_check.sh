#!/bin/bash
# Builds, in a workspace of its own, a program that saves and loads, and each public header alone,
# with @tessera//checkpoint as their only dependency.
set -eu

tessera="$(dirname "$(readlink -f WORKSPACE)")"
work="$TEST_TMPDIR/outside"
bazel=(bazel --output_user_root="$TEST_TMPDIR/bazel")
mkdir -p "$work"
cd "$work"

# Debian's packages, where this repository's WORKSPACE finds them, and Tessera itself.
sed -e 's/^workspace(.*/workspace(name = "outside")/' \
  -e "s|path = \"third_party|path = \"$tessera/third_party|" \
  -e 's|"//third_party|"@tessera//third_party|' "$tessera/WORKSPACE" > rest
{
  sed -n 1p rest
  printf 'local_repository(name = "tessera", path = "%s")\n' "$tessera"
  sed 1d rest
} > WORKSPACE

cat > program.cc <<'END'
#include <vector>

#include "checkpoint/include/checkpoint.h"

int main(int count, char** arguments) {
  namespace ckpt = tessera::ckpt;
  if (count != 2) return 2;
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6};
  const auto folder = ckpt::CheckpointFolder::Open(arguments[1], {.create_root = true});
  if (!folder.ok()) return 1;
  ckpt::ShardedTensor weight = {.name = "weight", .global_shape = {3, 2}};
  weight.shards = {ckpt::Shard::Of(rows, {.global_offset = {0, 0}, .shape = {3, 2}})};
  if (!folder->Save(7, {{weight}}).ok()) return 1;
  const auto saved = folder->Latest();
  if (!saved.ok()) return 1;
  const auto read = saved->LoadTensor<float>("weight");
  return read.ok() && *read == rows ? 0 : 1;
}
END

{
  echo 'cc_binary(name = "program", srcs = ["program.cc"], deps = ["@tessera//checkpoint"])'
  for header in "$tessera"/checkpoint/include/*.h; do
    name="$(basename "$header" .h)"
    echo "#include \"checkpoint/include/$name.h\"" > "only_$name.cc"
    printf 'cc_library(name = "%s", srcs = ["only_%s.cc"], deps = ["@tessera//checkpoint"])\n' \
      "$name" "$name"
  done
} > BUILD.bazel

"${bazel[@]}" build --repo_env=CC=clang --repo_env=CXX=clang++ \
  --cxxopt=-std=c++20 --host_cxxopt=-std=c++20 --features=layering_check --noshow_progress \
  -c fastbuild --keep_going //...
"$("${bazel[@]}" info bazel-bin 2> /dev/null)/program" "$work/checkpoints"
"${bazel[@]}" shutdown
