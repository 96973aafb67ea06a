// The ranks of an MPI program save the rows of one matrix together, and load its columns, with any
// number of ranks that divides 4.
//   mpirun -n 4 ranks save DIRECTORY
//   mpirun -n 2 ranks load DIRECTORY
// A program with another communication library implements ProcessGroup over it, as MpiGroup does.

#include <cstdint>
#include <iostream>
#include <numeric>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/mpi/mpi_group.h"

namespace ckpt = tessera::ckpt;

constexpr int64_t kRows = 8, kColumns = 4;

absl::Status SaveRows(const char* directory, ckpt::ProcessGroup& ranks) {
  const int64_t count = kRows / ranks.size(), first = count * ranks.rank();
  std::vector<float> rows(count * kColumns);
  std::iota(rows.begin(), rows.end(), static_cast<float>(first * kColumns));
  ckpt::ShardedTensor weight = {.name = "weight", .global_shape = {kRows, kColumns}};
  weight.shards = {
      ckpt::Shard::Of(rows, {.global_offset = {first, 0}, .shape = {count, kColumns}})};
  const auto folder = ckpt::CheckpointFolder::Open(directory, {.create_root = true});
  if (!folder.ok()) return folder.status();
  return folder->Save(/*step=*/100, {{weight}}, {.group = &ranks}).status();
}

absl::Status LoadColumns(const char* directory, ckpt::ProcessGroup& ranks) {
  const int64_t count = kColumns / ranks.size(), first = count * ranks.rank();
  std::vector<float> columns(kRows * count);
  ckpt::ShardedTensor weight = {.name = "weight", .global_shape = {kRows, kColumns}};
  weight.shards = {
      ckpt::Shard::Of(columns, {.global_offset = {0, first}, .shape = {kRows, count}})};
  const auto folder = ckpt::CheckpointFolder::Open(directory);
  if (!folder.ok()) return folder.status();
  const auto checkpoint = folder->Latest();
  if (!checkpoint.ok()) return checkpoint.status();
  const absl::Status loaded = checkpoint->Load({{weight}}, {.group = &ranks}).status();
  if (loaded.ok() && ranks.rank() == ranks.size() - 1) {
    for (const float element : columns) std::cout << element << "\n";
  }
  return loaded;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const std::string_view command = argc == 3 ? argv[1] : "";
  if (command != "save" && command != "load") {
    return std::cerr << "ranks save|load DIRECTORY\n", MPI_Abort(MPI_COMM_WORLD, 2);
  }
  absl::Status status;
  {
    ckpt::MpiGroup ranks(MPI_COMM_WORLD);  // destroyed before MPI ends
    if (kColumns % ranks.size() != 0) {
      status = absl::InvalidArgumentError("the number of ranks does not divide 4");
    } else {
      status = command == "save" ? SaveRows(argv[2], ranks) : LoadColumns(argv[2], ranks);
    }
  }
  // Other ranks may still wait for this one: MPI_Finalize() would wait for them.
  if (!status.ok()) return std::cerr << status << "\n", MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Finalize();
}
