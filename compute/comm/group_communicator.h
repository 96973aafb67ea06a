#ifndef TESSERA_COMPUTE_COMM_GROUP_COMMUNICATOR_H_
#define TESSERA_COMPUTE_COMM_GROUP_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compute/comm/algorithms.h"
#include "compute/comm/communicator.h"
#include "compute/comm/endpoint.h"

namespace tessera {

// A communicator over any transport.
class GroupCommunicator final : public Communicator {
 public:
  // The group of all ranks of the endpoint's world. The endpoint must outlive it and the groups
  // split from it.
  explicit GroupCommunicator(Endpoint* endpoint);
  // `world_ranks` by group rank, this rank at `rank`; `id` is the same for all members and for no
  // other group of any of them.
  GroupCommunicator(Endpoint* endpoint, uint32_t id, int rank, std::vector<int> world_ranks,
                    std::string_view name, std::unique_ptr<Algorithms> algorithms);
  // Waits for followed operations.
  ~GroupCommunicator() override { endpoint_->EndFollowed(&world_ranks_); }

  // Creates a group with the same ranks whose data moves by `algorithms`. Every rank of this group
  // must call it.
  absl::StatusOr<std::unique_ptr<GroupCommunicator>> Over(std::unique_ptr<Algorithms> algorithms,
                                                          std::string_view name,
                                                          CallOptions options = {});
  Endpoint* endpoint() const { return endpoint_; }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_ranks_.size()); }
  int WorldRank(int group_rank) const override { return world_ranks_[group_rank]; }
  const std::string& name() const override { return *name_; }
  const CommCounters& counters() const override { return counters_; }
  void ResetCounters() override { counters_ = {}; }

  Pending StartAllReduce(Buffer data, ReduceOp op, CallOptions options) override;
  Pending StartReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                             std::span<const int64_t> counts, CallOptions options) override;
  Pending StartAllGather(ConstBuffer input, Buffer output, std::span<const int64_t> counts,
                         CallOptions options) override;
  Pending StartAllToAll(ConstBuffer input, std::span<const int64_t> send_counts, Buffer output,
                        std::span<const int64_t> receive_counts, CallOptions options) override;
  Pending StartBroadcast(Buffer data, int root, CallOptions options) override;
  Pending StartSend(ConstBuffer data, int destination, int tag, CallOptions options) override;
  Pending StartReceive(Buffer data, int source, int tag, CallOptions options) override;
  absl::StatusOr<std::vector<std::string>> GatherBytes(std::string_view mine, int root,
                                                       CallOptions options) override;
  absl::StatusOr<std::string> BroadcastBytes(std::string_view from_root, int root,
                                             CallOptions options) override;
  absl::Status Barrier(CallOptions options) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key, std::string_view name,
                                                      CallOptions options) override;
  void Progress() override { endpoint_->Progress(); }
  void Abort(const absl::Status& error) override;

 private:
  // A group that is being created, from the view of one member.
  struct NewGroup {
    uint32_t id = 0;
    int rank = 0;
    std::vector<int> world_ranks;  // empty where this rank takes no part
  };
  absl::StatusOr<NewGroup> Agree(int color, int key, const CallOptions& options);

  Pending Launch(CommOp op, std::unique_ptr<Task> task, const CallOptions& options, int tag = -1);
  absl::Status Invalid(CommOp op, const std::string& message) const;
  absl::Status CheckRank(CommOp op, std::string_view role, int rank) const;
  // Piece sizes in elements; an error unless there is one per rank and they add up to `elements`.
  absl::StatusOr<std::vector<int64_t>> Pieces(CommOp op, std::string_view role,
                                              std::span<const int64_t> counts,
                                              int64_t elements) const;

  Endpoint* const endpoint_;
  const uint32_t id_;
  const int rank_;
  const std::vector<int> world_ranks_;
  const std::string* const name_;
  const std::unique_ptr<Algorithms> algorithms_;
  CommCounters counters_;
  uint64_t collectives_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_COMM_GROUP_COMMUNICATOR_H_
