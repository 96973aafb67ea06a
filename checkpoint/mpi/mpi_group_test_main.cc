// What a group over MPI must do, by ranks that mpirun starts: mpi_group_test.sh.
//   mpi_group_test_main conformance FOLDER
//   mpi_group_test_main missing PREFIX

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/mpi/mpi_group.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt {
namespace {

int freed_communicators = 0;

constexpr absl::Duration kTimeout = absl::Seconds(20);

void Check(bool holds, std::string_view what) {
  if (holds) return;
  // In one piece, among the lines of other ranks.
  std::cerr << "not true: " + std::string(what) + "\n";
  MPI_Abort(MPI_COMM_WORLD, 1);
}

template <typename Value>
Value Get(absl::StatusOr<Value> value) {
  if (!value.ok()) Check(false, value.status().ToString());
  return *std::move(value);
}

std::string TextOf(int rank, size_t bytes) { return std::string(bytes, 'a' + rank % 26); }

void GathersAndBroadcasts(ProcessGroup& group) {
  for (const size_t bytes : {0, 1, 4097, 3 << 20}) {
    const auto all = Get(group.Gather(TextOf(group.rank(), bytes * group.rank()), kTimeout));
    Check(all.size() == (group.rank() == 0 ? group.size() : 0), "rank 0 has all messages");
    for (size_t r = 0; r < all.size(); ++r) Check(all[r] == TextOf(r, bytes * r), "in order");
    const auto text = Get(group.Broadcast(TextOf(group.rank(), bytes + group.rank()), kTimeout));
    Check(text == TextOf(0, bytes), "all have rank 0's message");
  }
}

// Messages of every rank to every other one, of all sizes, started before any is waited for.
void Transfers(ProcessGroup& group) {
  constexpr size_t kSizes[] = {1, 1000, 5 << 20};
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::unique_ptr<PendingMessage>> messages;
  std::vector<std::pair<int, size_t>> received;  // source, index of memory
  for (const size_t bytes : kSizes) {
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      const auto mine = static_cast<std::byte>(group.rank() + 1);
      messages.push_back(group.StartSend(memory.emplace_back(bytes, mine), peer));
      received.emplace_back(peer, memory.size());
      messages.push_back(group.StartReceive(memory.emplace_back(bytes), peer));
    }
  }
  for (auto& message : messages) Check(message->Wait(kTimeout).ok(), "a message arrives");
  for (const auto& [source, index] : received) {
    for (const std::byte byte : memory[index]) {
      Check(byte == static_cast<std::byte>(source + 1), "as it was sent");
    }
  }
}

// Each rank saves its rows in the background, while all use MPI; the next group loads columns.
void SavesAndLoads(const std::string& name, ProcessGroup& group, ProcessGroup& background) {
  constexpr int64_t kColumns = 60;  // shared equally by up to 6 ranks
  const int64_t rows = 1000 * group.size(), first = 1000 * group.rank();
  std::vector<float> mine(1000 * kColumns);
  std::iota(mine.begin(), mine.end(), static_cast<float>(first * kColumns));
  ShardedTensor weight = {.name = "weight", .global_shape = {rows, kColumns}};
  weight.shards = {Shard::Of(mine, {.global_offset = {first, 0}, .shape = {1000, kColumns}})};

  const auto storage = Get(OpenStorage(name, {.create_root = true}));
  AsyncSaveOptions options;
  options.save.group = &background;
  AsyncSaver saver(*storage, options);
  saver.Start(1, {{weight}});
  for (int i = 0; i < 100; ++i) MPI_Barrier(MPI_COMM_WORLD);
  for (const SaveOutcome& outcome : saver.Finish()) Get(outcome.report);

  const int64_t columns = kColumns / group.size(), left = columns * group.rank();
  std::vector<float> loaded(rows * columns);
  weight.shards = {Shard::Of(loaded, {.global_offset = {0, left}, .shape = {rows, columns}})};
  const auto folder = Get(CheckpointFolder::Open(name));
  Get(Get(folder.Latest()).Load({{weight}}, {.group = &group}));
  for (int64_t i = 0; i < rows * columns; ++i) {
    Check(loaded[i] == static_cast<float>(i / columns * kColumns + left + i % columns), "loaded");
  }
}

// The other ranks may still use the communicator, and would not take part.
void KeepsTheCommunicatorOfAnAbandonedGroup() {
  const int before = freed_communicators;
  MpiGroup(MPI_COMM_WORLD).Abandon(absl::InternalError("another rank goes on"));
  Check(freed_communicators == before, "an abandoned group frees nothing");
  MpiGroup(MPI_COMM_WORLD).rank();
  Check(freed_communicators == before + 1, "a usable one does");
}

// The errors of ranks 0 and 2 name rank 1, which makes no call, and their later calls fail at once.
void NamesTheMissing(ProcessGroup& group) {
  std::vector<std::byte> memory(8);
  absl::Status status;
  if (group.rank() == 0) {
    status = group.Gather("", absl::Seconds(1)).status();
    Check(status == absl::DeadlineExceededError("missing ranks: 1"), status.ToString());
    status = group.Broadcast("", absl::Seconds(1)).status();
  } else {
    status = group.StartReceive(memory, 1)->Wait(absl::Seconds(1));
    Check(status == absl::DeadlineExceededError("missing ranks: 1"), status.ToString());
    status = group.StartSend(memory, 0)->Wait(absl::Seconds(1));
  }
  Check(status == absl::UnavailableError("the group of ranks failed before"), status.ToString());
}

// The file PREFIX-RANK of ranks 0 and 2 says that they were told. mpirun ends all ranks with the
// first, so each waits for both files.
void TellThatOneIsMissing(ProcessGroup& group, const std::string& prefix) {
  if (group.rank() != 1) {
    NamesTheMissing(group);
    std::ofstream(absl::StrCat(prefix, "-", group.rank()));
  }
  while (!std::filesystem::exists(prefix + "-0") || !std::filesystem::exists(prefix + "-2")) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  std::_Exit(0);
}

void Run(std::string_view what, const std::string& name) {
  MpiGroup group(MPI_COMM_WORLD), background(MPI_COMM_WORLD);
  if (what == "missing") TellThatOneIsMissing(group, name);
  GathersAndBroadcasts(group);
  Transfers(group);
  KeepsTheCommunicatorOfAnAbandonedGroup();
  SavesAndLoads(name, group, background);
}

}  // namespace
}  // namespace tessera::ckpt

// MPI lets a program put its own function in front of each of MPI's.
int MPI_Comm_free(MPI_Comm* communicator) {
  ++tessera::ckpt::freed_communicators;
  return PMPI_Comm_free(communicator);
}

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  tessera::ckpt::Check(provided == MPI_THREAD_MULTIPLE, "MPI has threads");
  tessera::ckpt::Run(argv[1], argc > 2 ? argv[2] : "");
  MPI_Finalize();
}
