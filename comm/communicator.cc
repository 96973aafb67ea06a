#include "comm/communicator.h"

#include <glog/logging.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "comm/endpoint.h"
#include "comm/tasks.h"
#include "comm/tree_tasks.h"

namespace tessera {
namespace {

struct Operation {
  std::string_view name;
  // The first phase of its messages, the same for both sides of a message.
  uint32_t first_phase;
};

Operation OperationOf(CommOp op) {
  switch (op) {
    case CommOp::kAllReduce:
      return {"all-reduce", 1};
    case CommOp::kReduceScatter:
      return {"reduce-scatter", 3};
    case CommOp::kAllGather:
      return {"all-gather", 4};
    case CommOp::kBroadcast:
      return {"broadcast", 6};
    case CommOp::kGatherBytes:
      return {"gather of bytes", 8};
    case CommOp::kBroadcastBytes:
      return {"broadcast of bytes", 10};
    case CommOp::kSend:
      return {"send", 0};
    case CommOp::kReceive:
      return {"receive", 0};
    case CommOp::kBarrier:
      return {"barrier", 13};
    case CommOp::kSplit:
      return {"split", 12};
  }
  LOG(FATAL) << "unknown operation " << static_cast<int>(op);
}

std::vector<int> WholeWorld(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int64_t> InBytes(std::vector<int64_t> counts, CommType type) {
  for (int64_t& count : counts) count *= ElementSize(type);
  return counts;
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

std::unique_ptr<Task> Sized(std::unique_ptr<Task> task, int64_t bytes) {
  task->set_payload_bytes(bytes);
  return task;
}

}  // namespace

CommType ToCommType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CommType::kF32;
    case DType::kBF16:
      return CommType::kBF16;
    case DType::kF64:
      return CommType::kF64;
    case DType::kI32:
      return CommType::kI32;
    default:
      LOG(FATAL) << "unknown dtype " << static_cast<int>(dtype);
  }
}

int64_t ElementSize(CommType type) {
  switch (type) {
    case CommType::kF32:
    case CommType::kI32:
      return 4;
    case CommType::kF64:
    case CommType::kI64:
      return 8;
    case CommType::kBF16:
      return 2;
    case CommType::kBytes:
      return 1;
  }
  LOG(FATAL) << "unknown type " << static_cast<int>(type);
}

std::string_view CommOpName(CommOp op) { return OperationOf(op).name; }

Buffer::Buffer(const TensorView& tensor)
    : Buffer(tensor.data(), ToCommType(tensor.dtype()), tensor.elements()) {
  CHECK(tensor.contiguous()) << "ranks exchange contiguous tensors only";
}

int64_t CommCounters::bytes_sent() const {
  int64_t sum = 0;
  for (const CommCounter& counter : by_op) sum += counter.bytes_sent;
  return sum;
}

Pending::Pending(Endpoint* endpoint, std::shared_ptr<Task> task)
    : endpoint_(endpoint), task_(std::move(task)) {}

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this == &other) return *this;
  Wait().IgnoreError();
  endpoint_ = other.endpoint_;
  task_ = std::move(other.task_);
  ended_ = other.ended_;
  result_ = std::move(other.result_);
  return *this;
}

Pending::~Pending() { Wait().IgnoreError(); }

absl::Status Pending::End(absl::Status result) {
  ended_ = true;
  result_ = std::move(result);
  if (result_.ok()) task_.reset();
  return result_;
}

absl::Status Pending::Wait(std::optional<absl::Duration> timeout) {
  return running() ? End(endpoint_->Wait(task_.get(), timeout)) : result_;
}

absl::Status Pending::Follow(std::optional<absl::Duration> timeout) {
  return running() ? End(endpoint_->Follow(task_, timeout)) : result_;
}

absl::StatusOr<bool> Pending::Test() {
  if (running()) {
    const absl::StatusOr<bool> done = endpoint_->Test(task_.get());
    if (done.ok() && !*done) return false;
    End(done.status()).IgnoreError();
  }
  if (!result_.ok()) return result_;
  return true;
}

Communicator::Communicator(Endpoint* endpoint)
    : Communicator(endpoint, {.id = 0,
                              .rank = endpoint->rank(),
                              .world_ranks = WholeWorld(endpoint->size()),
                              .name = "world"}) {}

