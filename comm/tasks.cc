#include "comm/tasks.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/checked_math.h"
#include "comm/tree_tasks.h"

namespace tessera {
namespace {

char* At(const void* data, int64_t bytes) {
  return static_cast<char*>(const_cast<void*>(data)) + bytes;
}

// ---- Moving pieces.

class ExchangeTask final : public Task {
 public:
  explicit ExchangeTask(Exchange exchange) : e_(std::move(exchange)) {}

  bool Advance() override {
    if (!started_) Post();
    started_ = true;
    return outstanding() == 0;
  }

 private:
  void Post() {
    const int me = rank();
    for (int i = 1; i < size(); ++i) {
      const int from = (me - i + size()) % size();
      if (e_.receive_bytes[from] > 0) {
        Receive(from, e_.receive + e_.receive_at[from], e_.receive_bytes[from]);
      }
    }
    for (int i = 1; i < size(); ++i) {
      const int to = (me + i) % size();
      if (e_.send_bytes[to] > 0) Send(to, e_.send + e_.send_at[to], e_.send_bytes[to]);
    }
    const char* mine = e_.send + e_.send_at[me];
    char* mine_to = e_.receive + e_.receive_at[me];
    if (mine != mine_to && e_.send_bytes[me] > 0) std::memcpy(mine_to, mine, e_.send_bytes[me]);
  }

  const Exchange e_;
  bool started_ = false;
};

class MessageTask final : public Task {
 public:
  MessageTask(bool send, Buffer data, int peer) : send_(send), data_(data), peer_(peer) {}

  bool Advance() override {
    if (!started_) {
      started_ = true;
      if (send_) {
        Send(peer_, data_.data, data_.bytes());
      } else {
        Receive(peer_, data_.data, data_.bytes());
      }
    }
    return outstanding() == 0;
  }

 private:
  const bool send_;
  const Buffer data_;
  const int peer_;
  bool started_ = false;
};

// ---- Reductions.

// Pieces are sent in segments that fit into a core's cache, several at a time: one is added while
// the next ones are in transit.
constexpr int64_t kSegmentBytes = 256 << 10;
constexpr int64_t kSegmentsAhead = 3;

// Sends pieces of `input` to their ranks and reduces this rank's piece into `output`, segment by
// segment. With `gather`, where `output` is a piece of `input`, each reduced segment is sent to
// every rank immediately: an all-reduce.
class ReduceScatterTask final : public Task {
 public:
  ReduceScatterTask(ConstBuffer input, Buffer output, ReduceOp op, std::vector<int64_t> counts,
                    bool gather)
      : input_(input), output_(output), op_(op), counts_(std::move(counts)), gather_(gather) {}

  bool Advance() override {
    if (!started_) Prepare();
    while (true) {
      PostAhead();
      if (reduced_ == segments_ || !SegmentHere(reduced_)) break;
      ReduceSegment(reduced_);
      ++reduced_;
    }
    if (gather_) PostGathered();
    return reduced_ == segments_ && posted_sends_ == max_segments_ && outstanding() == 0 &&
           (!gather_ || gathered_posted_ == max_segments_);
  }

 private:
  int64_t SegmentsOf(int piece) const { return CeilDivide(counts_[piece], segment_elements_); }
  int64_t SegmentElements(int piece, int64_t segment) const {
    return std::min(segment_elements_, counts_[piece] - segment * segment_elements_);
  }
  int64_t Offset(int piece, int64_t segment) const {
    return (at_[piece] + segment * segment_elements_) * element_bytes_;
  }

  void Prepare() {
    started_ = true;
    element_bytes_ = ElementSize(input_.type);
    segment_elements_ = kSegmentBytes / element_bytes_;
    at_ = Displacements(counts_);
    segments_ = SegmentsOf(rank());
    max_segments_ = (*std::max_element(counts_.begin(), counts_.end()) + segment_elements_ - 1) /
                    segment_elements_;
    const int64_t slot_elements = std::min(segment_elements_, counts_[rank()]);
    slots_ = std::min(segments_, kSegmentsAhead);
    slot_bytes_ = slot_elements * element_bytes_;
    // Left uninitialised: it is written before it is read, and touching the pages of a large one
    // takes time.
    received_.reset(new char[slots_ * (size() - 1) * slot_bytes_]);
    arrivals_.resize(segments_ * (size() - 1));
    sends_.resize(max_segments_ * (size() - 1));
  }

  // Receives the segment of rank (me - i).
  char* Slot(int64_t segment, int i) {
    return received_.get() + ((segment % slots_) * (size() - 1) + i - 1) * slot_bytes_;
  }

