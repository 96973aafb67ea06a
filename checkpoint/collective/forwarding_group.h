#ifndef TESSERA_CHECKPOINT_COLLECTIVE_FORWARDING_GROUP_H_
#define TESSERA_CHECKPOINT_COLLECTIVE_FORWARDING_GROUP_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "checkpoint/include/process_group.h"

namespace tessera::ckpt {

// Forwards every call to another group. Derive from this class to change some operations of a
// group, and override those.
class ForwardingGroup : public ProcessGroup {
 public:
  // `base` must outlive the group.
  explicit ForwardingGroup(ProcessGroup& base) : base_(base) {}

  int rank() const override { return base_.rank(); }
  int size() const override { return base_.size(); }
  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                  absl::Duration timeout) override {
    return base_.Gather(mine, timeout);
  }
  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration timeout) override {
    return base_.Broadcast(from_rank_0, timeout);
  }
  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    return base_.StartSend(data, destination);
  }
  std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte> data, int source) override {
    return base_.StartReceive(data, source);
  }

 protected:
  ProcessGroup& base_;
};

// A group that records its first error and returns it from every later call: after an error, ranks
// may be at different operations, and a message would be matched with the wrong one.
class WatchedGroup final : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;

  const absl::Status& status() const { return status_; }

  // Records an error of this rank that left it out of an operation of the others. Takes no memory.
  // Returns the error.
  const absl::Status& Fail(const absl::Status& error) {
    if (status_.ok() && size() > 1) status_ = error;
    return error;
  }

  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                  absl::Duration timeout) override {
    if (!status_.ok()) return status_;
    auto gathered = base_.Gather(mine, timeout);
    if (!gathered.ok()) return Remember(gathered.status());
    return gathered;
  }

  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration timeout) override {
    if (!status_.ok()) return status_;
    auto reply = base_.Broadcast(from_rank_0, timeout);
    if (!reply.ok()) return Remember(reply.status());
    return reply;
  }

  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    return std::make_unique<WatchedMessage>(
        *this, status_.ok() ? base_.StartSend(data, destination) : nullptr);
  }
  std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte> data, int source) override {
    return std::make_unique<WatchedMessage>(
        *this, status_.ok() ? base_.StartReceive(data, source) : nullptr);
  }

 private:
  class WatchedMessage final : public PendingMessage {
   public:
    WatchedMessage(WatchedGroup& group, std::unique_ptr<PendingMessage> base)
        : group_(group), base_(std::move(base)) {}
    absl::Status Wait(absl::Duration timeout) override {
      if (!group_.status_.ok() || base_ == nullptr) return group_.status_;
      return group_.Remember(base_->Wait(timeout));
    }

   private:
    WatchedGroup& group_;
    const std::unique_ptr<PendingMessage> base_;  // null if the group had failed before
  };

  absl::Status Remember(const absl::Status& status) {
    if (status.ok() || !status_.ok()) return status;
    status_ = absl::Status(status.code(),
                           absl::StrCat("waiting for the other ranks: ", status.message()));
    return status_;
  }

  absl::Status status_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_COLLECTIVE_FORWARDING_GROUP_H_
