#include "comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "comm/tasks.h"

namespace tessera {
namespace {

// Received pieces of a reduction take this much memory for each other rank.
constexpr int64_t kSegmentBytes = int64_t{16} << 20;

char* At(const void* data, int64_t bytes) {
  return static_cast<char*>(const_cast<void*>(data)) + bytes;
}

// Queues a piece for every other rank and from every other rank, at the same time. Empty pieces are
// left out on both sides.
absl::Status QueueExchange(NcclLane& lane, int rank, const Exchange& e) {
  return lane.Call([&](NcclApi& api, NcclApi::Comm comm) {
    const int size = static_cast<int>(e.send_bytes.size());
    const NcclApi::StreamHandle stream = lane.stream().handle();
    NcclApi::Result first = api.GroupStart();
    const auto keep = [&](NcclApi::Result result) {
      if (first == NcclApi::kSuccess) first = result;
    };
    for (int i = 1; i < size; ++i) {
      const int to = (rank + i) % size, from = (rank - i + size) % size;
      if (e.send_bytes[to] > 0) {
        keep(api.Send(e.send + e.send_at[to], static_cast<size_t>(e.send_bytes[to]), to, comm,
                      stream));
      }
      if (e.receive_bytes[from] > 0) {
        keep(api.Receive(e.receive + e.receive_at[from], static_cast<size_t>(e.receive_bytes[from]),
                         from, comm, stream));
      }
    }
    keep(api.GroupEnd());
    return first;
  });
}

class CollectiveTask : public NcclTask {
 public:
  CollectiveTask(NcclRank& shared, NcclLane& lane) : NcclTask(shared), lane_(lane) {}

 protected:
  // Adds the steps and counts the bytes.
  virtual void Build() = 0;
  NcclLane& group() { return lane_; }

 private:
  absl::Status Begin() override {
    Enter(&lane_, lane_.TakePlace());
    Build();
    return absl::OkStatus();
  }

  NcclLane& lane_;
};

class ExchangeTask final : public CollectiveTask {
 public:
  ExchangeTask(NcclRank& shared, NcclLane& lane, Exchange exchange)
      : CollectiveTask(shared, lane), e_(std::move(exchange)) {}

 private:
  void Build() override {
    const int me = rank();
    for (int i = 0; i < size(); ++i) CountSent(i == me ? 0 : e_.send_bytes[i]);
    if (size() > 1 && IsEvenGather()) {
      AddStep([this] {
        return group().Call([&](NcclApi& api, NcclApi::Comm comm) {
          return api.AllGather(e_.send, e_.receive, static_cast<size_t>(e_.receive_bytes[0]), comm,
                               group().stream().handle());
        });
      });
      return;
    }
    AddStep([this, me] {
      const char* const mine = e_.send + e_.send_at[me];
      char* const to = e_.receive + e_.receive_at[me];
      if (mine != to) group().stream().Copy(mine, e_.send_bytes[me], to);
      return size() > 1 ? QueueExchange(group(), me, e_) : absl::OkStatus();
    });
  }

  // Returns whether every rank gets the same piece, and all pieces have one size.
  bool IsEvenGather() const {
    const int64_t bytes = e_.receive_bytes[0];
    const auto same = [&](int64_t other) { return other == bytes; };
    return bytes > 0 &&
           std::all_of(e_.send_at.begin(), e_.send_at.end(), [](int64_t at) { return at == 0; }) &&
           std::all_of(e_.send_bytes.begin(), e_.send_bytes.end(), same) &&
           std::all_of(e_.receive_bytes.begin(), e_.receive_bytes.end(), same);
  }

  const Exchange e_;
};

class BroadcastTask final : public CollectiveTask {
 public:
  BroadcastTask(NcclRank& shared, NcclLane& lane, Buffer data, int root)
      : CollectiveTask(shared, lane), data_(data), root_(root) {}

 private:
  void Build() override {
    CountSent(Sent());
    if (size() == 1 || data_.bytes() == 0) return;
    AddStep([this] {
      return group().Call([&](NcclApi& api, NcclApi::Comm comm) {
        return api.Broadcast(data_.data, static_cast<size_t>(data_.bytes()), root_, comm,
                             group().stream().handle());
      });
    });
  }

  // Returns the bytes by CommCounter's definition: NCCL does not report which rank forwards what.
  int64_t Sent() const {
    const int64_t n = data_.bytes(), p = size();
    if (n <= kSmallBroadcastBytes) {
      const int64_t v = (rank() - root_ + p) % p;
      int64_t children = 0;
      for (int64_t bit = 1; (v == 0 || bit < (v & -v)) && v + bit < p; bit *= 2) ++children;
      return children * n;
    }
    const int64_t piece = EvenCounts(n, size())[rank()];
    if (rank() == root_) return p == 1 ? 0 : n - piece + (p - 1) * piece;
    return (p - 2) * piece;
  }

