#ifndef TESSERA_CHECKPOINT_LOAD_READ_SCHEDULE_H_
#define TESSERA_CHECKPOINT_LOAD_READ_SCHEDULE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/load/placer.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/scan/scan.h"

namespace tessera::ckpt {

// What one rank does in a shared read (see shared_reader.h), and in which order. Pure: neither
// reads nor communicates.
struct ReadSchedule {
  // The size of one message: received data is still in the second-level cache when it is placed. No
  // element crosses a boundary.
  static constexpr uint64_t kMessageBytes = uint64_t{512} << 10;

  // Space for the mark in front of the contents. Copied contents begin at a cache line, contents
  // from the disk at a page.
  static constexpr uint64_t kCopyRoomBytes = 64;
  static constexpr uint64_t kReadRoomBytes = kIoAlignmentBytes;

  // The receivers of one part of a piece.
  struct ReceiverGroup {
    const ShardRegion* region = nullptr;                   // null: the whole piece
    std::shared_ptr<const PackedRegion> packed = nullptr;  // of the region
    const std::vector<uint32_t>* ranks;                    // ascending
  };
  // A piece that this rank reads and others need, too.
  struct OwnPiece {
    FilePiece piece;
    const std::vector<ReceiverGroup>* groups;
    // Ranks that place the piece from this rank's memory, and the bytes that each needs.
    std::vector<std::pair<uint32_t, uint64_t>> mapped_by;
    size_t first_answer = 0;  // of these ranks, into `incoming`
  };
  enum class Carries : uint8_t {
    kContents,  // of a piece, or of a part of it
    kOffset,    // the mark, and the offset of the piece in its reader's memory
    kAnswer,    // nothing: the piece was placed
  };
  // A message that this rank receives.
  struct Incoming {
    FilePiece piece;  // the piece that the message is part of
    uint32_t source;
    const ShardRegion* region = nullptr;  // null: the whole piece
    uint64_t bytes = 0;                   // without the mark
    bool marked = false;
    Carries carries = Carries::kContents;
  };
  // A step in the processing of all pieces.
  struct Step {
    bool own;      // a piece that this rank reads; else a message from another
    size_t index;  // in `own` or `incoming`
  };

  // The number of reading threads, and of buffers of each kind.
  struct BufferCounts {
    int workers = 1;
    size_t own = 0, private_pieces = 0;  // of a piece each
    size_t receive = 0;                  // of a message with contents each
  };

  // Derives the schedule of a rank that maps no memory. `manifest` and `share` must outlive it.
  // Internal for a share that contradicts itself.
  static absl::StatusOr<ReadSchedule> Create(const Manifest& manifest, const ReadShare& share,
                                             uint32_t rank);

  // Drops the contents from messages between ranks that share memory. The ranks `by` have mapped
  // the memory into which this rank reads; maps(r) tells whether this rank has mapped rank r's.
  void SetMappings(std::vector<uint32_t> by, const std::function<bool(uint32_t)>& maps);

  // Returns whether this rank needs a piece that the other one reads.
  bool Needs(uint32_t reader) const;
  // Returns whether a rank has mapped the memory of this one.
  bool IsMapper(uint32_t rank) const { return std::ranges::binary_search(mappers, rank); }

  // Returns counts whose buffers have `staging_bytes` together, but at least seven pieces.
  BufferCounts CountBuffers(int io_threads, uint64_t staging_bytes) const;
  uint64_t receive_bytes() const { return largest_incoming + kCopyRoomBytes; }
  uint64_t pack_bytes() const { return packs ? largest_own + kReadRoomBytes : 0; }

  // Calls fn(part) for the messages that carry a complete piece.
  template <typename Function>
  static void ForEachMessage(const FilePiece& piece, Function&& fn) {
    for (uint64_t at = piece.begin; at < piece.end; at += kMessageBytes) {
      fn(FilePiece{piece.file_index, at, std::min(piece.end, at + kMessageBytes)});
    }
  }

  std::vector<FilePiece> private_pieces;  // that only this rank needs, in no particular order
  // In the order in which all ranks process pieces.
  std::vector<OwnPiece> own;
  std::vector<Incoming> incoming;
  std::vector<Step> steps;
  std::vector<uint32_t> mappers;  // of this rank's memory, ascending
  // Bytes of the largest piece of each kind, and of the largest message with contents.
  uint64_t largest_private = 0, largest_own = 0, largest_incoming = 0;
  bool packs = false;  // regions of own pieces for others

 private:
  // A piece that several ranks need.
  struct SharedPiece {
    FilePiece piece;
    uint32_t reader;
    const std::vector<ReceiverGroup>* groups;
  };

  absl::Status AddSegment(const Manifest& manifest, const ReadSegment& segment);
  absl::Status AddGroups(const Manifest& manifest, const ReadSegment& segment,
                         std::vector<ReceiverGroup>& groups) const;
  void AddShared(const SharedPiece& shared, const std::function<bool(uint32_t)>& maps,
                 size_t& next_own);
  void AddIncoming(const Incoming& message);

  uint32_t rank_ = 0;
  std::map<uint32_t, std::vector<uint32_t>> rank_sets_;
  std::vector<std::unique_ptr<std::vector<ReceiverGroup>>> groups_;  // per shared segment
  std::vector<SharedPiece> shared_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_READ_SCHEDULE_H_
