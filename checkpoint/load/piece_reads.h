#ifndef TESSERA_CHECKPOINT_LOAD_PIECE_READS_H_
#define TESSERA_CHECKPOINT_LOAD_PIECE_READS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/no_memory.h"
#include "checkpoint/include/load_options.h"
#include "checkpoint/load/host_memory.h"
#include "checkpoint/load/placer.h"
#include "checkpoint/load/read_schedule.h"
#include "checkpoint/scan/scan.h"
#include "storage/aligned_buffer.h"

namespace tessera::ckpt {

inline constexpr char kReadingForOthers[] = "read for other ranks";

// Allocates a buffer, and counts its bytes in the report.
absl::Status AddBuffer(uint64_t bytes, LoadReport& report, std::vector<AlignedBuffer>& to);

// The reading threads of a shared read (shared_reader.h). They read own pieces, which other ranks
// need, too, in the order of the schedule, into a ring of buffers. Private pieces, which only this
// rank needs, are read while no buffer of the ring is free. Each piece is checked and placed by the
// thread that has read it.
//
// Call MakeBuffers(), Start(), WaitFor() for each own piece in order, and Finish(). One other
// thread calls them. If no thread can be started, WaitFor() and Finish() read.
class PieceReads {
 public:
  // Arguments must outlive this object. `schedule` may change until Start().
  PieceReads(const Scanner& scanner, const Placer& placer, const ReadSchedule& schedule,
             LoadReport& report)
      : scanner_(scanner), placer_(placer), schedule_(schedule), report_(report) {}

  absl::Status MakeBuffers(const ReadSchedule::BufferCounts& counts);

  // The memory of the ring, if other processes can map it.
  const std::optional<HostMemory>& shared_memory() const { return shared_memory_; }
  size_t ring_size() const { return ring_.size(); }
  // Returns the buffer of an own piece, after kReadRoomBytes of space.
  std::byte* OwnBuffer(size_t index) {
    return ring_[index % ring_.size()] + ReadSchedule::kReadRoomBytes;
  }

  void Start();

  // Waits for an own piece, and returns whether it was read without an error. The buffers of own
  // pieces below `released` are free from now on.
  bool WaitFor(size_t index, size_t released);

  // Calls body(), and keeps its error: this rank continues to take part in the exchange. From any
  // thread.
  void Try(const auto& body) {
    const absl::Status status = CatchExceptions(kReadingForOthers, body);
    const MutexLock lock(&mutex_);
    error_.Update(status);
  }

  // Reads what is left unless `stop`, ends the threads, and returns the first error.
  absl::Status Finish(bool stop);

 private:
  enum class Done : uint8_t { kNot, kGood, kFailed };
  struct Task {
    bool own;
    size_t index;
    std::byte* buffer;
    bool is_read;  // false: after another error
    std::unique_ptr<PendingIo> read = nullptr;
    absl::Status Wait();
  };

  absl::Status MakeRing(size_t count);

  // Returns the next read to start. Own pieces, for which other ranks wait, come first. Returns
  // nullopt if nothing is left and, unless `may_wait`, if no buffer is free.
  std::optional<Task> NextTask(bool may_wait);
  std::optional<Task> StartNext(bool may_wait);
  void FinishTask(int worker, const Task& task, const absl::Status& read);
  void Work(int worker);
  const FilePiece& PieceOf(const Task& task) const {
    return task.own ? schedule_.own[task.index].piece : schedule_.private_pieces[task.index];
  }

  const Scanner& scanner_;
  const Placer& placer_;
  const ReadSchedule& schedule_;
  LoadReport& report_;

  int workers_ = 1;
  std::vector<std::thread> threads_;
  std::vector<AlignedBuffer> private_buffers_;  // used by any thread
  // Buffers of own pieces: piece i is in buffer i modulo their number, after kReadRoomBytes.
  std::vector<std::byte*> ring_;
  std::optional<HostMemory> shared_memory_;  // of the ring, or:
  std::vector<AlignedBuffer> ring_memory_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<Done> done_ ABSL_GUARDED_BY(mutex_);  // by own piece
  size_t next_own_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t next_private_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::byte*> free_private_ ABSL_GUARDED_BY(mutex_);
  size_t released_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_PIECE_READS_H_
