// Four ranks save the rows of one matrix together, and two ranks load its columns.
//   ranks DIRECTORY
// Ranks are threads here. A program of many processes passes its own ProcessGroup to Save() and
// Load() instead, which sends messages with the program's communication library.

#include <iostream>
#include <numeric>
#include <vector>

#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"

namespace ckpt = tessera::ckpt;

// Every rank has two rows of the 8 x 4 matrix.
absl::Status SaveRows(const ckpt::CheckpointFolder& folder, ckpt::ProcessGroup& ranks) {
  const int64_t first = 2 * ranks.rank();
  std::vector<float> rows(2 * 4);
  std::iota(rows.begin(), rows.end(), static_cast<float>(first * 4));
  ckpt::ShardedTensor weight = {.name = "weight", .global_shape = {8, 4}};
  weight.shards = {ckpt::Shard::Of(rows, {.global_offset = {first, 0}, .shape = {2, 4}})};
  return folder.Save(/*step=*/100, {{weight}}, {.group = &ranks}).status();
}

// Every rank wants two columns.
absl::Status LoadColumns(const ckpt::Checkpoint& checkpoint, ckpt::ProcessGroup& ranks,
                         std::vector<float>& columns) {
  columns.resize(8 * 2);
  ckpt::ShardedTensor weight = {.name = "weight", .global_shape = {8, 4}};
  weight.shards = {
      ckpt::Shard::Of(columns, {.global_offset = {0, 2 * ranks.rank()}, .shape = {8, 2}})};
  return checkpoint.Load({{weight}}, {.group = &ranks}).status();
}

int main(int argc, char** argv) {
  // value() ends the program with the error where there is one.
  const auto folder =
      ckpt::CheckpointFolder::Open(argc > 1 ? argv[1] : ".", {.create_root = true}).value();
  std::vector<absl::Status> saved(4), loaded(2);
  ckpt::RunRanks(4,
                 [&](ckpt::ProcessGroup& ranks) { saved[ranks.rank()] = SaveRows(folder, ranks); });
  std::vector<std::vector<float>> columns(2);
  const auto checkpoint = folder.Latest().value();
  ckpt::RunRanks(2, [&](ckpt::ProcessGroup& ranks) {
    loaded[ranks.rank()] = LoadColumns(checkpoint, ranks, columns[ranks.rank()]);
  });
  for (const auto& statuses : {saved, loaded}) {
    for (const absl::Status& status : statuses) {
      if (!status.ok()) return std::cerr << status << "\n", 1;
    }
  }
  for (const std::vector<float>& of_rank : columns) {
    for (const float element : of_rank) std::cout << element << "\n";
  }
}
