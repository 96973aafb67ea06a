#include "checkpoint/load/shared_reader.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/checked_math.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/threads.h"

namespace tessera::ckpt {
namespace {

// The mark before the contents of a piece: whether they are valid.
constexpr std::byte kGood{0};
constexpr std::byte kFailed{1};
constexpr uint64_t kMarkBytes = 1;

// Size of one message, and the number in flight to a rank: received data is still in the
// second-level cache when it is placed. No element crosses a boundary.
constexpr uint64_t kMessageBytes = uint64_t{512} << 10;
constexpr uint64_t kReceives = 3;

// Space for the mark in front of the contents, which themselves begin at a cache line where they
// are copied, and at a page where the disk delivers them.
constexpr uint64_t kCopyRoomBytes = 64;
constexpr uint64_t kReadRoomBytes = kIoAlignmentBytes;

// Calls fn(message) for the messages that carry a complete piece.
template <typename Function>
void ForEachMessage(const FilePiece& piece, Function&& fn) {
  for (uint64_t at = piece.begin; at < piece.end; at += kMessageBytes) {
    fn(FilePiece{piece.file_index, at, std::min(piece.end, at + kMessageBytes)});
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedReader>> SharedReader::Create(
    const Manifest& manifest, const Scanner& scanner, const Placer& placer, const ReadShare& share,
    int rank, int io_threads, uint64_t staging_bytes) {
  std::unique_ptr<SharedReader> shared(new SharedReader(scanner, placer, rank));
  TESSERA_RETURN_IF_ERROR(shared->Schedule(manifest, share));
  TESSERA_RETURN_IF_ERROR(shared->MakeBuffers(io_threads, staging_bytes));
  return shared;
}

absl::Status SharedReader::Schedule(const Manifest& manifest, const ReadShare& share) {
  for (const RankSet& set : share.rank_sets()) {
    rank_sets_[set.id()].assign(set.rank().begin(), set.rank().end());
  }
  struct SharedPiece {
    FilePiece piece;
    uint32_t reader;
    const std::vector<ReceiverGroup>* groups;
  };
  std::vector<SharedPiece> pieces;
  for (const ReadSegment& segment : share.segments()) {
    std::vector<ReceiverGroup>* groups = nullptr;
    if (segment.reader_size() > 0) {
      groups = groups_.emplace_back(std::make_unique<std::vector<ReceiverGroup>>()).get();
      TESSERA_RETURN_IF_ERROR(AddGroups(manifest, segment, *groups));
    }
    int next = 0;
    for (uint64_t at = segment.begin(); at < segment.end(); at += segment.piece_bytes(), ++next) {
      const FilePiece piece = {segment.file_index(), at,
                               std::min(segment.end(), at + segment.piece_bytes())};
      if (groups == nullptr) {
        largest_private_ = std::max(largest_private_, piece.size());
        private_.push_back(piece);
      } else if (next < segment.reader_size()) {
        pieces.push_back({piece, segment.reader(next), groups});
      } else {
        return absl::InternalError("a piece without a reader");
      }
    }
  }
  std::ranges::sort(pieces, {}, [](const SharedPiece& p) {
    return std::tuple(p.piece.begin, p.piece.file_index);
  });
  for (const SharedPiece& p : pieces) AddShared(p.piece, p.reader, *p.groups);
  return absl::OkStatus();
}

absl::Status SharedReader::AddGroups(const Manifest& manifest, const ReadSegment& segment,
                                     std::vector<ReceiverGroup>& groups) const {
  for (const Receivers& receivers : segment.receivers()) {
    const auto ranks = rank_sets_.find(receivers.rank_set());
    if (ranks == rank_sets_.end()) return absl::InternalError("an unknown set of ranks");
    ReceiverGroup& group = groups.emplace_back(ReceiverGroup{nullptr, nullptr, &ranks->second});
    if (!receivers.has_region()) continue;
    group.region = &receivers.region();
    TESSERA_ASSIGN_OR_RETURN(PackedRegion packed,
                             PackedRegion::Create(manifest, receivers.region()));
    group.packed = std::make_shared<const PackedRegion>(std::move(packed));
  }
  return absl::OkStatus();
}

void SharedReader::AddShared(const FilePiece& piece, uint32_t reader,
                             const std::vector<ReceiverGroup>& groups) {
  if (reader == rank_) {
    steps_.push_back({true, own_.size()});
    own_.push_back({piece, &groups});
    largest_own_ = std::max(largest_own_, piece.size());
    for (const ReceiverGroup& group : groups) packs_ |= group.packed != nullptr;
    return;
  }
  for (const ReceiverGroup& group : groups) {
    if (!std::ranges::binary_search(*group.ranks, rank_)) continue;
    if (group.packed != nullptr) {
      const uint64_t bytes = group.packed->BytesIn(piece);
      if (bytes > 0) AddIncoming({piece, reader, group.region, bytes, true});
      continue;
    }
    ForEachMessage(piece, [&](const FilePiece& part) {
      AddIncoming({part, reader, nullptr, part.size(), part.begin == piece.begin});
    });
  }
}

void SharedReader::AddIncoming(const Incoming& message) {
  steps_.push_back({false, incoming_.size()});
  incoming_.push_back(message);
  largest_incoming_ = std::max(largest_incoming_, message.bytes);
}

absl::Status SharedReader::AddBuffer(uint64_t bytes, std::vector<AlignedBuffer>& to) {
  TESSERA_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(bytes));
  buffer_bytes_ += buffer.capacity_bytes();
  to.push_back(std::move(buffer));
  return absl::OkStatus();
}

// Some buffers are for the exchange: messages arrive while the previous one is placed; one is for
// packing. The rest is for reading: each worker has one for pieces that only this rank needs, and
// two for pieces that others wait for, so that neither a slow read nor a slow rank delays all
// others at once.
absl::Status SharedReader::MakeBuffers(int io_threads, uint64_t staging_bytes) {
  const uint64_t receive_bytes = largest_incoming_ + kCopyRoomBytes;
  const uint64_t pack_bytes = packs_ ? largest_own_ + kReadRoomBytes : 0;
  const uint64_t piece_bytes = std::max(largest_private_, largest_own_ + kReadRoomBytes);
  const auto rest = [&](uint64_t receive) {
    const uint64_t used = receive * receive_bytes + pack_bytes;
    return (staging_bytes - std::min(staging_bytes, used)) / (piece_bytes + kIoAlignmentBytes);
  };
  const size_t receive = rest(kReceives) >= 3 ? kReceives : 1;
  const uint64_t pieces = rest(receive);
  workers_ = static_cast<int>(std::clamp<uint64_t>(pieces / 2, 1, std::max(io_threads, 1)));
  const uint64_t alone = private_.empty() ? 0 : workers_;
  const uint64_t left = std::max<uint64_t>(pieces - std::min(pieces, alone), 2);
  const size_t own = std::min<size_t>(own_.size(), std::min<uint64_t>(left, 2 * workers_));
  for (size_t i = 0; i < own; ++i) {
    TESSERA_RETURN_IF_ERROR(AddBuffer(largest_own_ + kReadRoomBytes, own_buffers_));
  }
  for (size_t i = 0; i < std::min<size_t>(incoming_.size(), receive); ++i) {
    TESSERA_RETURN_IF_ERROR(AddBuffer(receive_bytes, receive_buffers_));
  }
  if (packs_) TESSERA_RETURN_IF_ERROR(AddBuffer(pack_bytes, pack_buffer_));
  for (size_t i = 0; i < alone; ++i) {
    TESSERA_RETURN_IF_ERROR(AddBuffer(largest_private_, private_buffers_));
  }
  return absl::OkStatus();
}

// One run: the reading threads and the caller's thread, which exchanges messages.
class SharedReader::Session {
 public:
  Session(SharedReader& reader, ProcessGroup& group, absl::Duration deadline)
      : r_(reader), group_(group), deadline_(deadline), done_(reader.own_.size()) {}

  absl::Status Run() {
    std::vector<std::thread> threads = StartThreads(r_.workers_, [this](int w) { Work(w); });
    alone_ = threads.empty();
    const absl::Status exchanged = Exchange();
    {
      const MutexLock lock(&mutex_);
      if (!exchanged.ok()) stop_ = true;
      released_ = r_.own_.size();
    }
    changed_.NotifyAll();
    if (alone_) Work(0);
    for (std::thread& thread : threads) thread.join();
    sends_.clear();
    posted_.clear();
    const MutexLock lock(&mutex_);
    TESSERA_RETURN_IF_ERROR(error_);
    return exchanged;
  }

 private:
  enum class Done : uint8_t { kNot, kGood, kFailed };
  struct Task {
    bool own;
    size_t index;
  };

  // Pieces that others wait for come first; pieces that only this rank needs are read while no
  // buffer for a shared one is free.
  std::optional<Task> NextTask() {
    MutexLock lock(&mutex_);
    while (true) {
      if (stop_) return std::nullopt;
      const bool own_left = next_own_ < r_.own_.size();
      if (own_left && next_own_ < released_ + r_.own_buffers_.size())
        return Task{true, next_own_++};
      if (error_.ok() && next_private_ < r_.private_.size()) return Task{false, next_private_++};
      if (!own_left) return std::nullopt;
      changed_.Wait(&mutex_);
    }
  }

  void Work(int worker) {
    while (const std::optional<Task> task = NextTask()) DoTask(worker, *task);
  }

  void DoTask(int worker, const Task& task) {
    const FilePiece& piece = task.own ? r_.own_[task.index].piece : r_.private_[task.index];
    std::byte* const buffer = task.own ? OwnBuffer(task.index) : r_.private_buffers_[worker].data();
    absl::Status status =
        HasFailed() ? absl::CancelledError("after another error")
                    : r_.scanner_.ReadPiece(piece, buffer, worker, r_.placer_.AsCallback());
    const MutexLock lock(&mutex_);
    if (status.ok()) r_.counters_.bytes_read += piece.size();
    if (task.own) done_[task.index] = status.ok() ? Done::kGood : Done::kFailed;
    if (error_.ok()) error_ = std::move(status);
    changed_.NotifyAll();
  }

  bool HasFailed() {
    const MutexLock lock(&mutex_);
    return !error_.ok();
  }

  std::byte* OwnBuffer(size_t index) {
    return r_.own_buffers_[index % r_.own_buffers_.size()].data() + kReadRoomBytes;
  }

  absl::Status Exchange() {
    for (const Step& step : r_.steps_) {
      TESSERA_RETURN_IF_ERROR(PostReceives());
      TESSERA_RETURN_IF_ERROR(step.own ? SendPiece(step.index) : ReceivePiece(step.index));
    }
    return FinishSends();
  }

  absl::Status PostReceives() {
    while (posted_.size() < r_.receive_buffers_.size() && next_posted_ < r_.incoming_.size()) {
      const Incoming& message = r_.incoming_[next_posted_];
      std::byte* const to = ReceiveBuffer(next_posted_++);
      const uint64_t mark_bytes = message.marked ? kMarkBytes : 0;
      posted_.push_back(group_.StartReceive({to - mark_bytes, message.bytes + mark_bytes},
                                            static_cast<int>(message.source)));
    }
    return absl::OkStatus();
  }

  std::byte* ReceiveBuffer(size_t index) {
    return r_.receive_buffers_[index % r_.receive_buffers_.size()].data() + kCopyRoomBytes;
  }

  absl::Status ReceivePiece(size_t index) {
    const Incoming& message = r_.incoming_[index];
    TESSERA_RETURN_IF_ERROR(posted_.front()->Wait(deadline_));
    posted_.pop_front();
    const std::byte* const data = ReceiveBuffer(index);
    if (message.marked) incoming_good_ = data[-static_cast<ptrdiff_t>(kMarkBytes)] == kGood;
    if (!incoming_good_) return absl::OkStatus();  // the sender reports the reason
    if (message.region == nullptr) {
      r_.placer_.Place(message.piece, data);
    } else {
      r_.placer_.PlaceRegion(message.piece, *message.region, data);
    }
    r_.counters_.bytes_received += message.bytes;
    return absl::OkStatus();
  }

  absl::Status SendPiece(size_t index) {
    // Earlier messages have been received long ago, or are about to be: ranks process the pieces in
    // one order.
    TESSERA_RETURN_IF_ERROR(FinishSends());
    const bool good = WaitForOwn(index);
    const OwnPiece& own = r_.own_[index];
    std::byte* const data = OwnBuffer(index);
    data[-static_cast<ptrdiff_t>(kMarkBytes)] = good ? kGood : kFailed;
    for (const ReceiverGroup& group : *own.groups) {
      if (group.packed != nullptr) {
        TESSERA_RETURN_IF_ERROR(SendPacked(group, own.piece, data, good));
        continue;
      }
      ForEachMessage(own.piece, [&](const FilePiece& part) {
        Send(group, data + (part.begin - own.piece.begin), part.size(),
             part.begin == own.piece.begin);
      });
    }
    return absl::OkStatus();
  }

  // Returns whether the piece was read successfully. The buffers of this piece and of later ones
  // are free before.
  bool WaitForOwn(size_t index) {
    MutexLock lock(&mutex_);
    released_ = index;
    changed_.NotifyAll();
    while (done_[index] == Done::kNot) {
      if (!alone_) {
        changed_.Wait(&mutex_);
        continue;
      }
      lock.Unlock();
      if (const std::optional<Task> task = NextTask()) DoTask(0, *task);
      lock.Lock();
    }
    return done_[index] == Done::kGood;
  }

  absl::Status SendPacked(const ReceiverGroup& group, const FilePiece& piece, const std::byte* data,
                          bool good) {
    const uint64_t bytes = group.packed->BytesIn(piece);
    if (bytes == 0 || (group.ranks->size() == 1 && (*group.ranks)[0] == r_.rank_)) {
      return absl::OkStatus();
    }
    if (pack_used_ + kCopyRoomBytes + bytes > r_.pack_buffer_[0].size_bytes()) {
      TESSERA_RETURN_IF_ERROR(FinishSends());
    }
    std::byte* const packed = r_.pack_buffer_[0].data() + pack_used_ + kCopyRoomBytes;
    pack_used_ += kCopyRoomBytes + RoundUp(bytes, kCopyRoomBytes);
    packed[-static_cast<ptrdiff_t>(kMarkBytes)] = good ? kGood : kFailed;
    if (good) group.packed->Pack(piece, data, packed);
    Send(group, packed, bytes, true);
    return absl::OkStatus();
  }

  void Send(const ReceiverGroup& group, const std::byte* data, uint64_t bytes, bool marked) {
    const uint64_t mark_bytes = marked ? kMarkBytes : 0;
    for (const uint32_t rank : *group.ranks) {
      if (rank == r_.rank_) continue;
      sends_.push_back(
          group_.StartSend({data - mark_bytes, bytes + mark_bytes}, static_cast<int>(rank)));
      r_.counters_.bytes_sent += bytes;
    }
  }

  absl::Status FinishSends() {
    for (const auto& send : sends_) TESSERA_RETURN_IF_ERROR(send->Wait(deadline_));
    sends_.clear();
    pack_used_ = 0;
    return absl::OkStatus();
  }

  SharedReader& r_;
  ProcessGroup& group_;
  const absl::Duration deadline_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<Done> done_ ABSL_GUARDED_BY(mutex_);  // by own piece
  size_t next_own_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t next_private_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t released_ ABSL_GUARDED_BY(mutex_) = 0;  // own pieces whose buffers are free again
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);

  // Used by the exchanging thread only.
  bool alone_ = false;  // there is no reading thread: this one reads, too
  std::vector<std::unique_ptr<PendingMessage>> sends_;
  std::deque<std::unique_ptr<PendingMessage>> posted_;
  size_t next_posted_ = 0;
  bool incoming_good_ = false;  // the piece being received
  uint64_t pack_used_ = 0;
};

absl::Status SharedReader::Run(ProcessGroup& group, absl::Duration deadline) {
  return Session(*this, group, deadline).Run();
}

}  // namespace tessera::ckpt
