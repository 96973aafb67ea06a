#ifndef TESSERA_CHECKPOINT_SAVE_DATA_WRITER_H_
#define TESSERA_CHECKPOINT_SAVE_DATA_WRITER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/byte_progress.h"
#include "base/mutex.h"
#include "checkpoint/elements/device_copies.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/include/state_dict.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/save/data_file.h"
#include "checkpoint/save/memory_index.h"
#include "checkpoint/save/piece_table.h"
#include "checkpoint/save/save_messages.pb.h"
#include "checkpoint/save/staging.h"
#include "storage/aligned_buffer.h"
#include "storage/storage.h"

namespace tessera::ckpt {

struct DataWriterOptions {
  SaveOptions save;  // chunks, threads, memory, progress and is_cancelled
  StorageTraits traits = {};
  // 0: a save in the foreground; each thread copies a piece to its buffer, and writes it. Otherwise
  // see AsyncSaveOptions; there are buffers for all pieces.
  int copy_threads = 0;
  uint64_t copy_ahead_bytes = 0;  // see AsyncSaveOptions
};

// The layout of the pieces of a rank's data files in staging memory.
struct StagingLayout {
  uint64_t piece_bytes;
  uint64_t stride_bytes;  // from buffer to buffer: aligned for direct I/O
  uint64_t pieces;        // in all files
};

// Returns a layout that needs at most `limit_bytes` of staging memory, or one chunk.
StagingLayout LayOutStaging(const RankPlan& plan, const DataWriterOptions& options,
                            uint64_t limit_bytes);

// Returns the memory that a DataWriter requests from its pool. `device` is a device of the state;
// null: the state is in host memory.
StagingRequest NeededStaging(const RankPlan& plan, const DataWriterOptions& options,
                             std::shared_ptr<DeviceMemory> device = nullptr);

// Writes the data files that a plan gives to one rank, and makes their contents and names durable.
//
//   TESSERA_ASSIGN_OR_RETURN(auto writer, DataWriter::Make(...));  // reserves staging memory
//   TESSERA_ASSIGN_OR_RETURN(WriteReport report, writer->Run());   // on one thread
//   writer->WaitUntilCopied(data, size);                           // on any other
//
// The files are cut into pieces; PieceTable decides when each is copied, checksummed and written.
// Run() starts threads, or fewer if the system has no more. A thread that is about to change the
// state calls WaitUntilCopied() first, and helps while it waits.
//
// The state's memory, the storage and the pool must outlive the writer; the other arguments of
// Make() need not. An update of memory that is being written in place waits for the disk.
class DataWriter {
 public:
  // Makes a writer, and reserves its staging memory. ResourceExhausted if there is too little.
  static absl::StatusOr<std::shared_ptr<DataWriter>> Make(
      Storage& storage, std::string_view directory, const StateDict& state, const RankState& local,
      const RankPlan& plan, const DataWriterOptions& options, StagingPool& pool);

  // Writes the files. Call once. Returns the checksum of every chunk and the digests of the written
  // tensors. An error names phase and file. After Run() returns, neither the state nor the pool is
  // used.
  absl::StatusOr<WriteReport> Run();

  // Waits until Run() no longer reads bytes [data, data + size_bytes), because it has copied or
  // written them or has returned. The calling thread helps with copies and checksums. Thread-safe;
  // may also be called before and after Run().
  void WaitUntilCopied(const std::byte* data, uint64_t size_bytes);
  void WaitUntilAllCopied();

  // Returns the staging memory to touch before the save: of all pieces that are not written in
  // place, and DataWriterOptions::copy_ahead_bytes of the others.
  uint64_t staged_bytes() const { return staged_bytes_ + ahead_bytes_; }

  // Returns the time at which the last piece was copied, or written in place; nullopt before that.
  std::optional<absl::Duration> copied_at() const {
    const MutexLock lock(&mutex_);
    return copied_at_;
  }

  // Returns the processor time of the threads that Run() started, and of the copies and checksums
  // by waiting threads. Valid once Run() has returned.
  double processor_seconds() const {
    const MutexLock lock(&mutex_);
    return processor_seconds_;
  }

 private:
  using Digests = FileWriter::Digests;

  // A part of a file.
  struct Piece {
    FileWriter* file;
    size_t file_number;
    uint64_t begin;
    uint64_t end;
    DeviceCopies copies = {};  // in flight; of the thread that does a task of the piece
  };

  // The state of a thread of Run().
  struct Worker {
    PieceTable::Worker table;
    Digests digests;
    AlignedBuffer between;      // see FileWriter::StartWriteInPlace()
    FileWriter::Writes writes;  // of one piece
  };

  DataWriter(Storage& storage, std::string_view directory, const DataWriterOptions& options,
             StagingPool& pool);

  absl::Status CutIntoPieces(const StateDict& state, const RankState& local, const RankPlan& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sorts the pieces into the order in which an update changes them.
  void OrderPieces(std::vector<MemoryIndex::Range>& memory, std::vector<bool>& in_place);
  StagingBuffers CutBuffers(uint64_t stride_bytes) const;
  void WaitForPieces(absl::FunctionRef<std::vector<size_t>()> pieces);
  // Helps the save until the waiter's pieces are released. Throws before it has taken a task, if at
  // all.
  void Help(PieceTable::Waiter waiter);
  Digests& TakeIdleDigests() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WritePieces();
  void DoTasks(Worker& worker);
  // Keeps the first error, which ends the save, and wakes the threads that wait.
  void KeepFirstError(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepForTheNextSave() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Ends a task, and wakes the threads that wait.
  void EndTask(const PieceTable::Task& task, PieceTable::Worker* worker,
               const PieceTable::Result& result, PieceTable::Clock::time_point now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Calls body() without the mutex. Returns its error, or that of an exception in `action`.
  template <typename Body>
  absl::Status Unlocked(const char* action, const Body& body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  absl::Status ReadPiece(const PieceTable::Task& task, bool on_device, Digests& digests);
  // Do a task, and release the mutex meanwhile. DoTasks() does what the table gives to a worker.
  absl::Status DoTask(const PieceTable::Task& task, Worker& worker)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CopyOrChecksum(const PieceTable::Task& task, PieceTable::Worker* worker,
                              Digests& digests) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StartWrite(const PieceTable::Task& task, Worker& worker)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FinishWrite(const PieceTable::Task& task, Worker& worker)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  WriteReport Report() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FileWriter::Place place_;
  const DataWriterOptions options_;
  StagingPool& pool_;  // used by the thread that calls Make() and Run()
  DigestSlots slots_;
  std::deque<FileWriter> files_;
  std::vector<Piece> pieces_;  // as in the table
  MemoryIndex memory_;
  std::vector<Worker> workers_;
  uint64_t staged_bytes_ = 0, ahead_bytes_ = 0;  // see staged_bytes()
  std::optional<ByteProgress> progress_;         // of writing, once the pieces are known

  mutable Mutex mutex_;
  CondVar changed_;  // any guarded member
  PieceTable table_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> pieces_left_ ABSL_GUARDED_BY(mutex_);     // by file: not yet written
  std::deque<Digests> waiter_digests_ ABSL_GUARDED_BY(mutex_);  // at most one for each waiter
  std::vector<Digests*> idle_digests_ ABSL_GUARDED_BY(mutex_);
  double processor_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  SavePhases spent_ ABSL_GUARDED_BY(mutex_);  // by all threads of Run()
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Duration> copied_at_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> released_ = false;  // everything is copied, or Run() has returned
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_DATA_WRITER_H_
