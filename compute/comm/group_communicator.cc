#include "compute/comm/group_communicator.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compute/comm/tasks.h"

namespace tessera {
namespace {

// Kind and first phase of each operation's messages, the same for both sides of a message.
constexpr std::array<uint32_t, kCommOpCount> kFirstPhase = {
    /*all-reduce*/ 1, /*reduce-scatter*/ 3,  /*all-gather*/ 4,
    /*all-to-all*/ 5,
    /*broadcast*/ 6,  /*gather of bytes*/ 8, /*broadcast of bytes*/ 10,
    /*send*/ 0,
    /*receive*/ 0,    /*barrier*/ 13,        /*split*/ 12};

// A running task behind a Pending.
class TaskOperation final : public Operation {
 public:
  TaskOperation(Endpoint* endpoint, std::shared_ptr<Task> task)
      : endpoint_(endpoint), task_(std::move(task)) {}

  absl::Status Wait(std::optional<absl::Duration> timeout) override {
    if (!ended_) Ended(endpoint_->Wait(task_.get(), timeout));
    return result_;
  }
  absl::Status Follow(std::optional<absl::Duration> timeout) override {
    if (!ended_) Ended(endpoint_->Follow(task_, timeout));
    return result_;
  }
  absl::StatusOr<bool> Test() override {
    if (!ended_) {
      absl::StatusOr<bool> done = endpoint_->Test(task_.get());
      if (done.ok() && !*done) return false;
      Ended(done.status());
    }
    if (!result_.ok()) return result_;
    return true;
  }

 private:
  void Ended(absl::Status result) {
    ended_ = true;
    result_ = std::move(result);
    if (result_.ok()) task_.reset();
  }

  Endpoint* const endpoint_;
  std::shared_ptr<Task> task_;  // kept after a failure: the transport may still use it
  bool ended_ = false;
  absl::Status result_;
};

std::vector<int> WholeWorld(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int64_t> InBytes(std::vector<int64_t> counts, CommType type) {
  for (int64_t& count : counts) count *= ElementSize(type);
  return counts;
}

std::vector<int64_t> Displacements(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> at(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), at.begin(), int64_t{0});
  return at;
}

Exchange GatherExchange(const void* mine, void* all, const std::vector<int64_t>& bytes, int rank) {
  Exchange exchange;
  exchange.send = static_cast<const char*>(mine);
  exchange.send_at.assign(bytes.size(), 0);
  exchange.send_bytes.assign(bytes.size(), bytes[rank]);
  exchange.receive = static_cast<char*>(all);
  exchange.receive_at = Displacements(bytes);
  exchange.receive_bytes = bytes;
  return exchange;
}

}  // namespace

GroupCommunicator::GroupCommunicator(Endpoint* endpoint)
    : GroupCommunicator(endpoint, 0, endpoint->rank(), WholeWorld(endpoint->size()),
                        endpoint->options().world_name, MakeHostAlgorithms()) {}

GroupCommunicator::GroupCommunicator(Endpoint* endpoint, uint32_t id, int rank,
                                     std::vector<int> world_ranks, std::string_view name,
                                     std::unique_ptr<Algorithms> algorithms)
    : endpoint_(endpoint),
      id_(id),
      rank_(rank),
      world_ranks_(std::move(world_ranks)),
      name_(endpoint->KeepName(name)),
      algorithms_(std::move(algorithms)) {}

Pending GroupCommunicator::Launch(CommOp op, std::unique_ptr<Task> task, const CallOptions& options,
                                  int tag) {
  if (endpoint_->transport().failed()) return Pending(endpoint_->FailureStatus());
  task->endpoint_ = endpoint_;
  task->world_ranks_ = &world_ranks_;
  task->group_name_ = name_;
  task->counter_ = &counters_[op];
  task->rank_ = rank_;
  task->op_ = op;
  task->number_ = tag >= 0 ? counters_[op].calls : collectives_++;
  const uint32_t number = tag >= 0 ? tag : task->number_ % (uint64_t{1} << kNumberBits);
  task->match_ = (((id_ << kNumberBits) | number) << kKindBits) | kFirstPhase[static_cast<int>(op)];
  task->what_ = std::string(options.what);
  task->timeout_ = options.timeout;
  ++task->counter_->calls;
  Task* const started = task.get();
  auto operation = std::make_unique<TaskOperation>(endpoint_, std::move(task));
  endpoint_->Start(started);
  return Pending(std::move(operation));
}

absl::Status GroupCommunicator::Invalid(CommOp op, const std::string& message) const {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(CommOpName(op)), " of '", *name_, "': ", message));
}

