#ifndef TESSERA_CHECKPOINT_INCLUDE_ASYNC_SAVER_H_
#define TESSERA_CHECKPOINT_INCLUDE_ASYNC_SAVER_H_

// Asynchronous saves, which write the checkpoint of CheckpointFolder::Save() on background threads
// while the program continues.
//
//   saver.Prepare(state);                       // once; optional
//   for each step:
//     if (it is time) saver.Start(step, state);
//     forward and backward;                     // the state is read, and is being copied meanwhile
//     for each bucket:
//       saver.WaitUntilCopied(bucket's memory); // only what is overwritten next
//       update the bucket;
//     for (const SaveOutcome& outcome : saver.Poll()) report it;
//   saver.Finish();
//
// Implemented in checkpoint/save/async_saver.cc.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/include/state_dict.h"

namespace tessera {
class Storage;  // storage/storage.h
}  // namespace tessera

namespace tessera::ckpt {

struct SaveHooks;  // internal

struct AsyncSaveOptions {
  // save.staging_bytes limits the memory for the copy of this process's part of the state, which is
  // kept between saves. The default sets no limit. In any case the copy takes at most half of the
  // available memory, which processes on one machine share. If the copy does not fit, the save
  // proceeds in pieces: each piece is written before more is copied, so a caller that waits for
  // memory to be copied waits for the disk. SaveReport::note then gives the needed, available and
  // configured sizes.
  //
  // Tensors whose memory is contiguous and aligned (StorageTraits::in_place_alignment_bytes) are
  // written from where they are, and copied only if a caller waits for them.
  SaveOptions save = {.staging_bytes = std::numeric_limits<uint64_t>::max()};

  // The behavior of Start() while another save is in flight.
  enum class WhenBusy {
    kWait,  // Start() returns once the other one is over
    kSkip,  // no rank saves; the outcome is Cancelled, which no other save returns
  };
  WhenBusy when_busy = WhenBusy::kWait;

  // Limits on what the background takes from the program.
  //
  // While no caller waits, at most this many of the save.io_threads copy memory, or compute
  // checksums of memory that is written in place. The threads compute these checksums only on idle
  // processors. Once a caller waits, all io_threads help. Two threads are better than one: if the
  // program needs the processor of one thread, the other one goes on.
  int copy_threads = 2;
  // The memory for copies that Prepare() prefaults although the tensors can be written in place.
  // The first save needs it if the program updates tensors before the disk has written them.
  uint64_t copy_ahead_bytes = uint64_t{56} << 20;
  int nice = 5;  // added to the niceness of the background's threads

  // Returns the available memory in bytes. Null: as the system and the process's control group
  // report it.
  std::function<uint64_t()> available_memory_bytes = {};
};

// The outcome of a finished save.
struct SaveOutcome {
  int64_t step = 0;
  // The report, or an error that names rank, phase and file. Cancelled: skipped, see WhenBusy.
  absl::StatusOr<SaveReport> report;
};

// Saves checkpoints in the background, by the commit protocol of CheckpointFolder::Save(): a
// checkpoint exists if and only if every rank's data is durable and its manifest is committed.
// After a failed save, the next one works as usual.
//
// Ownership: the storage and options.save.group belong to the caller and must outlive the saver.
// Only the saver's thread may use the group. Every rank of the group has a saver and calls
// Prepare() and Start(), or Refuse(), in the same order.
//
// The saver has a thread of its own. If the system cannot start one, Prepare() and Start() do the
// work and return when it is done, as SaveReport::note then says; the next call tries again to
// start a thread.
//
// Errors are in the outcomes; the methods that a training loop calls return none. If the group
// fails (a peer is gone or late), this and all later saves fail at once with its error, since ranks
// may no longer be at the same operation. Make a new saver over a new group then.
//
// Threads: several threads may call WaitUntilCopied() and WaitUntilAllCopied() at once, beside one
// that calls the other methods.
//
// Cost to the calling thread: Start() copies the description of the state, not the state. No method
// communicates with other ranks, which happens in the background.
class AsyncSaver {
 public:
  // Makes a saver for CheckpointFolder(storage).
  explicit AsyncSaver(Storage& storage, const AsyncSaveOptions& options = {});

  // Waits like Finish().
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Prepares the first save in the background: plans the save of this state, and prefaults the
  // memory for its copies on idle processors, since the first touch of so much memory can take
  // seconds. Call when training begins. Reads no element of the state. Best effort: anything that
  // fails is repeated, or fails, in the save, and neither a save nor Finish() waits for the memory.
  void Prepare(const StateDict& state);

  // Begins a save. The memory that `state` describes must not change until WaitUntilCopied() has
  // returned for it. The description and the metadata are copied and may be destroyed immediately.
  void Start(const SaveRequest& request, const StateDict& state);
  void Start(int64_t step, const StateDict& state) { Start({.step = step}, state); }

  // Replaces Start() if this process has no state to save: the save fails on every rank with
  // `error`.
  void Refuse(int64_t step, const absl::Status& error);

  // Waits until bytes [data, data + size_bytes) may be overwritten or freed: the save in flight has
  // copied or written the part that it needs, does not need them, or is over. The calling thread
  // helps to copy. For a part that is being written in place, it waits for the disk: a few pieces
  // of 4 MiB, as long as there is memory for copies. For memory of a device, it waits until the
  // copy is started, behind which the program orders its own work (see device_memory.h). Returns
  // immediately if no save is in flight.
  void WaitUntilCopied(const void* data, uint64_t size_bytes);
  void WaitUntilAllCopied();

  // Returns the saves that have finished since the last call, oldest first. Never waits.
  std::vector<SaveOutcome> Poll();

  // Waits for saves in flight, limited by the timeouts of the group and by the time that the
  // storage needs, and returns the outcomes that were not polled.
  std::vector<SaveOutcome> Finish();

 private:
  // For the library's own savers.
  friend std::unique_ptr<AsyncSaver> MakeAsyncSaver(Storage&, const AsyncSaveOptions&,
                                                    const SaveHooks&);
  friend void StartSave(AsyncSaver&, const SaveRequest&, const StateDict&, bool rolling);
  class Background;
  explicit AsyncSaver(std::unique_ptr<Background> background);

  const std::unique_ptr<Background> background_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_ASYNC_SAVER_H_
