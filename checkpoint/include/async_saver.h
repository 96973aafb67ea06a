#ifndef TESSERA_CHECKPOINT_INCLUDE_ASYNC_SAVER_H_
#define TESSERA_CHECKPOINT_INCLUDE_ASYNC_SAVER_H_

// Asynchronous saves: the checkpoint that CheckpointFolder::Save() makes, written by background
// threads while the program continues.
//
//   saver.Prepare(state);                       // once; optional
//   for each step:
//     if (it is time) saver.Start(step, state);
//     forward and backward;                     // the state is read, and is being copied meanwhile
//     for each bucket:
//       saver.WaitUntilCopied(bucket's memory); // only what is overwritten next
//       update the bucket;
//     while (const auto outcome = saver.Poll()) report it;
//   saver.Finish();

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/include/state_dict.h"

namespace tessera {
class Storage;  // storage/storage.h
}  // namespace tessera

namespace tessera::ckpt {

struct SaveHooks;  // checkpoint/save/save_hooks.h

struct AsyncSaveOptions {
  // save.staging_bytes limits the memory for the copy of this process's part of the state, which is
  // kept between saves. The default sets no limit. In any case the copy takes at most half of the
  // available memory, which processes on one machine share. Where the copy does not fit, the save
  // proceeds in pieces: each is written before more is copied, and a caller that waits for memory
  // to be copied waits for the disk. SaveReport::note then gives the sizes that are needed,
  // available and configured.
  //
  // Little of the memory is ever touched where the disk takes the state before a caller waits for
  // it: tensors whose memory is contiguous and aligned for the storage (see
  // StorageTraits::in_place_alignment_bytes) are written from where they are, and copied only if a
  // caller waits for them, or for what comes before them, and that has not begun. Where callers do
  // come before the disk, what they came to first is copied from then on, and the disk writes from
  // the other end meanwhile: the memory for it is touched in the background after that save.
  // Earlier, a caller waits for the disk if that takes less than the first touch of the memory.
  SaveOptions save = {.staging_bytes = std::numeric_limits<uint64_t>::max()};

  // What Start() does while another save is in flight.
  enum class WhenBusy {
    kWait,  // Start() returns once the other one is over
    kSkip,  // no rank saves; the outcome is Cancelled, which no other save's is
  };
  WhenBusy when_busy = WhenBusy::kWait;

  // Limits on what the background takes from the program.
  //
  // How many of the save.io_threads copy, or checksum what they write in place, at the same time
  // while no caller has waited; the latter as far as the program leaves the processors to them, and
  // the rest of it when a caller waits for the memory. With two, the copies still advance when one
  // of them has taken the processor that a thread of the program waits for.
  int copy_threads = 2;
  // How much memory Prepare() prefaults for tensors that are written from where they are: the first
  // save does not know yet whether an update comes before the disk.
  uint64_t copy_ahead_bytes = uint64_t{56} << 20;
  int nice = 5;                   // added to the niceness of the background's threads
  bool idle_io_priority = false;  // lowest disk priority, if its scheduler has priorities

  // Returns the available memory in bytes. Null: what the system and the process's control group
  // report.
  std::function<uint64_t()> available_memory_bytes;
};

// A save that is over.
struct SaveOutcome {
  int64_t step = 0;
  // An error names rank, phase and file; Cancelled: skipped, see WhenBusy.
  absl::StatusOr<SaveReport> report;
};

// Makes the checkpoints that CheckpointFolder::Save() makes, by the same commit protocol: a
// checkpoint exists when, and only when, every rank's data is durable and its manifest is
// committed. After a save that failed, the next one works as usual.
//
// Ownership: the storage and options.save.group are the caller's and must outlive the saver. The
// group is used by the saver's thread alone, so it must be one that nothing else uses, and every
// rank of it has a saver and calls Prepare() and Start(), or Refuse(), in the same order.
//
// A thread of its own does the work. Where the system gives none, Prepare() and Start() do it
// themselves and return when it is done, as SaveReport::note then says; the next call tries again.
//
// Errors: what the training loop calls returns no errors; they are in the outcomes. A group that
// failed (a peer is gone or late) makes this and all later saves fail at once with that error, as
// ranks may no longer be at the same operation; make a new saver over a new group.
//
// Threads: WaitUntilCopied() and WaitUntilAllCopied() may be called by several threads at once,
// next to one that calls the rest.
//
// Cost to the calling thread: Start() copies the description of the state, not the state, and never
// communicates, nor does anything else here: what needs other ranks happens in the background.
class AsyncSaver {
 public:
  // Saves as CheckpointFolder(storage) does.
  explicit AsyncSaver(Storage& storage, const AsyncSaveOptions& options = {});
  // For the library itself.
  AsyncSaver(Storage& storage, const AsyncSaveOptions& options, const SaveHooks& hooks);

  // Waits like Finish().
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Plans a save of this state and prefaults the memory for what it copies in any case, in the
  // background, so that the first save finds both: the first touch of so much memory can take
  // seconds, and is left to idle processors. Call it when training begins. Reads no element of the
  // state. Best effort: whatever fails here is repeated, or fails, in the save, and neither a save
  // nor Finish() waits for the memory.
  void Prepare(const StateDict& state);

  // Begins a save. From here on the memory that `state` describes must not change until
  // WaitUntilCopied() has returned for it. The description itself and the metadata are copied: they
  // may be destroyed immediately.
  void Start(const SaveRequest& request, const StateDict& state);
  void Start(int64_t step, const StateDict& state, const Metadata& metadata = {}) {
    Start({.step = step, .metadata = metadata}, state);
  }

  // In place of Start() where this process has no state to save: the save fails on every rank with
  // `error`.
  void Refuse(int64_t step, const absl::Status& error);

  // Returns once bytes [data, data + size_bytes) may be overwritten or freed: the save in flight
  // has copied or written the part that it needs, does not need them, or is over. The calling
  // thread helps to copy; for a part that is being written from where it is, it waits for the disk:
  // a few pieces of 4 MiB, as long as there is memory for copies. Returns immediately without a
  // save in flight.
  void WaitUntilCopied(const void* data, uint64_t size_bytes);
  void WaitUntilAllCopied();

  // The outcomes of finished saves, oldest first, one per call; nullopt if no other save has
  // finished yet. Never waits.
  std::optional<SaveOutcome> Poll();

  // Waits for saves in flight, limited by the deadlines of the group and by the time that the
  // storage needs, and returns the outcomes that were not polled.
  std::vector<SaveOutcome> Finish();

 private:
  class Background;
  const std::unique_ptr<Background> background_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_ASYNC_SAVER_H_