absl::Status GroupCommunicator::CheckRank(CommOp op, std::string_view role, int rank) const {
  if (rank >= 0 && rank < size()) return absl::OkStatus();
  return Invalid(
      op, absl::StrCat(std::string(role), " ", rank, " is not among the ", size(), " ranks"));
}

absl::StatusOr<std::vector<int64_t>> GroupCommunicator::Pieces(CommOp op, std::string_view role,
                                                               std::span<const int64_t> counts,
                                                               int64_t elements) const {
  if (counts.empty()) {
    if (elements % size() == 0) return std::vector<int64_t>(size(), elements / size());
    return Invalid(op, absl::StrCat(std::string(role), " of ", elements,
                                    " elements cannot be cut into ", size(), " equal pieces"));
  }
  if (static_cast<int>(counts.size()) != size()) {
    return Invalid(op, absl::StrCat(counts.size(), " piece sizes for ", size(), " ranks"));
  }
  int64_t sum = 0;
  for (int64_t count : counts) {
    if (count < 0) return Invalid(op, absl::StrCat("a piece of ", count, " elements"));
    sum += count;
  }
  if (sum != elements) {
    return Invalid(op, absl::StrCat("pieces add up to ", sum, " elements, ", std::string(role),
                                    " has ", elements));
  }
  return std::vector<int64_t>(counts.begin(), counts.end());
}

Pending GroupCommunicator::StartAllReduce(Buffer data, ReduceOp op, CallOptions options) {
  if (data.type == CommType::kBytes) {
    return Pending(Invalid(CommOp::kAllReduce, "bytes cannot be reduced"));
  }
  return Launch(CommOp::kAllReduce, algorithms_->AllReduce(data, op, rank_, size()), options);
}

Pending GroupCommunicator::StartReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                                              std::span<const int64_t> counts,
                                              CallOptions options) {
  constexpr CommOp kOp = CommOp::kReduceScatter;
  if (input.type == CommType::kBytes) return Pending(Invalid(kOp, "bytes cannot be reduced"));
  if (input.type != output.type) return Pending(Invalid(kOp, "input and output differ in type"));
  absl::StatusOr<std::vector<int64_t>> pieces = Pieces(kOp, "the input", counts, input.elements);
  if (!pieces.ok()) return Pending(pieces.status());
  if ((*pieces)[rank_] != output.elements) {
    return Pending(Invalid(kOp, absl::StrCat("the piece of rank ", rank_, " has ", (*pieces)[rank_],
                                             " elements, the output ", output.elements)));
  }
  return Launch(kOp, algorithms_->ReduceScatter(input, output, op, *std::move(pieces)), options);
}

Pending GroupCommunicator::StartAllGather(ConstBuffer input, Buffer output,
                                          std::span<const int64_t> counts, CallOptions options) {
  constexpr CommOp kOp = CommOp::kAllGather;
  if (input.type != output.type) return Pending(Invalid(kOp, "input and output differ in type"));
  absl::StatusOr<std::vector<int64_t>> pieces = Pieces(kOp, "the output", counts, output.elements);
  if (!pieces.ok()) return Pending(pieces.status());
  if ((*pieces)[rank_] != input.elements) {
    return Pending(Invalid(kOp, absl::StrCat("the piece of rank ", rank_, " has ", (*pieces)[rank_],
                                             " elements, the input ", input.elements)));
  }
  const std::vector<int64_t> bytes = InBytes(*std::move(pieces), input.type);
  return Launch(kOp, algorithms_->Move(GatherExchange(input.data, output.data, bytes, rank_)),
                options);
}

