// Saves a matrix whose rows are in two shards, and loads two of its columns.
//   columns FOLDER

#include <iostream>
#include <numeric>
#include <vector>

#include "checkpoint/include/checkpoint.h"

namespace ckpt = tessera::ckpt;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  // value() ends the program with the error if there is one.
  const auto folder = ckpt::CheckpointFolder::Open(argv[1], {.create_root = true}).value();

  std::vector<float> top(3 * 4), bottom(5 * 4);
  std::iota(top.begin(), top.end(), 0.0f);
  std::iota(bottom.begin(), bottom.end(), 12.0f);
  ckpt::ShardedTensor weight = {.name = "weight", .global_shape = {8, 4}};
  weight.shards = {ckpt::Shard::Of(top, {.global_offset = {0, 0}, .shape = {3, 4}}),
                   ckpt::Shard::Of(bottom, {.global_offset = {3, 0}, .shape = {5, 4}})};
  std::cout << folder.Save(/*step=*/100, {{weight}}).value().directory << "\n";

  std::vector<float> columns(8 * 2);
  weight.shards = {ckpt::Shard::Of(columns, {.global_offset = {0, 1}, .shape = {8, 2}})};
  const auto loaded = folder.Latest().value().Load({{weight}});
  if (!loaded.ok()) return std::cerr << loaded.status() << "\n", 1;
  for (const float element : columns) std::cout << element << "\n";
}
