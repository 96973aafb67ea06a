#ifndef TESSERA_CHECKPOINT_ENGINE_PROCESS_GROUP_H_
#define TESSERA_CHECKPOINT_ENGINE_PROCESS_GROUP_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::ckpt {

// The little that a checkpoint needs from a group of ranks. Every rank of the group calls the same operations in the same
// order. Errors: DeadlineExceeded or Unavailable, naming the ranks that are missing.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The messages of all ranks, by rank, on rank 0; empty elsewhere.
  virtual absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                          absl::Duration deadline) = 0;
  // Rank 0's message, everywhere.
  virtual absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                                absl::Duration deadline) = 0;
  virtual absl::Status Barrier(absl::Duration deadline) = 0;
};

// The group of one process.
class SingleProcessGroup final : public ProcessGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine, absl::Duration) override {
    return std::vector<std::string>{std::string(mine)};
  }
  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0, absl::Duration) override {
    return std::string(from_rank_0);
  }
  absl::Status Barrier(absl::Duration) override { return absl::OkStatus(); }
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_ENGINE_PROCESS_GROUP_H_