Pending GroupCommunicator::StartAllToAll(ConstBuffer input, std::span<const int64_t> send_counts,
                                         Buffer output, std::span<const int64_t> receive_counts,
                                         CallOptions options) {
  constexpr CommOp kOp = CommOp::kAllToAll;
  if (input.type != output.type) return Pending(Invalid(kOp, "input and output differ in type"));
  absl::StatusOr<std::vector<int64_t>> sent = Pieces(kOp, "the input", send_counts, input.elements);
  if (!sent.ok()) return Pending(sent.status());
  absl::StatusOr<std::vector<int64_t>> received =
      Pieces(kOp, "the output", receive_counts, output.elements);
  if (!received.ok()) return Pending(received.status());
  if ((*sent)[rank_] != (*received)[rank_]) {
    return Pending(
        Invalid(kOp, absl::StrCat("the own piece has ", (*sent)[rank_], " elements when sent and ",
                                  (*received)[rank_], " when received")));
  }
  Exchange exchange;
  exchange.send = static_cast<const char*>(input.data);
  exchange.send_bytes = InBytes(*std::move(sent), input.type);
  exchange.send_at = Displacements(exchange.send_bytes);
  exchange.receive = static_cast<char*>(output.data);
  exchange.receive_bytes = InBytes(*std::move(received), output.type);
  exchange.receive_at = Displacements(exchange.receive_bytes);
  return Launch(kOp, algorithms_->Move(std::move(exchange)), options);
}

Pending GroupCommunicator::StartBroadcast(Buffer data, int root, CallOptions options) {
  absl::Status valid = CheckRank(CommOp::kBroadcast, "root", root);
  if (!valid.ok()) return Pending(std::move(valid));
  return Launch(CommOp::kBroadcast, algorithms_->Broadcast(data, root), options);
}

Pending GroupCommunicator::StartSend(ConstBuffer data, int destination, int tag,
                                     CallOptions options) {
  absl::Status valid = CheckRank(CommOp::kSend, "destination", destination);
  if (valid.ok() && (tag < 0 || tag >= kTagLimit)) {
    valid = Invalid(CommOp::kSend, absl::StrCat("tag ", tag, " is not below ", kTagLimit));
  }
  if (!valid.ok()) return Pending(std::move(valid));
  return Launch(CommOp::kSend, algorithms_->Send(data, destination), options, tag);
}

Pending GroupCommunicator::StartReceive(Buffer data, int source, int tag, CallOptions options) {
  absl::Status valid = CheckRank(CommOp::kReceive, "source", source);
  if (valid.ok() && (tag < 0 || tag >= kTagLimit)) {
    valid = Invalid(CommOp::kReceive, absl::StrCat("tag ", tag, " is not below ", kTagLimit));
  }
  if (!valid.ok()) return Pending(std::move(valid));
  return Launch(CommOp::kReceive, algorithms_->Receive(data, source), options, tag);
}

absl::StatusOr<std::vector<std::string>> GroupCommunicator::GatherBytes(std::string_view mine,
                                                                        int root,
                                                                        CallOptions options) {
  absl::Status status = CheckRank(CommOp::kGatherBytes, "root", root);
  std::vector<std::string> gathered;
  if (status.ok()) {
    status = Launch(CommOp::kGatherBytes, MakeGatherBytesTask(mine, root, &gathered), options)
                 .Wait(options.timeout);
  }
  if (!status.ok()) return status;
  return gathered;
}

