#ifndef TESSERA_CHECKPOINT_COLLECTIVE_TESTING_FORWARDING_GROUP_H_
#define TESSERA_CHECKPOINT_COLLECTIVE_TESTING_FORWARDING_GROUP_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  void Abandon(const absl::Status& reason) override { base_.Abandon(reason); }
  const absl::Status& abandoned() const override { return base_.abandoned(); }

 protected:
  ProcessGroup& base_;
};

// Misses a rank after a moment instead of the whole timeout, from its broadcast number `after` on.
// The ranks may be as slow as they like before.
class ImpatientGroup final : public ForwardingGroup {
 public:
  ImpatientGroup(ProcessGroup& base, int after) : ForwardingGroup(base), left_(after) {}
  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                  absl::Duration timeout) override {
    return ForwardingGroup::Gather(mine, left_ > 0 ? timeout : absl::Milliseconds(20));
  }
  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration timeout) override {
    --left_;
    return ForwardingGroup::Broadcast(from_rank_0, timeout);
  }

 private:
  int left_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_COLLECTIVE_TESTING_FORWARDING_GROUP_H_
