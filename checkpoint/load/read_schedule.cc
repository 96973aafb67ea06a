#include "checkpoint/load/read_schedule.h"

#include <tuple>

#include "base/status_macros.h"

namespace tessera::ckpt {
namespace {

using ReceiverGroup = ReadSchedule::ReceiverGroup;

// Returns the bytes of a piece that a rank receives.
uint64_t BytesFor(uint32_t rank, const FilePiece& piece, const std::vector<ReceiverGroup>& groups) {
  uint64_t bytes = 0;
  for (const ReceiverGroup& group : groups) {
    if (!std::ranges::binary_search(*group.ranks, rank)) continue;
    bytes += group.packed != nullptr ? group.packed->BytesIn(piece) : piece.size();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<ReadSchedule> ReadSchedule::Create(const Manifest& manifest, const ReadShare& share,
                                                  uint32_t rank) {
  ReadSchedule schedule;
  schedule.rank_ = rank;
  for (const RankSet& set : share.rank_sets()) {
    schedule.rank_sets_[set.id()].assign(set.rank().begin(), set.rank().end());
  }
  for (const ReadSegment& segment : share.segments()) {
    TESSERA_RETURN_IF_ERROR(schedule.AddSegment(manifest, segment));
  }
  std::ranges::sort(schedule.shared_, {}, [](const SharedPiece& shared) {
    return std::tuple(shared.piece.begin, shared.piece.file_index);
  });
  for (const SharedPiece& shared : schedule.shared_) {
    if (shared.reader != rank) continue;
    schedule.own.push_back({shared.piece, shared.groups, {}});
    schedule.largest_own = std::max(schedule.largest_own, shared.piece.size());
    for (const ReceiverGroup& group : *shared.groups) schedule.packs |= group.packed != nullptr;
  }
  schedule.SetMappings({}, [](uint32_t) { return false; });
  return schedule;
}

absl::Status ReadSchedule::AddSegment(const Manifest& manifest, const ReadSegment& segment) {
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
      largest_private = std::max(largest_private, piece.size());
      private_pieces.push_back(piece);
    } else if (next < segment.reader_size()) {
      shared_.push_back({piece, segment.reader(next), groups});
    } else {
      return absl::InternalError("a piece without a reader");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadSchedule::AddGroups(const Manifest& manifest, const ReadSegment& segment,
                                     std::vector<ReceiverGroup>& groups) const {
  for (const Receivers& receivers : segment.receivers()) {
    const auto ranks = rank_sets_.find(receivers.rank_set());
    if (ranks == rank_sets_.end()) return absl::InternalError("an unknown set of ranks");
    ReceiverGroup& group = groups.emplace_back(ReceiverGroup{.ranks = &ranks->second});
    if (!receivers.has_region()) continue;
    group.region = &receivers.region();
    TESSERA_ASSIGN_OR_RETURN(PackedRegion packed,
                             PackedRegion::Create(manifest, receivers.region()));
    group.packed = std::make_shared<const PackedRegion>(std::move(packed));
  }
  return absl::OkStatus();
}

void ReadSchedule::SetMappings(std::vector<uint32_t> by,
                               const std::function<bool(uint32_t)>& maps) {
  mappers = std::move(by);
  steps.clear();
  incoming.clear();
  for (OwnPiece& piece : own) piece.mapped_by.clear();
  size_t next_own = 0;
  for (const SharedPiece& shared : shared_) AddShared(shared, maps, next_own);
}

bool ReadSchedule::Needs(uint32_t reader) const {
  return std::ranges::any_of(shared_, [&](const SharedPiece& shared) {
    return shared.reader == reader && BytesFor(rank_, shared.piece, *shared.groups) > 0;
  });
}

ReadSchedule::BufferCounts ReadSchedule::CountBuffers(int io_threads,
                                                      uint64_t staging_bytes) const {
  // The next message arrives while one is placed, unless fewer than three pieces would have
  // buffers.
  constexpr uint64_t kReceives = 3;
  const uint64_t piece_bytes =
      std::max(largest_private, largest_own + kReadRoomBytes) + kIoAlignmentBytes;
  const auto pieces_beside = [&](uint64_t receives) {
    const uint64_t used = receives * receive_bytes() + pack_bytes();
    return (staging_bytes - std::min(staging_bytes, used)) / piece_bytes;
  };
  const uint64_t receives = pieces_beside(kReceives) >= 3 ? kReceives : 1;
  const uint64_t pieces = pieces_beside(receives);
  // A worker reads one piece while it places another.
  const uint64_t workers = std::clamp<uint64_t>(pieces / 2, 1, std::max(io_threads, 1));
  const uint64_t most = kPiecesPerWorker * workers;
  // Pieces that others wait for come first, but each worker keeps a buffer for pieces that only
  // this rank needs, so that neither a slow read nor a slow rank delays all others at once.
  const uint64_t least_private = private_pieces.empty() ? 0 : workers;
  const uint64_t beside_private = pieces - std::min(pieces, least_private);
  const uint64_t own_count =
      std::min<uint64_t>(own.size(), std::clamp<uint64_t>(beside_private, 2, most));
  const uint64_t beside_own = pieces - std::min(pieces, own_count);
  const uint64_t private_count = std::clamp(beside_own, least_private, most);
  return {.workers = static_cast<int>(workers),
          .own = own_count,
          .private_pieces = std::min<uint64_t>(private_pieces.size(), private_count),
          .receive = std::min<uint64_t>(incoming.size(), receives)};
}

void ReadSchedule::AddShared(const SharedPiece& shared, const std::function<bool(uint32_t)>& maps,
                             size_t& next_own) {
  const FilePiece& piece = shared.piece;
  const uint32_t reader = shared.reader;
  if (reader == rank_) {
    OwnPiece& mine = own[next_own];
    steps.push_back({true, next_own++});
    mine.first_answer = incoming.size();
    for (const uint32_t rank : mappers) {
      const uint64_t bytes = BytesFor(rank, piece, *shared.groups);
      if (bytes == 0) continue;
      mine.mapped_by.push_back({rank, bytes});
      incoming.push_back({.piece = piece, .source = rank, .carries = Carries::kAnswer});
    }
    return;
  }
  if (maps(reader)) {
    const uint64_t bytes = BytesFor(rank_, piece, *shared.groups);
    if (bytes == 0) return;
    AddIncoming({.piece = piece,
                 .source = reader,
                 .bytes = bytes,
                 .marked = true,
                 .carries = Carries::kOffset});
    return;
  }
  for (const ReceiverGroup& group : *shared.groups) {
    if (!std::ranges::binary_search(*group.ranks, rank_)) continue;
    if (group.packed != nullptr) {
      const uint64_t bytes = group.packed->BytesIn(piece);
      if (bytes == 0) continue;
      AddIncoming({.piece = piece,
                   .source = reader,
                   .region = group.region,
                   .bytes = bytes,
                   .marked = true});
      continue;
    }
    ForEachMessage(piece, [&](const FilePiece& part) {
      AddIncoming({.piece = part,
                   .source = reader,
                   .bytes = part.size(),
                   .marked = part.begin == piece.begin});
    });
  }
}

void ReadSchedule::AddIncoming(const Incoming& message) {
  steps.push_back({false, incoming.size()});
  incoming.push_back(message);
  if (message.carries == Carries::kContents) {
    largest_incoming = std::max(largest_incoming, message.bytes);
  }
}

}  // namespace tessera::ckpt
