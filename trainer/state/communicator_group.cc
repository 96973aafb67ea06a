#include "trainer/state/communicator_group.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera {
namespace {

// All messages between two ranks use one tag, and arrive in order.
constexpr int kTag = 0;

// Contents of tensors take time to arrive, and the threads that read and place need the processors
// meanwhile. A waiting rank therefore polls a few times, then backs off between polls for as long
// as a disk may take, before it waits like a training step does.
constexpr int kSpinPolls = 50;
constexpr absl::Duration kPollInterval = absl::Microseconds(20);
constexpr absl::Duration kBackoffLimit = absl::Milliseconds(100);

class CommunicatorMessage final : public ckpt::PendingMessage {
 public:
  explicit CommunicatorMessage(Pending pending) : pending_(std::move(pending)) {}
  absl::Status Wait(absl::Duration timeout) override {
    const absl::Duration start = SteadyNow();
    absl::Duration waited;
    for (int polls = 0; waited < std::min(kBackoffLimit, timeout); ++polls) {
      TESSERA_ASSIGN_OR_RETURN(const bool ended, pending_.Test());
      if (ended) return absl::OkStatus();
      if (polls < kSpinPolls) continue;
      absl::SleepFor(kPollInterval);
      waited = SteadyNow() - start;
    }
    return pending_.Wait(timeout - waited);
  }

 private:
  Pending pending_;
};

constexpr CallOptions Options(absl::Duration timeout) {
  return {.timeout = timeout, .what = "checkpoint"};
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CommunicatorGroup::Gather(std::string_view mine,
                                                                   absl::Duration timeout) {
  return communicator_.GatherBytes(mine, /*root=*/0, Options(timeout));
}

absl::StatusOr<std::string> CommunicatorGroup::Broadcast(std::string_view from_rank_0,
                                                         absl::Duration timeout) {
  return communicator_.BroadcastBytes(from_rank_0, /*root=*/0, Options(timeout));
}

std::unique_ptr<ckpt::PendingMessage> CommunicatorGroup::StartSend(std::span<const std::byte> data,
                                                                   int destination) {
  return std::make_unique<CommunicatorMessage>(
      communicator_.StartSend(data, destination, kTag, {.what = "checkpoint"}));
}

std::unique_ptr<ckpt::PendingMessage> CommunicatorGroup::StartReceive(std::span<std::byte> data,
                                                                      int source) {
  return std::make_unique<CommunicatorMessage>(
      communicator_.StartReceive(data, source, kTag, {.what = "checkpoint"}));
}

std::unique_ptr<ckpt::ProcessGroup> MakeProcessGroup(Communicator* world) {
  if (world == nullptr) return std::make_unique<ckpt::SingleProcessGroup>();
  return std::make_unique<CommunicatorGroup>(*world);
}

RankGroup GroupOf(ckpt::ProcessGroup& ranks, const TrainConfig& config) {
  return {.ranks = ranks,
          .timeout = absl::Minutes(config.parallel().distributed_timeout_minutes())};
}

}  // namespace tessera
