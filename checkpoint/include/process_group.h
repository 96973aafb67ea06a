#ifndef TESSERA_CHECKPOINT_INCLUDE_PROCESS_GROUP_H_
#define TESSERA_CHECKPOINT_INCLUDE_PROCESS_GROUP_H_

// Programs implement ProcessGroup. AgreeOnStatus() is implemented in
// checkpoint/collective/agree.cc.

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

// A message in flight between two ranks. The caller's memory, from which it is sent or into which
// it is received, must stay valid and untouched until Wait() has returned OK or the message has
// been destroyed.
class PendingMessage {
 public:
  // Abandons the message if Wait() has not returned OK, because the group has failed or the caller
  // no longer wants it. No byte of the memory is touched after the destructor returns.
  virtual ~PendingMessage() = default;

  // Waits for the end of the transfer. Called once.
  virtual absl::Status Wait(absl::Duration timeout) = 0;
};

// The operations that a checkpoint needs from a group of ranks, which a program implements over its
// own communication library. Everything else (scattering the parts of a plan, exchanging data that
// was read) is built on them.
//
// Gather() and Broadcast() are collective: every rank makes the same calls in the same order. They
// carry descriptions and plans. The size of a plan grows with the product of ranks and tensors, so
// a binomial tree pays. Transfers carry the contents of tensors.
//
// Collective calls of the library: save_options.h and load_options.h say which options are the same
// on all ranks.
//
// Errors: DeadlineExceeded or Unavailable, naming the missing ranks. After an error the group is
// unusable: ranks may be at different operations. The library then calls Abandon().
//
// Threads: one at a time. An asynchronous save uses its group from a background thread, and
// therefore needs a group of its own.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Returns the messages of all ranks, by rank, on rank 0; empty elsewhere.
  virtual absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                          absl::Duration timeout) = 0;
  // Returns rank 0's message on every rank.
  virtual absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                                absl::Duration timeout) = 0;

  // Start a message from one rank to another; never to itself, never empty. Both sides know its
  // size beforehand. Several messages may be in flight at once; messages of one pair arrive in the
  // order in which they were started, and are waited for in that order. A send may wait for its
  // receive, but need not. A message moves whether or not its own Wait() has been called: two ranks
  // that send to each other may both wait for what they receive first. The transfer must not
  // outlive the group.
  virtual std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                                    int destination) = 0;
  virtual std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte> data, int source) = 0;

  // Makes the group unusable: all later operations of the library on it fail at once with the first
  // reason, on this rank. Takes no memory.
  virtual void Abandon(const absl::Status& reason) {
    if (abandoned_.ok()) abandoned_ = reason;
  }
  // Returns the reason; OK for a group that is usable.
  virtual const absl::Status& abandoned() const { return abandoned_; }

 private:
  absl::Status abandoned_;
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
  // Returns a transfer whose Wait() is an error, since there is no other rank.
  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte>, int) override {
    return std::make_unique<NoMessage>();
  }
  std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte>, int) override {
    return std::make_unique<NoMessage>();
  }

 private:
  struct NoMessage final : PendingMessage {
    absl::Status Wait(absl::Duration) override {
      return absl::UnavailableError("a group of one process has no other rank");
    }
  };
};

// Returns OK on every rank if every rank has contributed OK. Otherwise returns, on every rank, an
// error with the code of the first rank that has one and the messages of all, each naming its rank;
// payloads are kept. So no rank keeps waiting for one that failed on its own.
//
// Collective. Bytes on the wire: the messages to rank 0, the combined one to every rank.
absl::Status AgreeOnStatus(ProcessGroup& group, const absl::Status& mine, absl::Duration timeout);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_PROCESS_GROUP_H_