  void PostAhead() {
    for (; posted_receives_ < std::min(segments_, reduced_ + kSegmentsAhead); ++posted_receives_) {
      for (int i = 1; i < size(); ++i) {
        const int from = (rank() - i + size()) % size();
        arrivals_[posted_receives_ * (size() - 1) + i - 1] =
            Receive(from, Slot(posted_receives_, i),
                    SegmentElements(rank(), posted_receives_) * element_bytes_);
      }
    }
    while (sends_ended_ < posted_sends_ && SegmentSent(sends_ended_)) ++sends_ended_;
    for (; posted_sends_ < std::min(max_segments_, sends_ended_ + kSegmentsAhead);
         ++posted_sends_) {
      for (int i = 1; i < size(); ++i) {
        const int to = (rank() + i) % size();
        if (posted_sends_ >= SegmentsOf(to)) continue;
        sends_[posted_sends_ * (size() - 1) + to - (to > rank())] =
            Send(to, At(input_.data, Offset(to, posted_sends_)),
                 SegmentElements(to, posted_sends_) * element_bytes_);
      }
    }
  }

  bool SegmentHere(int64_t segment) const {
    for (int i = 0; i < size() - 1; ++i) {
      if (!arrivals_[segment * (size() - 1) + i]->done) return false;
    }
    return true;
  }

  bool SegmentSent(int64_t segment) const {
    for (int i = 0; i < size() - 1; ++i) {
      const Transfer* send = sends_[segment * (size() - 1) + i];
      if (send != nullptr && !send->done) return false;
    }
    return true;
  }

  void ReduceSegment(int64_t segment) {
    inputs_.assign(size(), nullptr);
    inputs_[rank()] = At(input_.data, Offset(rank(), segment));
    for (int i = 1; i < size(); ++i) inputs_[(rank() - i + size()) % size()] = Slot(segment, i);
    char* out = At(output_.data, segment * segment_elements_ * element_bytes_);
    const int64_t elements = SegmentElements(rank(), segment);
    ReduceInTreeOrder(op_, input_.type, inputs_, out, elements);
    if (!gather_) return;
    for (int i = 1; i < size(); ++i) Send((rank() + i) % size(), out, elements * element_bytes_, 1);
  }

  // A reduced segment may overwrite this rank's input segment once that has been sent.
  void PostGathered() {
    for (; gathered_posted_ < max_segments_; ++gathered_posted_) {
      if (gathered_posted_ >= posted_sends_ || !SegmentSent(gathered_posted_)) return;
      for (int from = 0; from < size(); ++from) {
        if (from == rank() || gathered_posted_ >= SegmentsOf(from)) continue;
        Receive(from, At(input_.data, Offset(from, gathered_posted_)),
                SegmentElements(from, gathered_posted_) * element_bytes_, 1);
      }
    }
  }

  const ConstBuffer input_;
  const Buffer output_;
  const ReduceOp op_;
  const std::vector<int64_t> counts_;
  const bool gather_;

  bool started_ = false;
  int64_t element_bytes_ = 0, segment_elements_ = 0;
  std::vector<int64_t> at_;   // of pieces, in elements
  int64_t segments_ = 0;      // of this rank's piece
  int64_t max_segments_ = 0;  // the maximum over ranks
  int64_t slots_ = 0, slot_bytes_ = 0;
  std::unique_ptr<char[]> received_;
  std::vector<Transfer*> arrivals_, sends_;
  std::vector<const void*> inputs_;
  int64_t posted_receives_ = 0, posted_sends_ = 0, sends_ended_ = 0, reduced_ = 0;
  int64_t gathered_posted_ = 0;
};

// One message between any two ranks, for pieces of one segment. Implements all-reduce, where every
// piece is the whole array, and reduce-scatter.
class OneStepReduceTask final : public Task {
 public:
  // Without counts, every rank receives the whole array.
  OneStepReduceTask(ConstBuffer input, Buffer output, ReduceOp op, std::vector<int64_t> counts)
      : input_(input), output_(output), op_(op), counts_(std::move(counts)) {}

  bool Advance() override {
    if (!started_) Post();
    if (outstanding() > 0) return false;
    if (output_.elements == 0) return true;
    std::vector<const void*> inputs(size());
    inputs[rank()] = At(input_.data, mine_at_);
    for (int i = 1; i < size(); ++i) inputs[(rank() - i + size()) % size()] = Slot(i);
    ReduceInTreeOrder(op_, input_.type, inputs, output_.data, output_.elements);
    return true;
  }

 private:
  // Receives the data of rank (me - i).
  char* Slot(int i) { return received_.get() + (i - 1) * output_.bytes(); }

