#ifndef TESSERA_CHECKPOINT_SAVE_PIECE_TABLE_H_
#define TESSERA_CHECKPOINT_SAVE_PIECE_TABLE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "checkpoint/save/piece_queues.h"
#include "checkpoint/save/staging.h"

namespace tessera::ckpt {

// Returns whether a task of a background save shared its processor with the program's threads. A
// thread that is alone on a processor computes all of the time, one of two threads half of the
// time. The limit is in between.
inline bool IsProcessorShared(double seconds, double processor_seconds) {
  return seconds > 1.5 * processor_seconds;
}

// Ratios of a thread's rest to its work before it, while the program wants all processors.
inline constexpr int kChecksumRestRatio = 20;  // checksums take at most 5 % of a processor
inline constexpr int kPrefaultRestRatio = 50;  // touching memory for the next save, 2 %

// Decides what the threads of a save do next: a table of the pieces into which the data files are
// cut, in the order in which an update of the state changes them. The table decides and remembers;
// it neither copies nor writes. A thread takes a task, does it, and ends it:
//
//   PieceTable::Worker worker;
//   while (!table.over()) {
//     const PieceTable::Task task = table.Take(worker, now);
//     ...                          // kRest and kWait: nothing to do now
//     table.End(task, worker, result, now);
//   }
//
// Every piece is either copied to staging memory and then written, or written in place. A copy also
// computes the checksums and digests of the piece. In place, a task of its own (kChecksum) computes
// them while the piece is written. A piece is released once its memory may change, because it is
// copied, or written with its checksums computed.
//
// A device copies by itself, in the order of its other work. So a piece of its memory is released
// when its copy is started. Workers finish the copy and compute its checksums later.
//
// The choice depends on the threads that wait to change memory. Until one waits, pieces are written
// in place if they can be. Others are copied ahead of the disk, to staging memory that was touched
// before. Checksums wait for idle processors. If a thread waits for a piece, it is copied, unless
// the disk has begun it; the thread helps with copies and checksums. Then all threads work on the
// pieces that it will change next. If there is memory for all remaining pieces, they are copied in
// the order of the update, and the disk begins at the other end.
//
// Not thread-safe: DataWriter calls it under a lock. Reads no clock: callers pass the time. Only
// the constructor and Arrive() take memory, so that a task that was taken can always be ended.
class PieceTable {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Do {
    kCopy,          // copy the piece to `buffer` with checksums; on a device, start to copy it
    kChecksum,      // compute checksums of the piece in place
    kFinishCopy,    // wait for the device's copy, and compute the checksums of `buffer`
    kWriteCopy,     // start to write `buffer`
    kWriteInPlace,  // start to write the piece in place
    kFinishWrite,   // wait for the write of this worker
    kRest,          // do nothing until rests_until(), or until something changes
    kWait,          // do nothing until something changes
    kReleased,      // everything is released that the thread waits for
  };
  struct Task {
    Do what = Do::kWait;
    size_t piece = 0;
    std::byte* buffer = nullptr;  // with the copy; null: the piece is in place
    bool touches = false;         // the buffer is new memory
  };

  // The cost of a task.
  struct Result {
    bool ok = true;
    double processor_seconds = 0;  // of the thread, for kChecksum
    double seconds = 0;            // that passed meanwhile, for kChecksum
  };

  // A thread of the save.
  struct Worker {
    std::optional<size_t> writing;  // one piece at a time
    int tasks_meanwhile = 0;        // copies and checksums since the write began
    double checksum_seconds = 0;    // of the processor, since the last rest
  };

  // A thread that waits to change the memory of some pieces.
  struct Waiter {
    std::vector<size_t> pieces;
    size_t released = 0, started = 0;  // numbers of pieces, from the first on
  };

  struct Options {
    int io_threads = 1;
    int copy_threads = 0;  // see DataWriterOptions
  };

  PieceTable() = default;
  // `in_place` says for each piece whether it may be written in place, `on_device` whether a device
  // holds a part of it, which excludes that; empty: of no piece.
  PieceTable(std::vector<bool> in_place, StagingBuffers buffers, const Options& options,
             const std::vector<bool>& on_device = {});

