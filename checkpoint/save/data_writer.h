#ifndef TESSERA_CHECKPOINT_SAVE_DATA_WRITER_H_
#define TESSERA_CHECKPOINT_SAVE_DATA_WRITER_H_

#include <atomic>
#include <chrono>
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

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/byte_progress.h"
#include "base/mutex.h"
#include "checkpoint/include/state_dict.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/save/copy_order.h"
#include "checkpoint/save/copy_policy.h"
#include "checkpoint/save/data_file_contents.h"
#include "checkpoint/save/memory_index.h"
#include "checkpoint/save/save_messages.pb.h"
#include "checkpoint/save/staging.h"
#include "storage/aligned_buffer.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Writes the data files that a plan gives to one rank and makes their contents and names durable.
//
// The files are cut into pieces. Each is copied from the state into staging memory, checksummed and
// digested, and written. When a thread copies and when it writes is CopyPolicy's decision; which
// piece comes next, CopyOrder's: in the background in the order in which an update comes to them
// (UpdateOrder()), otherwise in that of the files.
//
// A piece whose bytes lie in memory as in the file, but for a few, is not copied where the storage
// writes from any memory (DataWriterOptions::in_place_alignment): it is written from where it is,
// and checksummed and digested in a single pass. That pass does not wait for the write. It comes
// when the processors are idle, or else when an update waits for the memory, which is then in the
// cache. A thread that waits before the write has begun copies the piece. Afterwards its wait ends
// when the piece is written and checked; it checks the piece itself if no other thread does. Where
// there is memory for what is left then, that is copied in the order of the update, and written in
// place from the other end.
//
// Run() works with threads of its own, with fewer where the system gives no more; a thread that is
// about to change the state calls WaitUntilCopied() first. Both may outlive the arguments of
// Make(), except the state's memory, the storage and the pool.
class DataWriter {
 public:
  // Reserves staging memory: ResourceExhausted where there is too little.
  static absl::StatusOr<std::shared_ptr<DataWriter>> Make(
      Storage& storage, std::string_view directory, const StateDict& state, const RankState& local,
      const RankPlan& plan, const DataWriterOptions& options, StagingPool& pool);

  // Call once. Returns the checksum of every chunk and the digests of what was written. An error
  // names phase and file. After it returns, neither the state nor the pool is used.
  absl::StatusOr<WriteReport> Run();

  // Returns once Run() no longer reads bytes [data, data + size_bytes), because it has copied or
  // written them or has returned. The calling thread helps to copy and to check. Thread-safe; may
  // be called before and after Run(), too.
  void WaitUntilCopied(const std::byte* data, uint64_t size_bytes);
  void WaitUntilAllCopied();

  // How much staging memory the pieces take that are not written from where they are, and what of
  // the others is to be ready for an update.
  uint64_t staged_bytes() const { return staged_bytes_ + ahead_bytes_; }

  // The time at which the last piece was copied, or written in place, if it was.
  std::optional<std::chrono::steady_clock::time_point> copied_at() const;

  // Processor time of the threads that Run() started, and of the copies and checks by those that
  // waited. Valid once Run() has returned.
  double processor_seconds() const {
    const MutexLock lock(&mutex_);
    return processor_seconds_;
  }

 private:
  // kBusy: being copied, or written in place and checked. kReleased: its memory is no longer read.
  enum class PieceState : uint8_t { kPending, kBusy, kReleased };
  // Whether its checksums and digests are computed.
  enum class CheckState : uint8_t { kUnchecked, kChecking, kChecked };

  // A data file, and how much of it has been written.
  struct File {
    FileContents contents;
    std::vector<uint32_t> crcs;
    size_t pieces_left = 0;  // not yet written; under mutex_ once Run() works
    std::once_flag created;
    absl::Status create_status;
    std::unique_ptr<WritableFile> file;
  };

  struct Piece {
    File* file;
    uint64_t begin;
    uint64_t end;
    bool in_place;  // may be written from where it is
    PieceState state = PieceState::kPending;
    CheckState check = CheckState::kUnchecked;
    bool wanted = false;  // a caller waits, or has waited, for it
    bool staged = false;  // copied, or being copied
    bool written = false;
    int readers = 0;  // of its memory: threads, and the disk
    std::byte* buffer = nullptr;
  };

  using Digests = std::vector<LogicalDigest>;

  // Writes of a piece in flight: meanwhile the thread copies or checks another one.
  struct Write {
    Piece* piece;
    std::vector<std::unique_ptr<PendingIo>> parts;
  };

  // What a thread of Run() has for itself.
  struct Worker {
    Digests digests;
    AlignedBuffer between;  // the bytes between what is in place
    std::deque<Write> writes;
    int has_read = 0;          // so many pieces, since it has ended a write
    double check_seconds = 0;  // of the processor, since it has rested
  };

  DataWriter(Storage& storage, std::string_view directory, const DataWriterOptions& options,
             StagingPool& pool)
      : storage_(storage),
        directory_(directory),
        options_(options),
        policy_(options),
        pool_(pool) {}