  const Buffer data_;
  const int root_;
};

// Every rank receives the pieces that it reduces into memory of its own, segment by segment.
class ReduceTask : public CollectiveTask {
 protected:
  ReduceTask(NcclRank& shared, NcclLane& lane, ReduceOp op, CommType type)
      : CollectiveTask(shared, lane), op_(op), type_(type) {}

  // Adds the allocation of `slot_bytes` for each other rank.
  void AddAllocation(int64_t slot_bytes) {
    slot_bytes_ = slot_bytes;
    if (size() == 1 || slot_bytes == 0) return;
    AddStep([this]() -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(
          DeviceBuffer memory,
          DeviceBuffer::Allocate(group().stream(), (size() - 1) * slot_bytes_, "pieces to reduce"));
      received_.emplace(std::move(memory));
      return absl::OkStatus();
    });
  }
  // Adds the release of the slots, in the order of the stream: after the last reduction.
  void AddRelease() {
    AddStep([this] {
      received_.reset();
      return absl::OkStatus();
    });
  }

  // Returns where the piece of rank `from` arrives.
  char* Slot(int from) {
    return static_cast<char*>(received_->data()) + (from - (from > rank() ? 1 : 0)) * slot_bytes_;
  }

  // `output` = the reduction of this rank's `mine` and what has arrived.
  void QueueReduction(const void* mine, void* output, int64_t elements) {
    if (elements == 0) return;
    std::vector<const void*> inputs(size());
    for (int i = 0; i < size(); ++i) inputs[i] = i == rank() ? mine : Slot(i);
    shared().reducer().Reduce(group().stream(), op_, type_, inputs, output, elements);
  }

  const ReduceOp op_;
  const CommType type_;

 private:
  int64_t slot_bytes_ = 0;
  std::optional<DeviceBuffer> received_;
};

// Every rank receives and reduces everything.
class SmallAllReduceTask final : public ReduceTask {
 public:
  SmallAllReduceTask(NcclRank& shared, NcclLane& lane, Buffer data, ReduceOp op)
      : ReduceTask(shared, lane, op, data.type), data_(data) {}

 private:
  void Build() override {
    CountSent((size() - 1) * data_.bytes());
    if (size() == 1 || data_.elements == 0) return;
    AddAllocation(data_.bytes());
    AddStep([this] {
      Exchange e;
      e.send = static_cast<const char*>(data_.data);
      e.send_at.assign(size(), 0);
      e.send_bytes.assign(size(), data_.bytes());
      e.receive = Slot(0);
      e.receive_bytes = e.send_bytes;
      for (int i = 0; i < size(); ++i) e.receive_at.push_back(Slot(i) - Slot(0));
      return QueueExchange(group(), rank(), e);
    });
    AddStep([this] {
      QueueReduction(data_.data, data_.data, data_.elements);
      return absl::OkStatus();
    });
    AddRelease();
  }

  const Buffer data_;
};

// With `gather`, where `output` is a piece of `input`, the reduced pieces are sent to every rank:
// an all-reduce.
class ReduceScatterTask final : public ReduceTask {
 public:
  ReduceScatterTask(NcclRank& shared, NcclLane& lane, ConstBuffer input, Buffer output, ReduceOp op,
                    std::vector<int64_t> counts, bool gather)
      : ReduceTask(shared, lane, op, input.type),
        input_(input),
        output_(output),
        counts_(std::move(counts)),
        at_(Displacements(counts_)),
        gather_(gather) {}

 private:
  void Build() override {
    const int64_t element = ElementSize(type_), mine = counts_[rank()];
    CountSent(input_.bytes() - mine * element);
    if (gather_) CountSent((size() - 1) * mine * element);
    if (size() == 1) {
      if (input_.data != output_.data) AddStep([this] { return CopyOnly(); });
      return;
    }
    segment_ = kSegmentBytes / element;
    AddAllocation(std::min(segment_, mine) * element);
    const int64_t longest = *std::max_element(counts_.begin(), counts_.end());
    for (int64_t begin = 0; begin < longest; begin += segment_) {
      AddStep([this, begin] { return QueueExchange(group(), rank(), SegmentExchange(begin)); });
      AddStep([this, begin] { return ReduceSegment(begin); });
    }
    AddRelease();
    if (gather_) AddStep([this] { return QueueExchange(group(), rank(), GatherExchange()); });
  }

  absl::Status CopyOnly() {
    group().stream().Copy(input_.data, output_.bytes(), output_.data);
    return absl::OkStatus();
  }

  // Returns the elements of a rank's piece in the segment that starts at `begin`.
  int64_t Elements(int piece, int64_t begin) const {
    return std::clamp<int64_t>(counts_[piece] - begin, 0, segment_);
  }

  Exchange SegmentExchange(int64_t begin) {
    const int64_t element = ElementSize(type_);
    Exchange e;
    e.send = static_cast<const char*>(input_.data);
    const bool receives = Elements(rank(), begin) > 0;
    e.receive = receives ? Slot(0) : nullptr;
    for (int i = 0; i < size(); ++i) {
      e.send_at.push_back((at_[i] + begin) * element);
      e.send_bytes.push_back(Elements(i, begin) * element);
      e.receive_at.push_back(receives ? Slot(i) - Slot(0) : 0);
      e.receive_bytes.push_back(Elements(rank(), begin) * element);
    }
    return e;
  }

