#ifndef TESSERA_TRAINER_STATE_COMMUNICATOR_GROUP_H_
#define TESSERA_TRAINER_STATE_COMMUNICATOR_GROUP_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/process_group.h"
#include "comm/communicator.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// Adapts a communicator to the checkpoint library's interface. Nothing else may use the
// communicator while the library works. The communicator must outlive the group.
class CommunicatorGroup final : public ckpt::ProcessGroup {
 public:
  explicit CommunicatorGroup(Communicator& communicator) : communicator_(communicator) {}

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                  absl::Duration timeout) override;
  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration timeout) override;
  std::unique_ptr<ckpt::PendingMessage> StartSend(std::span<const std::byte> data,
                                                  int destination) override;
  std::unique_ptr<ckpt::PendingMessage> StartReceive(std::span<std::byte> data,
                                                     int source) override;

 private:
  Communicator& communicator_;
};

// Returns `world` as a group; null is one process.
std::unique_ptr<ckpt::ProcessGroup> MakeProcessGroup(Communicator* world);

// The ranks of a run, and how long to wait for them.
struct RankGroup {
  ckpt::ProcessGroup& ranks;
  absl::Duration timeout = absl::Minutes(10);
};

// Returns a group with distributed_timeout_minutes.
RankGroup GroupOf(ckpt::ProcessGroup& ranks, const TrainConfig& config);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_COMMUNICATOR_GROUP_H_