  void Post() {
    started_ = true;
    if (output_.elements > 0) {
      received_.reset(new char[(size() - 1) * output_.bytes()]);
      for (int i = 1; i < size(); ++i) {
        Receive((rank() - i + size()) % size(), Slot(i), output_.bytes());
      }
    }
    int64_t at = 0;
    for (int to = 0; to < size(); ++to) {
      const int64_t bytes =
          counts_.empty() ? input_.bytes() : counts_[to] * ElementSize(input_.type);
      if (to == rank()) {
        mine_at_ = at;
      } else if (bytes > 0) {
        Send(to, At(input_.data, at), bytes);
      }
      if (!counts_.empty()) at += bytes;
    }
  }

  const ConstBuffer input_;
  const Buffer output_;
  const ReduceOp op_;
  const std::vector<int64_t> counts_;
  bool started_ = false;
  int64_t mine_at_ = 0;
  std::unique_ptr<char[]> received_;
};

// ---- Broadcasts.

// Scatters the root's pieces, then gathers every rank's piece at all ranks that lack it.
class LargeBroadcastTask final : public Task {
 public:
  LargeBroadcastTask(Buffer data, int root) : data_(data), root_(root) {}

  bool Advance() override {
    if (size() == 1) return true;
    if (stage_ == 0) Scatter();
    if (stage_ == 1 && (mine_ == nullptr || mine_->done)) Spread();
    return stage_ == 2 && outstanding() == 0;
  }

 private:
  void Scatter() {
    stage_ = 1;
    counts_ = EvenCounts(data_.bytes(), size());
    at_ = Displacements(counts_);
    if (rank() == root_) {
      for (int i = 1; i < size(); ++i) SendPiece((root_ + i) % size(), (root_ + i) % size(), 0);
      return;
    }
    mine_ = Receive(root_, At(data_.data, at_[rank()]), counts_[rank()]);
    for (int i = 1; i < size(); ++i) {
      const int from = (rank() - i + size()) % size();
      Receive(from, At(data_.data, at_[from]), counts_[from], 1);
    }
  }
  void Spread() {
    stage_ = 2;
    for (int i = 1; i < size(); ++i) {
      const int to = (rank() + i) % size();
      if (to != root_) SendPiece(rank(), to, 1);
    }
  }
  void SendPiece(int piece, int to, int phase) {
    Send(to, At(data_.data, at_[piece]), counts_[piece], phase);
  }

  const Buffer data_;
  const int root_;
  int stage_ = 0;
  Transfer* mine_ = nullptr;
  std::vector<int64_t> counts_, at_;
};

}  // namespace

std::vector<int64_t> Displacements(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> at(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), at.begin(), int64_t{0});
  return at;
}

std::unique_ptr<Task> MakeExchangeTask(Exchange exchange) {
  return std::make_unique<ExchangeTask>(std::move(exchange));
}

std::unique_ptr<Task> MakeReduceScatterTask(ConstBuffer input, Buffer output, ReduceOp op,
                                            std::vector<int64_t> counts) {
  if (*std::max_element(counts.begin(), counts.end()) * ElementSize(input.type) <= kSegmentBytes) {
    return std::make_unique<OneStepReduceTask>(input, output, op, std::move(counts));
  }
  return std::make_unique<ReduceScatterTask>(input, output, op, std::move(counts), false);
}

std::unique_ptr<Task> MakeAllReduceTask(Buffer data, ReduceOp op, int rank, int size) {
  if (data.bytes() <= kSmallAllReduceBytes) {
    return std::make_unique<OneStepReduceTask>(data, data, op, std::vector<int64_t>());
  }
  std::vector<int64_t> counts = EvenCounts(data.elements, size);
  int64_t at = 0;
  for (int i = 0; i < rank; ++i) at += counts[i];
  const Buffer mine(At(data.data, at * ElementSize(data.type)), data.type, counts[rank]);
  return std::make_unique<ReduceScatterTask>(data, mine, op, std::move(counts), true);
}

std::unique_ptr<Task> MakeBroadcastTask(Buffer data, int root) {
  if (data.bytes() <= kSmallBroadcastBytes) return MakeTreeBroadcastTask(data, root);
  return std::make_unique<LargeBroadcastTask>(data, root);
}

std::unique_ptr<Task> MakeSendTask(ConstBuffer data, int destination) {
  return std::make_unique<MessageTask>(
      true, Buffer(const_cast<void*>(data.data), data.type, data.elements), destination);
}

std::unique_ptr<Task> MakeReceiveTask(Buffer data, int source) {
  return std::make_unique<MessageTask>(false, data, source);
}

}  // namespace tessera
