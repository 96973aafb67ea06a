#ifndef TESSERA_CHECKPOINT_SAVE_PROCESSOR_SHARE_H_
#define TESSERA_CHECKPOINT_SAVE_PROCESSOR_SHARE_H_

namespace tessera::ckpt {

// What the threads of a background save leave to the program's threads. The ratios say how much of
// a processor the save takes while the program wants all of them.

// Returns whether a task shared its processor with other threads. A thread that is alone on a
// processor computes all of the time, one of two threads half of the time. The limit is in between.
inline bool IsProcessorShared(double seconds, double processor_seconds) {
  return seconds > 1.5 * processor_seconds;
}

// Ratios of a thread's rest to its work before it.
inline constexpr int kChecksumRestRatio = 20;  // checksums take at most 5 % of a processor
inline constexpr int kPrefaultRestRatio = 50;  // touching memory for the next save, 2 %

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_PROCESSOR_SHARE_H_
