// One rank of a job of Tessera's, which saves and loads as it is told: rank.py says how, and what
// the state is. A load of the newest checkpoint is a restart as `train` makes it.
//   tessera_rank SCRATCH sync|async TENSORS

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "comm/mpi/mpi_world.h"
#include "trainer/state/communicator_group.h"

namespace tessera {
namespace {

constexpr int64_t kRows = 1024, kColumns = 1024, kReplicated = 1000;

float Value(int64_t tensor, int64_t step, int64_t variant, int64_t index) {
  const auto salt = static_cast<uint32_t>((tensor * 1000003 + step * 10007 + variant * 101 + 1) *
                                          int64_t{0x9E3779B9});
  uint32_t bits = (static_cast<uint32_t>(index) * 2654435761u) ^ salt;
  bits = (bits ^ (bits >> 16)) * 0x7FEB352Du;
  bits = (bits ^ (bits >> 15)) * 0x846CA68Bu;
  return static_cast<float>(bits >> 8) * 0x1p-24f - 0.5f;
}

// This rank's part of the state: rows of each matrix, and the vector.
class State {
 public:
  State(int64_t tensors, const ckpt::ProcessGroup& group)
      : first_row_(group.rank() * kRows / group.size()),
        rows_((group.rank() + 1) * kRows / group.size() - first_row_) {
    for (int64_t i = 0; i < tensors; ++i) parts_.emplace_back(rows_ * kColumns);
    parts_.emplace_back(kReplicated);
  }

  void Fill(int64_t step, int64_t variant) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      for (size_t j = 0; j < parts_[i].size(); ++j) parts_[i][j] = At(i, j, step, variant);
    }
  }

  int64_t CountEqual(int64_t step, int64_t variant) const {
    int64_t equal = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      for (size_t j = 0; j < parts_[i].size(); ++j) {
        equal += parts_[i][j] == At(i, j, step, variant) ? 1 : 0;
      }
    }
    return equal;
  }

  int64_t elements() const {
    return std::transform_reduce(parts_.begin(), parts_.end(), int64_t{0}, std::plus<>(),
                                 [](const auto& part) { return std::ssize(part); });
  }

  ckpt::StateDict Describe() {
    ckpt::StateDict state;
    for (size_t i = 0; i + 1 < parts_.size(); ++i) {
      state.tensors.push_back(
          {.name = absl::StrCat("layers.", i, ".weight"), .global_shape = {kRows, kColumns}});
      state.tensors.back().shards = {ckpt::Shard::Of(
          parts_[i], {.global_offset = {first_row_, 0}, .shape = {rows_, kColumns}})};
    }
    state.tensors.push_back({.name = "norm", .global_shape = {kReplicated}});
    state.tensors.back().shards = {
        ckpt::Shard::Of(parts_.back(), {.global_offset = {0}, .shape = {kReplicated}})};
    return state;
  }

 private:
  float At(size_t tensor, size_t index, int64_t step, int64_t variant) const {
    const int64_t first = tensor + 1 < parts_.size() ? first_row_ * kColumns : 0;
    return Value(static_cast<int64_t>(tensor), step, variant, first + static_cast<int64_t>(index));
  }

  const int64_t first_row_, rows_;
  std::vector<std::vector<float>> parts_;
};

class Rank {
 public:
  Rank(ckpt::ProcessGroup& group, ckpt::ProcessGroup* background, int64_t tensors)
      : group_(group), background_(background), state_(tensors, group) {}

  void Fill(int64_t step, int64_t variant) { state_.Fill(step, variant); }

  absl::Status Save(const std::string& folder, int64_t step) {
    TESSERA_ASSIGN_OR_RETURN(const ckpt::CheckpointFolder opened,
                             ckpt::CheckpointFolder::Open(folder, {.create_root = true}));
    const ckpt::StateDict state = state_.Describe();
    if (background_ == nullptr) return opened.Save(step, state, {.group = &group_}).status();
    ckpt::AsyncSaveOptions options;
    options.save.group = background_;
    ckpt::AsyncSaver saver(opened.storage(), options);
    saver.Start(step, state);
    return saver.Finish().at(0).report.status();
  }

