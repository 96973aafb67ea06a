#ifndef TESSERA_CHECKPOINT_COLLECTIVE_PROCESS_GROUP_H_
#define TESSERA_CHECKPOINT_COLLECTIVE_PROCESS_GROUP_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::ckpt {

// A message between two ranks, under way. Its memory belongs to it until Wait() returned OK or it
// is gone.
class Transfer {
 public:
  // May be called before Wait() returned OK, where the group has failed or the caller gives up:
  // then no byte of the memory is touched any more once it returns.
  virtual ~Transfer() = default;

  // For the end of the transfer. Called once.
  virtual absl::Status Wait(absl::Duration deadline) = 0;
};

// The little that a checkpoint needs from a group of ranks, and that the program around it offers
// over its own communication library. Everything else (handing each rank its part of a plan,
// exchanging what was read) is built on it.
//
// Gather and Broadcast are collective: every rank calls the same in the same order. They carry
// descriptions and plans: up to some ten MiB for the whole of a group, so a tree pays. Transfers
// carry the contents of tensors.
//
// Errors: DeadlineExceeded or Unavailable, naming the ranks that are missing. After one the group
// is of no more use.
//
// Threads: one at a time. An asynchronous save uses its group from a background thread until it is
// committed, and so needs one of its own.
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

  // A message of one rank to another; never to itself, never empty. Both sides know its size
  // beforehand; several may be under way at once; those of one pair arrive in the order in which
  // they were started. A send may wait for its receive, and need not. The transfer must not outlive
  // the group.
  virtual std::unique_ptr<Transfer> StartSend(std::span<const std::byte> data, int destination) = 0;
  virtual std::unique_ptr<Transfer> StartReceive(std::span<std::byte> data, int source) = 0;
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
  // There is nobody to exchange with: an error if anything is waited for.
  std::unique_ptr<Transfer> StartSend(std::span<const std::byte>, int) override {
    return std::make_unique<NoTransfer>();
  }
  std::unique_ptr<Transfer> StartReceive(std::span<std::byte>, int) override {
    return std::make_unique<NoTransfer>();
  }

 private:
  struct NoTransfer final : Transfer {
    absl::Status Wait(absl::Duration) override {
      return absl::UnavailableError("a group of one process has no other rank");
    }
  };
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_COLLECTIVE_PROCESS_GROUP_H_