  absl::Status ReduceSegment(int64_t begin) {
    const int64_t element = ElementSize(type_);
    QueueReduction(At(input_.data, (at_[rank()] + begin) * element),
                   At(output_.data, begin * element), Elements(rank(), begin));
    return absl::OkStatus();
  }

  Exchange GatherExchange() const {
    const int64_t element = ElementSize(type_);
    Exchange e;
    e.send = static_cast<const char*>(output_.data);
    e.receive = At(input_.data, 0);
    for (int i = 0; i < size(); ++i) {
      e.send_at.push_back(0);
      e.send_bytes.push_back(counts_[rank()] * element);
      e.receive_at.push_back(at_[i] * element);
      e.receive_bytes.push_back(counts_[i] * element);
    }
    return e;
  }

  const ConstBuffer input_;
  const Buffer output_;
  const std::vector<int64_t> counts_;
  const std::vector<int64_t> at_;  // of pieces, in elements
  const bool gather_;
  int64_t segment_ = 0;  // elements
};

// A new communicator for this rank's new group, which `child` adopts.
class SplitTask final : public CollectiveTask {
 public:
  SplitTask(NcclRank& shared, NcclLane& lane, int color, int key, NcclLane* child)
      : CollectiveTask(shared, lane), color_(color), key_(key), child_(child) {}

 private:
  void Build() override {
    AddStep([this] {
      return group().Call([&](NcclApi& api, NcclApi::Comm comm) {
        return api.CommSplit(comm, color_, key_, &created_);
      });
    });
    AddStep([this] {
      if (child_ != nullptr) child_->Adopt(created_);
      return absl::OkStatus();
    });
  }

  const int color_, key_;
  NcclLane* const child_;
  NcclApi::Comm created_ = nullptr;
};

// Reports an error of its preparation like any other error of an operation.
class FailedTask final : public NcclTask {
 public:
  FailedTask(NcclRank& shared, absl::Status status)
      : NcclTask(shared), status_(std::move(status)) {}

 private:
  absl::Status Begin() override { return status_; }

  const absl::Status status_;
};

}  // namespace

std::unique_ptr<Task> NcclCommunicator::MakeAllReduce(Buffer data, ReduceOp op) {
  if (data.bytes() <= kSmallAllReduceBytes) {
    return std::make_unique<SmallAllReduceTask>(shared_, *lane_, data, op);
  }
  std::vector<int64_t> counts = EvenCounts(data.elements, size());
  const int64_t before = std::accumulate(counts.begin(), counts.begin() + rank(), int64_t{0});
  const Buffer mine(At(data.data, before * ElementSize(data.type)), data.type, counts[rank()]);
  return std::make_unique<ReduceScatterTask>(shared_, *lane_, data, mine, op, std::move(counts),
                                             true);
}

std::unique_ptr<Task> NcclCommunicator::MakeReduceScatter(ConstBuffer input, Buffer output,
                                                          ReduceOp op,
                                                          std::vector<int64_t> counts) {
  return std::make_unique<ReduceScatterTask>(shared_, *lane_, input, output, op, std::move(counts),
                                             false);
}

std::unique_ptr<Task> NcclCommunicator::MakeExchange(Exchange exchange) {
  return std::make_unique<ExchangeTask>(shared_, *lane_, std::move(exchange));
}

std::unique_ptr<Task> NcclCommunicator::MakeBroadcast(Buffer data, int root) {
  return std::make_unique<BroadcastTask>(shared_, *lane_, data, root);
}

std::unique_ptr<Task> NcclCommunicator::MakeSend(ConstBuffer data, int destination) {
  return MakeNcclSendTask(shared_, outgoing_, data, destination);
}

std::unique_ptr<Task> NcclCommunicator::MakeReceive(Buffer data, int source) {
  return MakeNcclReceiveTask(shared_, incoming_, data, source);
}

std::unique_ptr<Task> NcclCommunicator::MakeSplit(int color, CommGroup group,
                                                  std::unique_ptr<Communicator>* child) {
  const int members = static_cast<int>(group.world_ranks.size()), key = group.rank;
  NcclLane* lane = nullptr;
  if (members > 0) {
    absl::StatusOr<std::unique_ptr<NcclLane>> created = NcclLane::Create(shared_);
    if (!created.ok()) return std::make_unique<FailedTask>(shared_, created.status());
    lane = created->get();
    *child = std::make_unique<NcclCommunicator>(endpoint(), std::move(group), shared_,
                                                *std::move(created));
  }
  if (size() == 1) return nullptr;
  const bool connects = members > 1;
  return std::make_unique<SplitTask>(shared_, *lane_, connects ? color : -1, key,
                                     connects ? lane : nullptr);
}

}  // namespace tessera
