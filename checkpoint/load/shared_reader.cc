#include "checkpoint/load/shared_reader.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/checked_math.h"
#include "base/mutex.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/load/host_memory.h"
#include "checkpoint/load/read_schedule.h"
#include "storage/aligned_buffer.h"

namespace tessera::ckpt {
namespace {

// The mark before the contents of a piece: whether they are valid.
constexpr std::byte kGood{0};
constexpr std::byte kFailed{1};
constexpr uint64_t kMarkBytes = 1;
constexpr char kReading[] = "read for other ranks";

class SharedReader {
 public:
  SharedReader(const Scanner& scanner, const Placer& placer, ProcessGroup& group,
               const LoadOptions& options, LoadReport& report)
      : scanner_(scanner),
        placer_(placer),
        group_(group),
        rank_(group.rank()),
        timeout_(options.timeout),
        report_(report) {}

  // Derives this rank's work from its share, and allocates the buffers: at most staging_bytes, but
  // at least seven pieces. Does not communicate.
  absl::Status Prepare(const Manifest& manifest, const ReadShare& share,
                       const LoadOptions& options) {
    TESSERA_ASSIGN_OR_RETURN(schedule_, ReadSchedule::Create(manifest, share, rank_));
    TESSERA_RETURN_IF_ERROR(MakeBuffers(options.io_threads, options.staging_bytes));
    const MutexLock lock(&mutex_);
    done_.resize(schedule_.own.size());
    for (AlignedBuffer& buffer : private_buffers_) free_private_.push_back(buffer.data());
    return absl::OkStatus();
  }

  std::string OfferMemory() const { return HostMemory::OfferOf(host_memory_).SerializeAsString(); }

  // Arranges with the ranks of the same host whose memory is mapped by whom, and agrees that all
  // ranks are ready. `offer`: OfferMemory(), or the error of a rank that is not.
  absl::Status ShareMemory(const absl::StatusOr<std::string>& offer) {
    TESSERA_ASSIGN_OR_RETURN(const std::string offers,
                             AgreeEach(group_, offer, OffersByHost, timeout_));
    const auto mapped = CatchNoMemory(kReading, [&] { return MapMemory(offers); });
    TESSERA_ASSIGN_OR_RETURN(const std::string mappers,
                             AgreeEach(group_, mapped, WhoMapped, timeout_));
    RankSet parsed;
    if (!parsed.ParseFromString(mappers)) return absl::InternalError("rank 0 sent a bad set");
    schedule_.SetMappings({parsed.rank().begin(), parsed.rank().end()},
                          [&](uint32_t reader) { return mapped_.contains(reader); });
    return absl::OkStatus();
  }

  // Reads, sends and places all pieces: the reading threads, and the caller's thread, which
  // exchanges messages. Errors: failed reads of this rank; those of the group.
  absl::Status Run() {
    std::vector<std::thread> threads = StartThreads(workers_, [this](int w) { Work(w); });
    is_single_threaded_ = threads.empty();
    const absl::Status exchanged = CatchNoMemory(kReading, [this] { return Exchange(); });
    {
      const MutexLock lock(&mutex_);
      if (!exchanged.ok()) stop_ = true;
      released_ = schedule_.own.size();
    }
    changed_.NotifyAll();
    if (is_single_threaded_) Work(0);
    for (std::thread& thread : threads) thread.join();
    sends_.clear();
    answers_.clear();
    pending_.clear();
    const MutexLock lock(&mutex_);
    TESSERA_RETURN_IF_ERROR(error_);
    TESSERA_RETURN_IF_ERROR(exchanged);
    return placer_.Finish();
  }

 private:
  using ReceiverGroup = ReadSchedule::ReceiverGroup;
  using OwnPiece = ReadSchedule::OwnPiece;
  using Incoming = ReadSchedule::Incoming;
  using Carries = ReadSchedule::Carries;

  enum class Done : uint8_t { kNot, kGood, kFailed };
  using Notice = std::array<std::byte, kMarkBytes + sizeof(uint64_t)>;
  struct Task {
    bool own;
    size_t index;
    std::byte* buffer;
    bool is_read;  // false: after another error
    std::unique_ptr<PendingIo> read = nullptr;
  };

  absl::Status AddBuffer(uint64_t bytes, std::vector<AlignedBuffer>& to) {
    TESSERA_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(bytes));
    report_.buffer_bytes += buffer.capacity_bytes();
    to.push_back(std::move(buffer));
    return absl::OkStatus();
  }

