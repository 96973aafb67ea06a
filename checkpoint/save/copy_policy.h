#ifndef TESSERA_CHECKPOINT_SAVE_COPY_POLICY_H_
#define TESSERA_CHECKPOINT_SAVE_COPY_POLICY_H_

#include "checkpoint/save/staging.h"

namespace tessera::ckpt {

// What the threads of a save are at.
struct CopyLoad {
  int waiters = 0;           // threads that wait for the copy
  int copying = 0;           // pieces that are being copied or checked
  int writing = 0;           // pieces that are being written
  bool has_copied = false;   // pieces wait to be written
  bool had_waiters = false;  // an update has begun, which will come to the rest, too
  bool rests = false;        // the program needed the processors a short while ago
  bool has_present = false;
  bool has_untouched = false;  // buffers, see StagingBuffers
  int touching = 0;            // copies to such buffers
  double touch_seconds = 0;    // of a processor, for a piece copied to an untouched buffer
  double disk_seconds = 0;     // for a piece, so far
};

// When a thread of a save copies one more piece instead of writing one.
//
// While nothing waits for the copy, it goes ahead of writing as far as memory is present, by few
// threads. While something does, all of them copy, and new memory is touched unless the disk would
// stand still: memory that is written becomes free, too, and soon.
class CopyPolicy {
 public:
  explicit CopyPolicy(const DataWriterOptions& options)
      : io_threads_(options.io_threads), copy_ahead_threads_(options.copy_ahead_threads) {}

  bool MayCopy(const CopyLoad& load) const {
    return (load.has_present || MayTouch(load)) && MayRead(load);
  }

  // Whether what an update will come to next is copied while it waits, although the disk would take
  // it from where it is: whichever is less. One thread at a time finds out what a touch takes.
  static bool MayCopyAhead(const CopyLoad& load) {
    const bool may_touch = load.has_untouched && load.touching == 0 && TouchingPays(load);
    return load.waiters > 0 && (load.has_present || may_touch);
  }
  static bool TouchingPays(const CopyLoad& load) { return load.touch_seconds <= load.disk_seconds; }

  // Whether a thread may check one more piece that is written from where it is, which takes as much
  // from the program's threads as copying, but need not be done before the memory is waited for.
  bool MayCheck(const CopyLoad& load) const {
    if (load.had_waiters) return load.copying < io_threads_;
    return !load.rests && MayRead(load);
  }
  // Whether what is checked too early takes the processors from somebody.
  bool YieldsProcessors(const CopyLoad& load) const {
    return copy_ahead_threads_ > 0 && !load.had_waiters;
  }

 private:
  bool MayRead(const CopyLoad& load) const {
    const bool all = copy_ahead_threads_ == 0 || load.waiters > 0;
    return load.copying < (all ? io_threads_ : copy_ahead_threads_);
  }
  bool MayTouch(const CopyLoad& load) const {
    const bool disk_is_busy = !load.has_copied || load.writing >= (io_threads_ + 1) / 2;
    return load.waiters > 0 && load.has_untouched && disk_is_busy;
  }

  const int io_threads_;
  const int copy_ahead_threads_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_COPY_POLICY_H_