absl::StatusOr<std::string> GroupCommunicator::BroadcastBytes(std::string_view from_root, int root,
                                                              CallOptions options) {
  absl::Status status = CheckRank(CommOp::kBroadcastBytes, "root", root);
  std::string bytes(rank_ == root ? from_root : std::string_view());
  if (status.ok()) {
    status = Launch(CommOp::kBroadcastBytes, MakeBroadcastBytesTask(&bytes, root), options)
                 .Wait(options.timeout);
  }
  if (!status.ok()) return status;
  return bytes;
}

absl::Status GroupCommunicator::Barrier(CallOptions options) {
  return Launch(CommOp::kBarrier, MakeBarrierTask(), options).Wait(options.timeout);
}

absl::StatusOr<GroupCommunicator::NewGroup> GroupCommunicator::Agree(int color, int key,
                                                                     const CallOptions& options) {
  struct Member {
    int32_t color, key;
    uint64_t next_id;
  };
  const Member mine = {color, key, endpoint_->next_group_id()};
  std::vector<Member> members(size());
  const absl::Status status =
      Launch(CommOp::kSplit,
             MakeExchangeTask(GatherExchange(&mine, members.data(),
                                             std::vector<int64_t>(size(), sizeof(Member)), rank_)),
             options)
          .Wait(options.timeout);
  if (!status.ok()) return status;
  // An id that is free at every member. The new groups have no member in common and share it.
  uint64_t id = 0;
  std::vector<std::tuple<int, int>> order;  // key, rank here
  for (int i = 0; i < size(); ++i) {
    id = std::max(id, members[i].next_id);
    if (members[i].color == color) order.emplace_back(members[i].key, i);
  }
  if (id >= uint64_t{1} << kGroupBits) {
    return absl::ResourceExhaustedError(absl::StrCat("split of '", *name_, "': more than ",
                                                     (1 << kGroupBits) - 1, " splits in one run"));
  }
  endpoint_->set_next_group_id(static_cast<uint32_t>(id + 1));
  NewGroup group;
  group.id = static_cast<uint32_t>(id);
  if (color < 0) return group;
  std::sort(order.begin(), order.end());
  for (const auto& [member_key, member] : order) {
    if (member == rank_) group.rank = static_cast<int>(group.world_ranks.size());
    group.world_ranks.push_back(world_ranks_[member]);
  }
  return group;
}

absl::StatusOr<std::unique_ptr<Communicator>> GroupCommunicator::Split(int color, int key,
                                                                       std::string_view name,
                                                                       CallOptions options) {
  absl::StatusOr<NewGroup> group = Agree(color, key, options);
  if (!group.ok()) return group.status();
  std::unique_ptr<Algorithms> algorithms;
  std::unique_ptr<Task> task = algorithms_->Split(
      color, group->rank, static_cast<int>(group->world_ranks.size()), &algorithms);
  if (task != nullptr) {
    const absl::Status status =
        Launch(CommOp::kSplit, std::move(task), options).Wait(options.timeout);
    if (!status.ok()) return status;
    --counters_[CommOp::kSplit].calls;  // a part of the call that Agree() counted
  }
  if (color < 0) return nullptr;
  return std::make_unique<GroupCommunicator>(endpoint_, group->id, group->rank,
                                             std::move(group->world_ranks), name,
                                             std::move(algorithms));
}

absl::StatusOr<std::unique_ptr<GroupCommunicator>> GroupCommunicator::Over(
    std::unique_ptr<Algorithms> algorithms, std::string_view name, CallOptions options) {
  absl::StatusOr<NewGroup> group = Agree(0, rank_, options);
  if (!group.ok()) return group.status();
  return std::make_unique<GroupCommunicator>(endpoint_, group->id, group->rank,
                                             std::move(group->world_ranks), name,
                                             std::move(algorithms));
}

void GroupCommunicator::Abort(const absl::Status& error) {
  endpoint_->transport().Fail(
      {error.code(), std::string(error.message()), endpoint_->rank(), true});
}

}  // namespace tessera