  absl::Status MakeBuffers(int io_threads, uint64_t staging_bytes) {
    const ReadSchedule::BufferCounts counts = schedule_.CountBuffers(io_threads, staging_bytes);
    workers_ = counts.workers;
    TESSERA_RETURN_IF_ERROR(MakeOwnBuffers(counts.own));
    for (size_t i = 0; i < counts.receive; ++i) {
      TESSERA_RETURN_IF_ERROR(AddBuffer(schedule_.receive_bytes(), receive_buffers_));
    }
    if (schedule_.packs) TESSERA_RETURN_IF_ERROR(AddBuffer(schedule_.pack_bytes(), pack_buffer_));
    for (size_t i = 0; i < counts.private_pieces; ++i) {
      TESSERA_RETURN_IF_ERROR(AddBuffer(schedule_.largest_private, private_buffers_));
    }
    return absl::OkStatus();
  }

  absl::Status MakeOwnBuffers(size_t count) {
    const uint64_t stride =
        RoundUp<uint64_t>(schedule_.largest_own, kIoAlignmentBytes) + ReadSchedule::kReadRoomBytes;
    if (count == 0) return absl::OkStatus();
    absl::StatusOr<HostMemory> shared = HostMemory::Create(count * stride);
    if (shared.ok()) {
      host_memory_ = *std::move(shared);
      report_.buffer_bytes += host_memory_->size_bytes();
    } else {
      TESSERA_RETURN_IF_ERROR(AddBuffer(count * stride, own_memory_));
    }
    std::byte* const begin =
        host_memory_.has_value() ? host_memory_->data() : own_memory_[0].data();
    for (size_t i = 0; i < count; ++i) own_buffers_.push_back(begin + i * stride);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> MapMemory(const std::string& offers) {
    TESSERA_ASSIGN_OR_RETURN(
        mapped_, MapOffers(offers, [this](uint32_t rank) { return schedule_.Needs(rank); }));
    RankSet owners;
    for (const auto& [rank, memory] : mapped_) owners.add_rank(rank);
    return owners.SerializeAsString();
  }

  // Returns the next read to start. Pieces for which other ranks wait come first; a piece that only
  // this rank needs is read while no buffer is free for a shared one. Returns nullopt if nothing is
  // left and, unless `may_wait`, if no buffer is free.
  std::optional<Task> NextTask(bool may_wait) {
    MutexLock lock(&mutex_);
    while (true) {
      if (stop_) return std::nullopt;
      const bool own_left = next_own_ < schedule_.own.size();
      if (own_left && next_own_ < released_ + own_buffers_.size()) {
        const size_t index = next_own_++;
        return Task{true, index, OwnBuffer(index), error_.ok()};
      }
      const bool private_left = error_.ok() && next_private_ < schedule_.private_pieces.size();
      if (private_left && !free_private_.empty()) {
        std::byte* const buffer = free_private_.back();
        free_private_.pop_back();
        return Task{false, next_private_++, buffer, true};
      }
      if (!may_wait || (!own_left && !private_left)) return std::nullopt;
      changed_.Wait(&mutex_);
    }
  }

  void Work(int worker) {
    std::optional<Task> now = StartNext(/*may_wait=*/true);
    while (now.has_value()) {
      const absl::Status read = Await(*now);
      std::optional<Task> then = StartNext(/*may_wait=*/false);
      Finish(worker, *now, read);
      now = then.has_value() ? std::move(then) : StartNext(/*may_wait=*/true);
    }
  }

  const FilePiece& PieceOf(const Task& task) const {
    return task.own ? schedule_.own[task.index].piece : schedule_.private_pieces[task.index];
  }

  std::optional<Task> StartNext(bool may_wait) {
    std::optional<Task> task = NextTask(may_wait);
    if (!task.has_value() || !task->is_read) return task;
    Try([&] {
      task->read = scanner_.StartPiece(PieceOf(*task), task->buffer);
      return absl::OkStatus();
    });
    return task;
  }

  static absl::Status Await(Task& task) {
    return CatchNoMemory(kReading, [&]() -> absl::Status {
      const std::unique_ptr<PendingIo> read = std::move(task.read);
      return read != nullptr ? read->Wait() : absl::CancelledError("after another error");
    });
  }

  void Finish(int worker, const Task& task, const absl::Status& read) {
    const FilePiece& piece = PieceOf(task);
    const absl::Status status = CatchNoMemory(kReading, [&] {
      return scanner_.FinishPiece(read, piece, task.buffer, worker, placer_.AsCallback());
    });
    const MutexLock lock(&mutex_);
    if (status.ok()) report_.bytes_read += piece.size();
    if (task.own) {
      done_[task.index] = status.ok() ? Done::kGood : Done::kFailed;
    } else {
      free_private_.push_back(task.buffer);
    }
    error_.Update(status);
    changed_.NotifyAll();
  }

  // Calls body(), and keeps its error. This rank continues to take part in the exchange.
  void Try(const auto& body) {
    const absl::Status status = CatchNoMemory(kReading, body);
    const MutexLock lock(&mutex_);
    error_.Update(status);
  }

  std::byte* OwnBuffer(size_t index) {
    return own_buffers_[index % own_buffers_.size()] + ReadSchedule::kReadRoomBytes;
  }

  absl::Status Exchange() {
    notices_.resize(schedule_.incoming.size());
    pending_.resize(schedule_.incoming.size());
    for (const ReadSchedule::Step& step : schedule_.steps) {
      const OwnPiece* const own = step.own ? &schedule_.own[step.index] : nullptr;
      PostReceives(own != nullptr ? own->first_answer + own->mapped_by.size() : step.index + 1);
      TESSERA_RETURN_IF_ERROR(own != nullptr ? SendPiece(step.index) : ReceivePiece(step.index));
    }
    TESSERA_RETURN_IF_ERROR(AwaitAnswers(schedule_.own.size()));
    while (!answers_.empty()) TESSERA_RETURN_IF_ERROR(FinishAnswer());
    return FinishSends();
  }

  // Posts what is received up to the end of a step, and ahead of that.
  void PostReceives(size_t end) {
    constexpr size_t kAhead = 16;
    const size_t last = std::min(end + kAhead, schedule_.incoming.size());
    for (; next_posted_ < last; ++next_posted_) {
      const Incoming& message = schedule_.incoming[next_posted_];
      std::span<std::byte> to = notices_[next_posted_];
      if (message.carries == Carries::kAnswer) to = to.first(kMarkBytes);
      if (message.carries == Carries::kContents) {
        if (contents_posted_ == contents_placed_ + receive_buffers_.size()) return;
        const uint64_t mark_bytes = message.marked ? kMarkBytes : 0;
        to = {ReceiveBuffer(contents_posted_++) - mark_bytes, message.bytes + mark_bytes};
      }
      pending_[next_posted_] = group_.StartReceive(to, static_cast<int>(message.source));
    }
  }

  std::byte* ReceiveBuffer(size_t index) {
    return receive_buffers_[index % receive_buffers_.size()].data() + ReadSchedule::kCopyRoomBytes;
  }

  // The messages of one rank are awaited in their order, answers earlier than needed: a group may
  // match them when they are awaited.
  absl::Status Await(size_t incoming) {
    while (next_awaited_ < next_posted_ && pending_[next_awaited_] == nullptr) ++next_awaited_;
    for (size_t i = next_awaited_; i <= incoming; ++i) {
      if (pending_[i] == nullptr ||
          schedule_.incoming[i].source != schedule_.incoming[incoming].source) {
        continue;
      }
      const std::unique_ptr<PendingMessage> message = std::move(pending_[i]);
      TESSERA_RETURN_IF_ERROR(message->Wait(timeout_));
    }
    return absl::OkStatus();
  }

  absl::Status ReceivePiece(size_t index) {
    const Incoming& message = schedule_.incoming[index];
    TESSERA_RETURN_IF_ERROR(Await(index));
    if (message.carries == Carries::kOffset) return PlaceMapped(message, notices_[index]);
    const std::byte* const data = ReceiveBuffer(contents_placed_++);
    if (message.marked) incoming_good_ = data[-static_cast<ptrdiff_t>(kMarkBytes)] == kGood;
    if (!incoming_good_) return absl::OkStatus();  // the sender reports the reason
    Try([&] {
      return message.region == nullptr ? placer_.Place(message.piece, data)
                                       : placer_.PlaceRegion(message.piece, *message.region, data);
    });
    report_.bytes_received += message.bytes;
    return absl::OkStatus();
  }

  absl::Status PlaceMapped(const Incoming& message, const Notice& notice) {
    const HostMemory& memory = mapped_.at(message.source);
    uint64_t offset = 0;
    std::memcpy(&offset, notice.data() + kMarkBytes, sizeof(offset));
    if (offset > memory.size_bytes() || message.piece.size() > memory.size_bytes() - offset) {
      return absl::InternalError("a piece outside of its reader's memory");
    }
    if (notice[0] == kGood) {
      Try([&] { return placer_.Place(message.piece, memory.data() + offset); });
      report_.bytes_received += message.bytes;
    }
    constexpr size_t kAnswersInFlight = 16;
    if (answers_.size() == kAnswersInFlight) TESSERA_RETURN_IF_ERROR(FinishAnswer());
    answers_.push_back(group_.StartSend({&kGood, kMarkBytes}, static_cast<int>(message.source)));
    return absl::OkStatus();
  }

  absl::Status FinishAnswer() {
    const std::unique_ptr<PendingMessage> answer = std::move(answers_.front());
    answers_.pop_front();
    return answer->Wait(timeout_);
  }

  // Waits until own pieces below `end` are placed by all ranks that map them.
  absl::Status AwaitAnswers(size_t end) {
    for (; placed_ < end; ++placed_) {
      const OwnPiece& own = schedule_.own[placed_];
      for (size_t i = 0; i < own.mapped_by.size(); ++i) {
        TESSERA_RETURN_IF_ERROR(Await(own.first_answer + i));
      }
    }
    return absl::OkStatus();
  }

  absl::Status SendPiece(size_t index) {
    // Earlier messages have been received long ago, or are about to be: ranks process the pieces in
    // one order. Half of the buffers may hold pieces that are being placed elsewhere.
    TESSERA_RETURN_IF_ERROR(FinishSends());
    const size_t elsewhere = std::max<size_t>(own_buffers_.size() / 2, 1) - 1;
    TESSERA_RETURN_IF_ERROR(
        AwaitAnswers(schedule_.mappers.empty() ? index : index - std::min(index, elsewhere)));
    const bool good = WaitForOwn(index);
    const OwnPiece& own = schedule_.own[index];
    std::byte* const data = OwnBuffer(index);
    data[-static_cast<ptrdiff_t>(kMarkBytes)] = good ? kGood : kFailed;
    if (!own.mapped_by.empty()) {
      const uint64_t offset = data - host_memory_->data();
      notice_[0] = good ? kGood : kFailed;
      std::memcpy(notice_.data() + kMarkBytes, &offset, sizeof(offset));
    }
    for (const auto& [rank, bytes] : own.mapped_by) {
      sends_.push_back(group_.StartSend(notice_, static_cast<int>(rank)));
      report_.bytes_sent += bytes;
    }
    for (const ReceiverGroup& group : *own.groups) {
      if (group.packed != nullptr) {
        TESSERA_RETURN_IF_ERROR(SendPacked(group, own.piece, data, good));
        continue;
      }
      ReadSchedule::ForEachMessage(own.piece, [&](const FilePiece& part) {
        Send(group, data + (part.begin - own.piece.begin), part.size(),
             part.begin == own.piece.begin);
      });
    }
    return absl::OkStatus();
  }

  // Returns whether the piece was read successfully. The buffers of pieces that are placed wherever
  // they are wanted are free before.
  bool WaitForOwn(size_t index) {
    MutexLock lock(&mutex_);
    released_ = placed_;
    changed_.NotifyAll();
    while (done_[index] == Done::kNot) {
      if (!is_single_threaded_) {
        changed_.Wait(&mutex_);
        continue;
      }
      lock.Unlock();
      if (std::optional<Task> task = StartNext(/*may_wait=*/true)) Finish(0, *task, Await(*task));
      lock.Lock();
    }
    return done_[index] == Done::kGood;
  }

  absl::Status SendPacked(const ReceiverGroup& group, const FilePiece& piece, const std::byte* data,
                          bool good) {
    const uint64_t bytes = group.packed->BytesIn(piece);
    const auto needs_no_message = [&](uint32_t rank) {
      return rank == rank_ || schedule_.IsMapper(rank);
    };
    if (bytes == 0 || std::ranges::all_of(*group.ranks, needs_no_message)) return absl::OkStatus();
    if (pack_used_ + ReadSchedule::kCopyRoomBytes + bytes > pack_buffer_[0].size_bytes()) {
      TESSERA_RETURN_IF_ERROR(FinishSends());
    }
    std::byte* const packed = pack_buffer_[0].data() + pack_used_ + ReadSchedule::kCopyRoomBytes;
    pack_used_ += ReadSchedule::kCopyRoomBytes + RoundUp(bytes, ReadSchedule::kCopyRoomBytes);
    packed[-static_cast<ptrdiff_t>(kMarkBytes)] = good ? kGood : kFailed;
    if (good) group.packed->Pack(piece, data, packed);
    Send(group, packed, bytes, true);
    return absl::OkStatus();
  }

  void Send(const ReceiverGroup& group, const std::byte* data, uint64_t bytes, bool marked) {
    const uint64_t mark_bytes = marked ? kMarkBytes : 0;
    for (const uint32_t rank : *group.ranks) {
      if (rank == rank_ || schedule_.IsMapper(rank)) continue;
      sends_.push_back(
          group_.StartSend({data - mark_bytes, bytes + mark_bytes}, static_cast<int>(rank)));
      report_.bytes_sent += bytes;
    }
  }

  absl::Status FinishSends() {
    for (const auto& send : sends_) TESSERA_RETURN_IF_ERROR(send->Wait(timeout_));
    sends_.clear();
    pack_used_ = 0;
    return absl::OkStatus();
  }

  const Scanner& scanner_;
  const Placer& placer_;
  ProcessGroup& group_;
  const uint32_t rank_;
  const absl::Duration timeout_;
  LoadReport& report_;  // what is read, received and sent, and the size of the buffers

  ReadSchedule schedule_;
  int workers_ = 1;
  std::vector<AlignedBuffer> private_buffers_;  // of whichever worker takes them
  // Buffers of own pieces: piece i is in buffer i modulo their number, after kReadRoomBytes. If
  // other processes can map the buffers, they are parts of one memory.
  std::vector<std::byte*> own_buffers_;
  std::optional<HostMemory> host_memory_;
  std::vector<AlignedBuffer> own_memory_;
  std::map<uint32_t, HostMemory> mapped_;  // by the rank that reads into it
  std::vector<AlignedBuffer> receive_buffers_;
  std::vector<AlignedBuffer> pack_buffer_;  // one or none

  Mutex mutex_;
  CondVar changed_;
  std::vector<Done> done_ ABSL_GUARDED_BY(mutex_);  // by own piece
  size_t next_own_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t next_private_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::byte*> free_private_ ABSL_GUARDED_BY(mutex_);
  size_t released_ ABSL_GUARDED_BY(mutex_) = 0;  // own pieces whose buffers are free again
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);