  Task Take(Worker& worker, Clock::time_point now);
  // A thread that waits calls Arrive() first, and Leave() after kReleased. If Arrive() throws, the
  // thread has not arrived.
  void Arrive(const Waiter& waiter);
  Task TakeAsWaiter(Waiter& waiter);
  void Leave() { --waiters_; }

  // Ends a task of Take(), or with null one of TakeAsWaiter().
  void End(const Task& task, Worker* worker, const Result& result, Clock::time_point now);
  // Records that the piece that End() has noted as written is durable, or needs no sync.
  void Settle() { --unwritten_; }
  // Records that the save has failed: tasks in progress end, and no other begins.
  void Fail() { failed_ = true; }

  size_t size() const { return pieces_.size(); }
  // Returns whether nothing is left to begin.
  bool over() const { return failed_ || (unwritten_ == 0 && unsummed_ == 0); }
  // Returns whether copies and checksums are in progress.
  bool reads() const { return reading_ > 0; }
  bool all_released() const { return unreleased_ == 0; }
  bool on_device(size_t piece) const { return pieces_[piece].on_device; }
  Clock::time_point rests_until() const { return rests_until_; }
  const StagingBuffers& buffers() const { return buffers_; }
  // Returns how many pieces in place the disk had not begun when the first thread waited.
  size_t updated_first() const { return updated_first_; }

 private:
  // kBusy: being copied, or being written in place.
  enum class State : uint8_t { kPending, kBusy, kReleased };
  enum class Checksum : uint8_t { kMissing, kBusy, kDone };

  struct Piece {
    bool in_place;
    bool on_device = false;
    State state = State::kPending;
    Checksum checksum = Checksum::kMissing;
    bool wanted = false;  // a thread waits, or has waited, for it
    bool staged = false;  // copied, or being copied
    bool written = false;
    int readers = 0;  // of its memory: threads, and the disk
    std::byte* buffer = nullptr;
  };

  bool IsPending(size_t piece) const { return pieces_[piece].state == State::kPending; }
  // Returns whether a piece is released. A save that is over reads nothing more, but tasks in
  // progress have to end.
  bool IsReleased(size_t piece) const {
    return pieces_[piece].state == State::kReleased || (over() && pieces_[piece].readers == 0);
  }
  // Returns whether the piece is written, or being written, in place, without checksums yet.
  static bool NeedsChecksum(const Piece& piece) {
    return piece.state == State::kBusy && !piece.staged && piece.checksum == Checksum::kMissing;
  }
  bool MayRead() const;
  bool MayCopy() const;
  bool MayChecksum(Clock::time_point now) const;
  // Returns whether there is memory to copy everything that the disk has not begun to write.
  bool CanCopyTheRest() const;

  std::optional<size_t> NextToCopy();
  std::optional<size_t> NextInPlace();
  std::optional<size_t> NextToChecksum(bool wanted);
  std::optional<size_t> NextToFinish();
  // Returns the piece that a waiting update will change next.
  std::optional<size_t> NextAhead();

  Task BeginCopy(size_t piece);
  Task BeginChecksum(size_t piece, Do what = Do::kChecksum);
  Task BeginWrite(size_t piece, Worker& worker);
  void EndRead(const Task& task);
  void TryToRelease(Piece& piece);

  Options options_;
  std::vector<Piece> pieces_;
  StagingBuffers buffers_;
  CopyOrder to_stage_;
  CopyOrder in_place_;  // pieces that no thread waits for
  CopyOrder ahead_;     // in place
  // Pieces in place whose checksums are missing: the pieces that threads wait for, and all in the
  // order of their writes.
  std::deque<size_t> wanted_checksums_;
  PieceQueue to_checksum_;
  PieceQueue started_;  // copies by a device, to be finished
  PieceQueue copied_;   // to be written
  size_t pending_in_place_ = 0;
  size_t unreleased_ = 0, unwritten_ = 0, unsummed_ = 0;  // pieces
  int waiters_ = 0;
  bool had_waiters_ = false;        // an update has begun, which will come to the rest, too
  int reading_ = 0, touching_ = 0;  // copies and checksums in progress
  size_t updated_first_ = 0;
  bool failed_ = false;
  Clock::time_point rests_until_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_PIECE_TABLE_H_
