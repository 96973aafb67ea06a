#ifndef TESSERA_CHECKPOINT_SAVE_ASYNC_SAVER_H_
#define TESSERA_CHECKPOINT_SAVE_ASYNC_SAVER_H_

// Saves while the program goes on: the same checkpoint as Save(), written by threads in the
// background.
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
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/plan/state_dict.h"
#include "checkpoint/save/options.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

struct AsyncSaveOptions {
  // save.staging_bytes caps the memory that holds the copy of this process's part of the state,
  // kept between saves. No limit by default, but never more than half of the memory that is
  // available: processes that share a machine share that too. Where the copy does not fit, the save
  // goes on in pieces: what was copied is written before more is, and who waits for memory to be
  // copied waits for the disk. SaveReport::note then says what was needed, available and
  // set. Little of it is ever touched where the disk takes the state before anybody waits for it.
  SaveOptions save = {.staging_bytes = std::numeric_limits<uint64_t>::max()};

  // A save that starts while one is in flight.
  enum class WhenBusy {
    kWait,  // Start() returns once the other is over
    kSkip,  // is not made, on no rank; its outcome is Aborted
  };
  WhenBusy when_busy = WhenBusy::kWait;

  // What the background may take from the program.
  // Of save.io_threads, those that copy at once while nobody waits. Two: a thread of the program
  // that waits for another, whose processor the copy has, yields its own to the copy.
  int copy_threads = 2;
  int nice = 5;  // added to the niceness of the background's threads
  bool idle_io_priority =
      false;  // the disk serves everybody else first, where its scheduler knows priorities

  // Called after each save that was committed, before its outcome is known and the next save
  // begins; by the saver's thread, so that it may take its time: to remove older checkpoints, for
  // example.
  std::function<void(AsyncSaveReport&)> on_committed;

  // Memory that is available, in bytes; null: what the system and the process's control group say.
  std::function<uint64_t()> available_memory_bytes;
};

struct SaveOutcome {
  int64_t step = 0;
  absl::StatusOr<AsyncSaveReport> report;  // an error names rank, phase and file
};

// Effect: the checkpoints of Save(), with its commit protocol and its promises: a checkpoint exists
// when, and only when, every rank's data is durable and its manifest is committed. A save that
// fails leaves the saver as it was; the next one works.
//
// Ownership: the storage and options.save.group are the caller's and must outlive the saver. The
// group is used by the saver's thread alone, so it must be one that nothing else uses, and every
// rank of it has a saver and calls Prepare() and Start() in the same order.
//
// A thread of its own does the work. Where the system gives none, Prepare() and Start() do it
// themselves and return when it is done, as SaveReport::note then says; the next call tries again.
//
// Errors: none is returned by what the training loop calls; they are outcomes. A group that failed
// (a peer is gone or late) makes this and all later saves fail at once with that error, as ranks
// may no longer be at the same operation; make a new saver over a new group.
//
// Threads: WaitUntilCopied() and WaitUntilAllCopied() may be called by several threads at once,
// next to one that calls the rest.
//
// Cost to the calling thread: Start() copies the description of the state, not the state, and never
// communicates, nor does anything else here: what needs other ranks happens in the background.
class AsyncSaver {
 public:
  AsyncSaver(Storage& storage, std::string_view root, const AsyncSaveOptions& options = {});

  // Waits as Finish() does.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Plans a save of this state and makes the memory for its copy present, in the background, so
  // that the first save finds both: the first touch of so much memory can take seconds, and is left
  // to processors that have nothing else to do. Call it when training begins. Reads no element of
  // the state. Best effort: what fails here fails, or is made up for, in the save, and neither a
  // save nor Finish() waits for the memory.
  void Prepare(const StateDict& state);

  // Begins a save. From here on the memory that `state` describes must stay as it is until
  // WaitUntilCopied() returned for it; the description itself and `metadata` may go at once.
  void Start(int64_t step, const StateDict& state, const Metadata& metadata = {});

  // Returns once bytes [data, data + size_bytes) may be overwritten or freed: the save in flight
  // has a copy of what it needs of them, or does not need them, or is over. The calling thread
  // copies too instead of only waiting. Returns at once without a save in flight.
  void WaitUntilCopied(const void* data, uint64_t size_bytes);
  void WaitUntilAllCopied();

  // The outcomes of saves that are over, oldest first, one a call; nullopt if there is none yet.
  // Never waits.
  std::optional<SaveOutcome> Poll();

  // Waits for what is in flight, at most for the deadlines of the group and as long as the storage
  // needs, and returns the outcomes that were not polled.
  std::vector<SaveOutcome> Finish();

 private:
  class Background;
  const std::unique_ptr<Background> background_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_ASYNC_SAVER_H_