  // Used by the exchanging thread only.
  bool is_single_threaded_ = false;  // there is no reading thread: this one reads, too
  std::vector<std::unique_ptr<PendingMessage>> sends_;
  Notice notice_ = {};
  std::deque<std::unique_ptr<PendingMessage>> answers_;   // that this rank sends
  std::vector<Notice> notices_;                           // by incoming message
  std::vector<std::unique_ptr<PendingMessage>> pending_;  // by incoming message, where posted
  size_t next_posted_ = 0;
  size_t next_awaited_ = 0;  // all before it have arrived
  size_t contents_posted_ = 0, contents_placed_ = 0;
  size_t placed_ = 0;           // own pieces that are placed wherever they are wanted
  bool incoming_good_ = false;  // the piece being received
  uint64_t pack_used_ = 0;
};

// Opens the files of which this rank reads parts for others alone.
absl::Status OpenForOthers(const ReadShare& share, uint32_t rank, Scanner& scanner) {
  std::set<uint32_t> files;
  for (const ReadSegment& segment : share.segments()) {
    const bool reads = std::ranges::count(segment.reader(), rank) > 0;
    if (reads && scanner.file(segment.file_index()) == nullptr) files.insert(segment.file_index());
  }
  return scanner.Open(std::vector<uint32_t>(files.begin(), files.end()));
}

}  // namespace

absl::Status ReadTogether(const Manifest& manifest, Scanner& scanner, const Placer& placer,
                          const ReadShare& share, ProcessGroup& group, const LoadOptions& options,
                          LoadReport& report) {
  SharedReader reader(scanner, placer, group, options, report);
  const auto prepare = [&]() -> absl::StatusOr<std::string> {
    TESSERA_RETURN_IF_ERROR(OpenForOthers(share, group.rank(), scanner));
    TESSERA_RETURN_IF_ERROR(reader.Prepare(manifest, share, options));
    return reader.OfferMemory();
  };
  TESSERA_RETURN_IF_ERROR(reader.ShareMemory(CatchNoMemory(kReading, prepare)));
  return AgreeOnStatus(group, reader.Run(), options.timeout);
}

}  // namespace tessera::ckpt
