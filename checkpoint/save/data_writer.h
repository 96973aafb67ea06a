#ifndef TESSERA_CHECKPOINT_SAVE_DATA_WRITER_H_
#define TESSERA_CHECKPOINT_SAVE_DATA_WRITER_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/plan/state_dict.h"
#include "checkpoint/save/output_file.h"
#include "checkpoint/save/save_messages.pb.h"
#include "checkpoint/save/staging_pool.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

struct DataWriterOptions {
  uint32_t chunk_bytes;  // of checksums
  int io_threads;
  // 0: a buffer for each thread, which copies a piece and writes it. Otherwise buffers for
  // everything, of which new ones are touched where somebody waits for the copy only, and so many
  // of the threads copy, at once, while nobody does.
  int copy_ahead_threads;
  uint64_t staging_bytes;  // at most, or one chunk
};

// Writes the data files that a plan gives to one rank and makes their contents and names durable.
//
// The files are cut into pieces. Each is copied from the state into staging memory, checksummed and
// digested, and written. While nobody waits, copying goes ahead of writing as far as staging memory
// was touched before, else at the pace of the disk: to touch new memory can cost several times what
// the copy does. Where somebody waits, all staging memory is used, and the copy ends as fast as
// memory allows. Where nobody waits for it a piece is checked while it is being copied and in the
// cache, else before it is written.
//
// Run() works with threads of its own, with fewer where the system gives no more; who wants to change the state meanwhile waits with
// WaitUntilCopied(). Both may outlive the arguments of Make(), except the state's memory, the
// storage and the pool.
class DataWriter {
 public:
  // Reserves staging memory: ResourceExhausted where there is none.
  static absl::StatusOr<std::shared_ptr<DataWriter>> Make(
      Storage& storage, std::string_view directory, const StateDict& state, const LocalPlan& local,
      const RankPlan& plan, const DataWriterOptions& options, StagingPool& pool);

  // What Make() asks the pool for.
  static StagingRequest NeededStaging(const RankPlan& plan, const DataWriterOptions& options);

  // Once. Returns checksums of all chunks and the digests of what was written. An error names phase
  // and file. Nothing reads the state or uses the pool once this returned.
  absl::StatusOr<WriteReport> Run();

  // Returns once Run() no longer reads bytes [data, data + size_bytes), having copied them or being
  // over. The calling thread copies too. Any thread; also before and after Run().
  void WaitUntilCopied(const std::byte* data, uint64_t size_bytes);
  void WaitUntilAllCopied();

  // When the last piece was copied, if it was.
  std::optional<std::chrono::steady_clock::time_point> copied_at() const;

  // Of Run()'s threads. After Run().
  double processor_seconds() const { return processor_seconds_; }

 private:
  enum class PieceState : uint8_t { kPending, kCopying, kCopied };

  // A data file with what is written of it.
  struct File {
    OutputFile contents;
    std::vector<uint32_t> crcs;
    size_t pieces_left = 0;  // under mutex_
    std::once_flag created;
    absl::Status create_status;
    std::unique_ptr<WritableFile> file;
  };

  struct Piece {
    File* file;
    uint64_t begin;
    uint64_t end;
    PieceState state = PieceState::kPending;
    bool checked = false;  // crcs and digests are taken
    std::byte* buffer = nullptr;
  };

  // Memory that a piece is copied from.
  struct MemoryRange {
    const std::byte* first;
    const std::byte* last;
    size_t piece;
  };

  using Lock = std::unique_lock<std::mutex>;
  using Digests = std::vector<LogicalDigest>;

  DataWriter(Storage& storage, std::string_view directory, const DataWriterOptions& options,
             StagingPool& pool)
      : storage_(storage), directory_(directory), options_(options), pool_(pool) {}

  absl::Status CutIntoPieces(const StateDict& state, const LocalPlan& local, const RankPlan& plan);
  void CutBuffers(uint64_t stride_bytes);
  void IndexMemory();
  std::vector<size_t> PiecesIn(const std::byte* data, uint64_t size_bytes) const;
  void WaitForPieces(const std::vector<size_t>& pieces);

  void Work(Digests& digests);
  bool MayCopy() const;
  bool MayTouch() const;
  std::byte* TakeBuffer();
  bool Over() const { return !error_.ok() || pieces_left_ == 0; }
  std::optional<size_t> NextToCopy();
  void CopyPiece(Lock& lock, Piece& piece, Digests* digests);
  absl::Status WritePiece(Lock& lock, Piece& piece, Digests& digests);
  absl::Status WriteToFile(const Piece& piece);
  void ExtendChecksums(File& file, uint64_t offset, std::span<const std::byte> bytes) const;
  WriteReport Report() const;

  Storage& storage_;
  const std::string directory_;
  const DataWriterOptions options_;
  StagingPool& pool_;  // of the thread that calls Make() and Run()
  DigestSlots slots_;
  uint64_t stride_bytes_ = 0;  // from buffer to buffer
  std::deque<File> files_;
  std::vector<MemoryRange> memory_;            // ascending by first
  std::vector<const std::byte*> memory_ends_;  // the largest `last` of memory_[0..i]
  std::vector<Digests> digests_;               // one for each thread of Run()

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // of anything below
  std::vector<Piece> pieces_;
  std::deque<size_t> wanted_;  // waited for; copied first
  size_t next_ = 0;            // no piece before it is pending
  std::deque<size_t> copied_;  // to be written
  std::vector<std::byte*> free_;
  std::span<std::byte> untouched_;  // from here on buffers lie that were never used
  int waiters_ = 0;
  int copying_ = 0;  // pieces, by whomever
  int writing_ = 0;
  size_t pieces_to_copy_ = 0;
  size_t pieces_left_ = 0;  // not yet written
  double processor_seconds_ = 0;
  absl::Status error_;
  std::optional<std::chrono::steady_clock::time_point> copied_at_;
  std::atomic<bool> released_ = false;  // everything is copied, or Run() is over
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_DATA_WRITER_H_