Communicator::Communicator(Endpoint* endpoint, CommGroup group)
    : endpoint_(endpoint), group_(std::move(group)), name_(endpoint->KeepName(group_.name)) {}

Communicator::~Communicator() { EndFollowed(); }

void Communicator::EndFollowed() { endpoint_->EndFollowed(&group_.world_ranks); }

Pending Communicator::Launch(CommOp op, std::unique_ptr<Task> task, const CallOptions& options,
                             int tag) {
  if (endpoint_->transport().failed()) return Pending(endpoint_->FailureStatus());
  task->endpoint_ = endpoint_;
  task->world_ranks_ = &group_.world_ranks;
  task->group_name_ = name_;
  task->counter_ = &counters_[op];
  task->rank_ = rank();
  task->op_ = op;
  task->number_ = tag >= 0 ? counters_[op].calls : collectives_++;
  const uint32_t number = tag >= 0 ? tag : task->number_ % (uint64_t{1} << kNumberBits);
  task->match_ = (((group_.id << kNumberBits) | number) << kKindBits) | OperationOf(op).first_phase;
  task->what_ = std::string(options.what);
  task->timeout_ = options.timeout;
  if (std::shared_ptr<TraceRecorder> trace = ActiveTrace(); trace != nullptr) {
    task->trace_ = std::move(trace);
    task->started_ns_ = TraceNow();
  }
  ++task->counter_->calls;
  Pending pending(endpoint_, std::move(task));
  endpoint_->Start(pending.task_.get());
  return pending;
}

absl::Status Communicator::Invalid(CommOp op, const std::string& message) const {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(CommOpName(op)), " of '", name(), "': ", message));
}

absl::Status Communicator::CheckRank(CommOp op, std::string_view role, int rank) const {
  if (rank >= 0 && rank < size()) return absl::OkStatus();
  return Invalid(
      op, absl::StrCat(std::string(role), " ", rank, " is not among the ", size(), " ranks"));
}

absl::Status Communicator::CheckPeer(CommOp op, std::string_view role, int rank, int tag) const {
  const absl::Status valid = CheckRank(op, role, rank);
  if (!valid.ok() || (tag >= 0 && tag < kTagLimit)) return valid;
  return Invalid(op, absl::StrCat("tag ", tag, " is not below ", kTagLimit));
}

absl::StatusOr<std::vector<int64_t>> Communicator::Pieces(CommOp op, std::string_view role,
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

absl::StatusOr<std::vector<int64_t>> Communicator::PiecesOf(CommOp op, ConstBuffer whole,
                                                            std::string_view whole_role,
                                                            ConstBuffer piece,
                                                            std::string_view piece_role,
                                                            std::span<const int64_t> counts) const {
  if (whole.type != piece.type) return Invalid(op, "input and output differ in type");
  absl::StatusOr<std::vector<int64_t>> pieces = Pieces(op, whole_role, counts, whole.elements);
  if (!pieces.ok() || (*pieces)[rank()] == piece.elements) return pieces;
  return Invalid(op, absl::StrCat("the piece of rank ", rank(), " has ", (*pieces)[rank()],
                                  " elements, ", std::string(piece_role), " ", piece.elements));
}

Pending Communicator::StartAllReduce(Buffer data, ReduceOp op, CallOptions options) {
  if (data.type == CommType::kBytes) {
    return Pending(Invalid(CommOp::kAllReduce, "bytes cannot be reduced"));
  }
  return Launch(CommOp::kAllReduce, Sized(MakeAllReduce(data, op), data.bytes()), options);
}

Pending Communicator::StartReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                                         std::span<const int64_t> counts, CallOptions options) {
  constexpr CommOp kOp = CommOp::kReduceScatter;
  if (input.type == CommType::kBytes) return Pending(Invalid(kOp, "bytes cannot be reduced"));
  auto pieces = PiecesOf(kOp, input, "the input", output, "the output", counts);
  if (!pieces.ok()) return Pending(pieces.status());
  return Launch(kOp, Sized(MakeReduceScatter(input, output, op, *std::move(pieces)), input.bytes()),
                options);
}