  absl::Status Load(const std::string& folder, int64_t step) {
    TESSERA_ASSIGN_OR_RETURN(const ckpt::CheckpointFolder opened,
                             ckpt::CheckpointFolder::Open(folder));
    TESSERA_ASSIGN_OR_RETURN(const ckpt::Checkpoint checkpoint, opened.At(step));
    return LoadFrom(checkpoint);
  }

  // Returns the step, or nullopt where there is no checkpoint.
  absl::StatusOr<std::optional<int64_t>> Restart(const std::string& folder) {
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Storage> storage,
                             OpenStorage(folder, {.create_root = true}));
    // Nothing is locked.
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<ckpt::CheckpointManager> manager,
        ckpt::CheckpointManager::Open(std::move(storage), nullptr, {.save = {.group = &group_}}));
    TESSERA_ASSIGN_OR_RETURN(const ckpt::ResumeResult resumed,
                             manager->TryResume([&](const ckpt::Checkpoint& checkpoint) {
                               return LoadFrom(checkpoint);
                             }));
    std::optional<int64_t> step;
    if (resumed.checkpoint.has_value()) step = resumed.checkpoint->step();
    return step;
  }

  std::string DescribeLoaded(int64_t step) const {
    return absl::StrCat("loaded ", step, " ", state_.CountEqual(step, 0), " ",
                        state_.CountEqual(step, 1), " ", state_.elements());
  }

 private:
  absl::Status LoadFrom(const ckpt::Checkpoint& checkpoint) {
    state_.Fill(/*step=*/0, /*variant=*/2);
    return checkpoint.Load(state_.Describe(), {.group = &group_}).status();
  }

  ckpt::ProcessGroup& group_;
  ckpt::ProcessGroup* const background_;  // of asynchronous saves; null: saves are synchronous
  State state_;
};

absl::StatusOr<std::string> Obey(Rank& rank, const std::string& command, std::ostream& answers) {
  std::istringstream words(command);
  std::string verb, folder, which;
  int64_t step = 0, variant = 0;
  words >> verb >> folder >> which >> variant;
  if (verb == "load" && which == "newest") {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<int64_t> found, rank.Restart(folder));
    return found.has_value() ? rank.DescribeLoaded(*found) : "none";
  }
  if (!absl::SimpleAtoi(which, &step)) return absl::InvalidArgumentError(command);
  if (verb == "load") {
    TESSERA_RETURN_IF_ERROR(rank.Load(folder, step));
    return rank.DescribeLoaded(step);
  }
  rank.Fill(step, variant);
  answers << "begun" << std::endl;
  TESSERA_RETURN_IF_ERROR(rank.Save(folder, step));
  return "saved";
}

absl::Status Serve(Communicator& world, const std::string& scratch, bool async, int64_t tensors) {
  const std::string files = absl::StrCat(scratch, "/", world.rank());
  std::ifstream commands(absl::StrCat(files, ".in"));
  std::ofstream answers(absl::StrCat(files, ".out"));
  const std::unique_ptr<ckpt::ProcessGroup> group = MakeProcessGroup(&world);
  std::unique_ptr<Communicator> saves;
  std::unique_ptr<ckpt::ProcessGroup> background;
  if (async) {
    TESSERA_ASSIGN_OR_RETURN(saves, world.Split(/*color=*/0, world.rank(), "saves"));
    background = MakeProcessGroup(saves.get());
  }
  Rank rank(*group, background.get(), tensors);
  answers << "ready " << getpid() << std::endl;
  for (std::string command; std::getline(commands, command);) {
    const absl::StatusOr<std::string> answer = Obey(rank, command, answers);
    const std::string error = absl::StrReplaceAll(answer.status().ToString(), {{"\n", " "}});
    answers << (answer.ok() ? *answer : absl::StrCat("error ", error)) << std::endl;
    TESSERA_RETURN_IF_ERROR(answer.status());
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  int64_t tensors = 0;
  if (argc != 4 || !absl::SimpleAtoi(argv[3], &tensors)) return 2;
  return tessera::RunMpiRank({}, [&](tessera::Communicator& world) {
    return tessera::Serve(world, argv[1], std::string(argv[2]) == "async", tensors);
  });
}
