#include "checkpoint/load/shared_reader.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/checked_math.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/load/host_memory.h"
#include "checkpoint/load/piece_reads.h"
#include "checkpoint/load/read_schedule.h"
#include "storage/aligned_buffer.h"

namespace tessera::ckpt {
namespace {

// The mark before the contents of a piece: whether they are valid.
constexpr std::byte kGood{0};
constexpr std::byte kFailed{1};
constexpr uint64_t kMarkBytes = 1;

// Exchanges the pieces that PieceReads reads. Used by one thread.
class SharedReader {
 public:
  SharedReader(const Scanner& scanner, const Placer& placer, ProcessGroup& group,
               const LoadOptions& options, LoadReport& report)
      : placer_(placer),
        group_(group),
        rank_(group.rank()),
        timeout_(options.timeout),
        report_(report),
        reads_(scanner, placer, schedule_, report) {}

  // Derives this rank's work from its share, and allocates the buffers: at most staging_bytes, but
  // at least seven pieces. Does not communicate.
  absl::Status Prepare(const Manifest& manifest, const ReadShare& share,
                       const LoadOptions& options) {
    TESSERA_ASSIGN_OR_RETURN(schedule_, ReadSchedule::Create(manifest, share, rank_));
    const ReadSchedule::BufferCounts counts =
        schedule_.CountBuffers(options.io_threads, options.staging_bytes);
    TESSERA_RETURN_IF_ERROR(reads_.MakeBuffers(counts));
    for (size_t i = 0; i < counts.receive; ++i) {
      TESSERA_RETURN_IF_ERROR(AddBuffer(schedule_.receive_bytes(), report_, receive_buffers_));
    }
    if (!schedule_.packs) return absl::OkStatus();
    return AddBuffer(schedule_.pack_bytes(), report_, pack_buffer_);
  }

  std::string OfferMemory() const {
    return HostMemory::OfferOf(reads_.shared_memory()).SerializeAsString();
  }

  // Maps the memory of other ranks on the same host, learns which ranks have mapped this one's, and
  // agrees that all ranks are ready. `offer`: OfferMemory(), or the error of a rank that is not.
  absl::Status ShareMemory(const absl::StatusOr<std::string>& offer) {
    TESSERA_ASSIGN_OR_RETURN(const std::string offers,
                             AgreeEach(group_, offer, OffersByHost, timeout_));
    const auto mapped = CatchExceptions(kReadingForOthers, [&] { return MapMemory(offers); });
    TESSERA_ASSIGN_OR_RETURN(const std::string mappers,
                             AgreeEach(group_, mapped, WhoMapped, timeout_));
    TESSERA_ASSIGN_OR_RETURN(const auto parsed, AnswerFrom<RankSet>(group_, mappers));
    schedule_.SetMappings({parsed.rank().begin(), parsed.rank().end()},
                          [&](uint32_t reader) { return mapped_.contains(reader); });
    return absl::OkStatus();
  }

  // Reads, sends and places all pieces, and agrees that all ranks have. The caller's thread
  // exchanges messages. Errors: failed reads of any rank, and those of the group.
  absl::Status Run() {
    reads_.Start();
    const absl::Status exchanged =
        CatchExceptions(kReadingForOthers, [this] { return Exchange(); });
    absl::Status status = reads_.Finish(/*stop=*/!exchanged.ok());
    sends_.clear();
    answers_.clear();
    pending_.clear();
    status.Update(exchanged);
    if (status.ok()) status = placer_.Finish();
    absl::Status agreed = AgreeOnStatus(group_, status, timeout_);
    // Messages that this rank has not taken may still arrive: no later load may take them.
    if (!exchanged.ok()) AbandonGroup(group_, exchanged).IgnoreError();
    return agreed;
  }

 private:
  using ReceiverGroup = ReadSchedule::ReceiverGroup;
  using OwnPiece = ReadSchedule::OwnPiece;
  using Incoming = ReadSchedule::Incoming;
  using Carries = ReadSchedule::Carries;

  using Notice = std::array<std::byte, kMarkBytes + sizeof(uint64_t)>;

  absl::StatusOr<std::string> MapMemory(const std::string& offers) {
    TESSERA_ASSIGN_OR_RETURN(
        mapped_, MapOffers(offers, [this](uint32_t rank) { return schedule_.Needs(rank); }));
    RankSet owners;
    for (const auto& [rank, memory] : mapped_) owners.add_rank(rank);
    return owners.SerializeAsString();
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

  // Posts the receives of a step, up to `end`, and some of later steps.
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

  // Awaits the messages of one rank in their order, so answers earlier than needed: a group may
  // match messages at the time of the wait.
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
    reads_.Try([&] {
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
      reads_.Try([&] { return placer_.Place(message.piece, memory.data() + offset); });
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

  // Waits until all ranks that map own pieces below `end` have placed them.
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
    // Ranks process the pieces in one order, so the receivers of earlier messages are done, or soon
    // will be. Half of the buffers may hold pieces that other ranks are placing.
    TESSERA_RETURN_IF_ERROR(FinishSends());
    const size_t elsewhere = std::max<size_t>(reads_.ring_size() / 2, 1) - 1;
    TESSERA_RETURN_IF_ERROR(
        AwaitAnswers(schedule_.mappers.empty() ? index : index - std::min(index, elsewhere)));
    // The buffers of pieces that are placed wherever they are wanted are free.
    const bool good = reads_.WaitFor(index, placed_);
    const OwnPiece& own = schedule_.own[index];
    std::byte* const data = reads_.OwnBuffer(index);
    data[-static_cast<ptrdiff_t>(kMarkBytes)] = good ? kGood : kFailed;
    if (!own.mapped_by.empty()) {
      const uint64_t offset = data - reads_.shared_memory()->data();
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

  const Placer& placer_;
  ProcessGroup& group_;
  const uint32_t rank_;
  const absl::Duration timeout_;
  LoadReport& report_;  // what is received and sent, and the size of the buffers

  ReadSchedule schedule_;
  PieceReads reads_;
  std::map<uint32_t, HostMemory> mapped_;  // by the rank that reads into it
  std::vector<AlignedBuffer> receive_buffers_;
  std::vector<AlignedBuffer> pack_buffer_;  // one or none

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

// Opens files that this rank reads only for other ranks.
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
  TESSERA_RETURN_IF_ERROR(reader.ShareMemory(CatchExceptions(kReadingForOthers, prepare)));
  return reader.Run();
}

}  // namespace tessera::ckpt