Pending Communicator::StartAllGather(ConstBuffer input, Buffer output,
                                     std::span<const int64_t> counts, CallOptions options) {
  constexpr CommOp kOp = CommOp::kAllGather;
  auto pieces = PiecesOf(kOp, output, "the output", input, "the input", counts);
  if (!pieces.ok()) return Pending(pieces.status());
  const std::vector<int64_t> bytes = InBytes(*std::move(pieces), input.type);
  return Launch(
      kOp,
      Sized(MakeExchange(GatherExchange(input.data, output.data, bytes, rank())), output.bytes()),
      options);
}

Pending Communicator::StartBroadcast(Buffer data, int root, CallOptions options) {
  absl::Status valid = CheckRank(CommOp::kBroadcast, "root", root);
  if (!valid.ok()) return Pending(std::move(valid));
  return Launch(CommOp::kBroadcast, Sized(MakeBroadcast(data, root), data.bytes()), options);
}

Pending Communicator::StartSend(ConstBuffer data, int destination, int tag, CallOptions options) {
  absl::Status valid = CheckPeer(CommOp::kSend, "destination", destination, tag);
  if (!valid.ok()) return Pending(std::move(valid));
  return Launch(CommOp::kSend, Sized(MakeSend(data, destination), data.bytes()), options, tag);
}

Pending Communicator::StartReceive(Buffer data, int source, int tag, CallOptions options) {
  absl::Status valid = CheckPeer(CommOp::kReceive, "source", source, tag);
  if (!valid.ok()) return Pending(std::move(valid));
  return Launch(CommOp::kReceive, Sized(MakeReceive(data, source), data.bytes()), options, tag);
}

absl::StatusOr<std::vector<std::string>> Communicator::GatherBytes(std::string_view mine, int root,
                                                                   CallOptions options) {
  TESSERA_RETURN_IF_ERROR(CheckRank(CommOp::kGatherBytes, "root", root));
  std::vector<std::string> gathered;
  TESSERA_RETURN_IF_ERROR(
      Launch(CommOp::kGatherBytes, MakeGatherBytesTask(mine, root, &gathered), options)
          .Wait(options.timeout));
  return gathered;
}

absl::StatusOr<std::string> Communicator::BroadcastBytes(std::string_view from_root, int root,
                                                         CallOptions options) {
  TESSERA_RETURN_IF_ERROR(CheckRank(CommOp::kBroadcastBytes, "root", root));
  std::string bytes(rank() == root ? from_root : std::string_view());
  TESSERA_RETURN_IF_ERROR(
      Launch(CommOp::kBroadcastBytes, MakeBroadcastBytesTask(&bytes, root), options)
          .Wait(options.timeout));
  return bytes;
}

absl::StatusOr<std::vector<std::string>> Communicator::AllGatherBytes(std::string_view mine,
                                                                      CallOptions options) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> all, GatherBytes(mine, /*root=*/0, options));
  std::string joined;
  for (const std::string& bytes : all) {
    AppendLittleEndian(static_cast<uint64_t>(bytes.size()), joined);
    joined.append(bytes);
  }
  TESSERA_ASSIGN_OR_RETURN(joined, BroadcastBytes(joined, /*root=*/0, options));
  all.clear();
  for (std::string_view rest = joined; !rest.empty();) {
    const auto size = LoadLittleEndian<uint64_t>(rest.data());
    all.emplace_back(rest.substr(sizeof(size), size));
    rest.remove_prefix(sizeof(size) + size);
  }
  return all;
}

absl::Status Communicator::Barrier(CallOptions options) {
  return Launch(CommOp::kBarrier, MakeBarrierTask(), options).Wait(options.timeout);
}