  absl::Status CutIntoPieces(const StateDict& state, const RankState& local, const RankPlan& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As an update comes to them.
  void OrderPieces(std::vector<MemoryIndex::Range>& memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CutBuffers(uint64_t stride_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitForPieces(const std::vector<size_t>& pieces);

  void Work(Worker& worker);
  absl::Status Act(Worker& worker, bool& has_waited) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps the first error.
  void Note(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepForTheNextSave() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CopyLoad Load() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !error_.ok() || (pieces_left_ == 0 && unchecked_ == 0);
  }
  bool IsPending(size_t piece) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return pieces_[piece].state == PieceState::kPending;
  }
  bool IsReleased(size_t piece) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<size_t> NextToCopy() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<size_t> NextInPlace(const CopyLoad& load) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether there is memory to copy everything that the disk has not begun to write.
  bool CanCopyTheRest(const CopyLoad& load) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<size_t> NextToCheck(bool wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What an update that waits will come to next.
  std::optional<size_t> NextAhead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the piece is written, or being written, from where it is, and nobody has checked it.
  static bool NeedsCheck(const Piece& piece) {
    return piece.state == PieceState::kBusy && !piece.staged &&
           piece.check == CheckState::kUnchecked;
  }
  // These release the mutex meanwhile.
  void CopyPiece(size_t index, Digests& digests) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckInPlace(size_t index, Digests& digests) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckAsWorker(size_t index, Worker& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadAsWaiter(void (DataWriter::*read)(size_t, Digests&), size_t index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CopyAsWaiter(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ReadAsWaiter(&DataWriter::CopyPiece, index);
  }
  void CheckAsWaiter(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ReadAsWaiter(&DataWriter::CheckInPlace, index);
  }
  void SetChecked(Piece& piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the thread has to end its first write before it begins anything else: it is waited for.
  bool MustFinish(const Worker& worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StartStaged(Piece& piece, Worker& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StartInPlace(size_t index, Worker& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FinishFirst(Worker& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // If the piece is copied, or written and checked.
  void TryToRelease(Piece& piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CopyBytes(const Piece& piece, Digests& digests) const;
  void CheckBytes(const Piece& piece, Digests& digests) const;
  absl::Status CreateFile(File& file);
  absl::Status WriteStaged(Write& write);
  absl::Status WriteSegments(Write& write, AlignedBuffer& between);
  static absl::Status SyncFile(const File& file);
  void ExtendChecksums(File& file, uint64_t offset, std::span<const std::byte> bytes) const;
  WriteReport Report() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Storage& storage_;
  const std::string directory_;
  const DataWriterOptions options_;
  const CopyPolicy policy_;
  StagingPool& pool_;  // used by the thread that calls Make() and Run()
  DigestSlots slots_;
  std::deque<File> files_;
  MemoryIndex memory_;
  std::vector<Worker> workers_;
  uint64_t staged_bytes_ = 0, ahead_bytes_ = 0;  // see staged_bytes()
  size_t piece_count_ = 0;
  std::optional<ByteProgress> progress_;  // of writing, once the pieces are known

  mutable Mutex mutex_;
  CondVar changed_;  // any guarded member
  std::vector<Piece> pieces_ ABSL_GUARDED_BY(mutex_);
  CopyOrder to_stage_ ABSL_GUARDED_BY(mutex_);
  CopyOrder in_place_ ABSL_GUARDED_BY(mutex_);  // without those that are waited for
  CopyOrder ahead_ ABSL_GUARDED_BY(mutex_);     // in place
  size_t pending_in_place_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<size_t> to_check_ ABSL_GUARDED_BY(mutex_);  // in place; what is waited for comes first
  std::deque<size_t> copied_ ABSL_GUARDED_BY(mutex_);    // to be written
  StagingBuffers buffers_ ABSL_GUARDED_BY(mutex_);
  int waiters_ ABSL_GUARDED_BY(mutex_) = 0;
  bool had_waiters_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Digests> waiter_digests_ ABSL_GUARDED_BY(mutex_);  // at most one for each waiter
  std::vector<Digests*> idle_digests_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point rests_until_ ABSL_GUARDED_BY(mutex_);
  int copying_ ABSL_GUARDED_BY(mutex_) = 0;  // or checking: pieces, by Run()'s threads and waiters
  int writing_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t pieces_to_copy_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t pieces_left_ ABSL_GUARDED_BY(mutex_) = 0;  // not yet written
  size_t unchecked_ ABSL_GUARDED_BY(mutex_) = 0;    // pieces
  double processor_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point started_at_ ABSL_GUARDED_BY(mutex_);  // Run()
  int touching_ ABSL_GUARDED_BY(mutex_) = 0;                                  // see CopyLoad
  double touch_seconds_ ABSL_GUARDED_BY(mutex_) = 0;  // see CopyLoad; as last seen
  size_t came_first_to_ ABSL_GUARDED_BY(mutex_) = 0;  // pieces in place: an update, before the disk
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::chrono::steady_clock::time_point> copied_at_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> released_ = false;  // everything is copied, or Run() has returned
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_DATA_WRITER_H_
