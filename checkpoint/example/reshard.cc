// Saves a matrix under one sharding and loads part of it under another.
//   reshard DIRECTORY

#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "checkpoint/include/checkpoint.h"

namespace ckpt = tessera::ckpt;

int Fail(const auto& status) {
  std::cerr << status << "\n";
  return 1;
}

int main(int argc, char** argv) {
  const std::string name = std::string(argc > 1 ? argv[1] : ".") + "/run";
  const auto folder = ckpt::CheckpointFolder::Open(name, {.create_root = true});
  if (!folder.ok()) return Fail(folder.status());

  // An 8 x 4 matrix that lies in two shards: rows 0 to 2, and rows 3 to 7.
  std::vector<float> top(3 * 4), bottom(5 * 4);
  std::iota(top.begin(), top.end(), 0.0f);
  std::iota(bottom.begin(), bottom.end(), 12.0f);
  ckpt::ShardedTensor weight = {.name = "weight", .global_shape = {8, 4}};
  weight.shards = {ckpt::Shard::Of(top, {.global_offset = {0, 0}, .shape = {3, 4}}),
                   ckpt::Shard::Of(bottom, {.global_offset = {3, 0}, .shape = {5, 4}})};
  const auto saved = folder->Save(/*step=*/100, {{weight}});
  if (!saved.ok()) return Fail(saved.status());

  // Its columns 1 and 2, one after the other in memory: any box, any strides.
  std::vector<float> columns(2 * 8);
  weight.shards = {ckpt::Shard::Of(columns, {.global_offset = {0, 1}, .shape = {8, 2}},
                                   /*strides=*/{1, 8})};
  const auto checkpoint = folder->At(100);
  if (!checkpoint.ok()) return Fail(checkpoint.status());
  const auto loaded = checkpoint->Load({{weight}});
  if (!loaded.ok()) return Fail(loaded.status());
  for (const float element : columns) std::cout << element << "\n";
}