absl::StatusOr<CommGroup> Communicator::Agree(int color, int key, std::string_view name,
                                              CallOptions options) {
  struct Member {
    int32_t color, key;
    uint64_t next_id;
  };
  const Member mine = {color, key, endpoint_->next_group_id()};
  std::vector<Member> members(size());
  const std::vector<int64_t> bytes(size(), sizeof(Member));
  TESSERA_RETURN_IF_ERROR(
      Launch(CommOp::kSplit, MakeExchangeTask(GatherExchange(&mine, members.data(), bytes, rank())),
             options)
          .Wait(options.timeout));
  // An id that is free at every member. The new groups have no member in common and share it.
  uint64_t id = 0;
  std::vector<std::tuple<int, int>> order;  // key, rank here
  for (int i = 0; i < size(); ++i) {
    id = std::max(id, members[i].next_id);
    if (members[i].color == color) order.emplace_back(members[i].key, i);
  }
  if (id >= uint64_t{1} << kGroupBits) {
    return absl::ResourceExhaustedError(absl::StrCat("split of '", this->name(), "': more than ",
                                                     (1 << kGroupBits) - 1, " splits in one run"));
  }
  endpoint_->set_next_group_id(static_cast<uint32_t>(id + 1));
  CommGroup group = {
      .id = static_cast<uint32_t>(id), .rank = 0, .world_ranks = {}, .name = std::string(name)};
  if (color < 0) return group;
  std::sort(order.begin(), order.end());
  for (const auto& [member_key, member] : order) {
    if (member == rank()) group.rank = static_cast<int>(group.world_ranks.size());
    group.world_ranks.push_back(WorldRank(member));
  }
  return group;
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Split(int color, int key,
                                                                  std::string_view name,
                                                                  CallOptions options) {
  TESSERA_ASSIGN_OR_RETURN(CommGroup group, Agree(color, key, name, options));
  std::unique_ptr<Communicator> child;
  std::unique_ptr<Task> task = MakeSplit(color, std::move(group), &child);
  if (task == nullptr) return child;
  TESSERA_RETURN_IF_ERROR(Launch(CommOp::kSplit, std::move(task), options).Wait(options.timeout));
  --counters_[CommOp::kSplit].calls;  // a part of the call that Agree() counted
  return child;
}

void Communicator::Progress() { endpoint_->Progress(); }

void Communicator::Abort(const absl::Status& error) {
  endpoint_->transport().Fail(
      {error.code(), std::string(error.message()), endpoint_->rank(), true});
}

std::unique_ptr<Task> Communicator::MakeAllReduce(Buffer data, ReduceOp op) {
  return MakeAllReduceTask(data, op, rank(), size());
}

std::unique_ptr<Task> Communicator::MakeReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                                                      std::vector<int64_t> counts) {
  return MakeReduceScatterTask(input, output, op, std::move(counts));
}

std::unique_ptr<Task> Communicator::MakeExchange(Exchange exchange) {
  return MakeExchangeTask(std::move(exchange));
}

std::unique_ptr<Task> Communicator::MakeBroadcast(Buffer data, int root) {
  return MakeBroadcastTask(data, root);
}

std::unique_ptr<Task> Communicator::MakeSend(ConstBuffer data, int destination) {
  return MakeSendTask(data, destination);
}

std::unique_ptr<Task> Communicator::MakeReceive(Buffer data, int source) {
  return MakeReceiveTask(data, source);
}

std::unique_ptr<Task> Communicator::MakeSplit(int /*color*/, CommGroup group,
                                              std::unique_ptr<Communicator>* child) {
  if (!group.world_ranks.empty()) child->reset(new Communicator(endpoint_, std::move(group)));
  return nullptr;
}

absl::Status Communicator::AllReduce(Buffer data, ReduceOp op, CallOptions options) {
  return StartAllReduce(data, op, options).Wait(options.timeout);
}

absl::Status Communicator::ReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                                         std::span<const int64_t> counts, CallOptions options) {
  return StartReduceScatter(input, output, op, counts, options).Wait(options.timeout);
}

absl::Status Communicator::AllGather(ConstBuffer input, Buffer output,
                                     std::span<const int64_t> counts, CallOptions options) {
  return StartAllGather(input, output, counts, options).Wait(options.timeout);
}

absl::Status Communicator::Broadcast(Buffer data, int root, CallOptions options) {
  return StartBroadcast(data, root, options).Wait(options.timeout);
}

absl::Status Communicator::Send(ConstBuffer data, int destination, int tag, CallOptions options) {
  return StartSend(data, destination, tag, options).Wait(options.timeout);
}

absl::Status Communicator::Receive(Buffer data, int source, int tag, CallOptions options) {
  return StartReceive(data, source, tag, options).Wait(options.timeout);
}

std::vector<int64_t> EvenCounts(int64_t elements, int ranks) {
  std::vector<int64_t> counts(ranks, elements / ranks);
  for (int64_t i = 0; i < elements % ranks; ++i) ++counts[i];
  return counts;
}

}  // namespace tessera
