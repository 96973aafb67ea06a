#ifndef TESSERA_CHECKPOINT_LOAD_SHARED_READER_H_
#define TESSERA_CHECKPOINT_LOAD_SHARED_READER_H_

// Shared reads of ranks that need the same bytes: one of them reads and checks each byte, and sends
// it to the others while it reads on.
//
// Every rank processes its pieces in one global order, (begin, file): it sends the pieces that it
// reads, and receives those that others read. Meanwhile its threads read ahead, as far as there are
// buffers.
//
// This cannot deadlock. Take the first message, in that order, that has not arrived. Its sender has
// sent everything before it, reads without waiting for other ranks, and so comes to send it; its
// receiver has received everything before it, and so comes to receive it.
//
// Ranks of one host do not send contents: the others map the reader's memory, get a message for
// each piece in it, place the piece from there, and answer when they have, so that its buffer is
// free again. The contents themselves are sent to other hosts, and if memory cannot be mapped.
//
// Answers cannot deadlock, either: a rank's answer at a piece is awaited only at later pieces.
//
// A piece is sent in several messages, each small enough to be still in the receiver's cache when
// it is placed. The first message begins with a mark. A rank that cannot read a piece sets the
// mark, sends messages of the same sizes, and continues to take part, so no rank waits in vain, and
// the following agreement reports the error to all ranks.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/load/host_memory.h"
#include "checkpoint/load/placer.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/scan/scan.h"
#include "storage/aligned_buffer.h"

namespace tessera::ckpt {

struct SharedReadCounters {
  uint64_t bytes_read = 0;
  uint64_t bytes_received = 0;
  uint64_t bytes_sent = 0;
};

class SharedReader {
 public:
  // Derives this rank's work from its share, and allocates the buffers: at most staging_bytes, but
  // at least seven pieces. Does not communicate. All arguments must outlive the reader.
  static absl::StatusOr<std::unique_ptr<SharedReader>> Create(
      const Manifest& manifest, const Scanner& scanner, const Placer& placer,
      const ReadShare& share, int rank, int io_threads, uint64_t staging_bytes);

  // Arrange with the ranks of the same host whose memory is mapped by whom, before Run(), on all
  // ranks. OfferMemory() returns this rank's serialized MemoryOffer, for OffersByHost().
  // MapMemory() takes the answer, and returns the RankSet of the owners of the memory that it could
  // map, for WhoMapped(). UseMemory() takes that answer.
  std::string OfferMemory() const;
  absl::StatusOr<std::string> MapMemory(const std::string& offers);
  absl::Status UseMemory(const std::string& mappers);

  // Reads, sends and places all pieces. Collective over the group, and called once. Errors: failed
  // reads of this rank; those of the group.
  absl::Status Run(ProcessGroup& group, absl::Duration deadline);

  const SharedReadCounters& counters() const { return counters_; }
  uint64_t buffer_bytes() const { return buffer_bytes_; }

 private:
  class Session;
  friend class Session;

  // The receivers of one part of a piece.
  struct ReceiverGroup {
    const ShardRegion* region;  // null: the whole piece
    std::shared_ptr<const PackedRegion> packed;
    const std::vector<uint32_t>* ranks;
  };
  struct OwnPiece {
    FilePiece piece;
    const std::vector<ReceiverGroup>* groups;
    std::vector<std::pair<uint32_t, uint64_t>> told;  // ranks that place it, and their bytes of it
    size_t first_answer = 0;                          // of theirs, among the incoming ones
  };
  enum class Carries : uint8_t {
    kContents,  // of a piece, or of a part of it
    kPlace,     // the mark, and where in its reader's memory the piece is
    kAnswer,    // nothing: the piece was placed
  };
  struct Incoming {
    FilePiece piece;  // the piece that the message is part of
    uint32_t source;
    const ShardRegion* region;  // null: the whole piece
    uint64_t bytes;             // without the mark
    bool marked;
    Carries carries = Carries::kContents;
  };
  // A piece that several ranks need.
  struct SharedPiece {
    FilePiece piece;
    uint32_t reader;
    const std::vector<ReceiverGroup>* groups;
  };
  // A step in the processing of all pieces: a piece that this rank reads, or a message from
  // another.
  struct Step {
    bool own;
    size_t index;
  };

  SharedReader(const Scanner& scanner, const Placer& placer, int rank)
      : scanner_(scanner), placer_(placer), rank_(rank) {}
  absl::Status Schedule(const Manifest& manifest, const ReadShare& share);
  absl::Status AddGroups(const Manifest& manifest, const ReadSegment& segment,
                         std::vector<ReceiverGroup>& groups) const;
  // The steps and messages of all shared pieces, as far as memory is mapped by now.
  void ScheduleShared();
  void AddShared(const SharedPiece& shared, size_t& next_own);
  // Returns the bytes of a piece that a rank receives.
  static uint64_t BytesFor(uint32_t rank, const SharedPiece& shared);
  bool IsMapper(uint32_t rank) const { return std::ranges::binary_search(mappers_, rank); }
  void AddIncoming(const Incoming& message);
  absl::Status MakeBuffers(int io_threads, uint64_t staging_bytes);
  absl::Status MakeOwnBuffers(size_t count);
  absl::Status AddBuffer(uint64_t bytes, std::vector<AlignedBuffer>& to);

  const Scanner& scanner_;
  const Placer& placer_;
  const uint32_t rank_;
  std::map<uint32_t, std::vector<uint32_t>> rank_sets_;
  std::vector<std::unique_ptr<std::vector<ReceiverGroup>>> groups_;  // per shared segment
  std::vector<FilePiece> private_;
  std::vector<SharedPiece> shared_;  // in order
  std::vector<OwnPiece> own_;        // in order
  std::vector<Incoming> incoming_;   // in order
  std::vector<Step> steps_;
  uint64_t largest_private_ = 0, largest_own_ = 0, largest_incoming_ = 0;  // bytes
  bool packs_ = false;

  int workers_ = 1;
  std::vector<AlignedBuffer> private_buffers_;  // of whichever worker takes them
  // Buffers of own pieces: piece i is in buffer i modulo their number, after kReadRoomBytes. If
  // other processes can map the buffers, they are parts of one memory.
  std::vector<std::byte*> own_buffers_;
  std::optional<HostMemory> host_memory_;
  std::vector<AlignedBuffer> own_memory_;
  std::map<uint32_t, HostMemory> mapped_;  // by the rank that reads into it
  std::vector<uint32_t> mappers_;          // ranks that have mapped host_memory_, ascending
  std::vector<AlignedBuffer> receive_buffers_;
  std::vector<AlignedBuffer> pack_buffer_;  // one or none
  uint64_t buffer_bytes_ = 0;
  SharedReadCounters counters_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_SHARED_READER_H_
