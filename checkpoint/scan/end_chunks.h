#ifndef TESSERA_CHECKPOINT_SCAN_END_CHUNKS_H_
#define TESSERA_CHECKPOINT_SCAN_END_CHUNKS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "checkpoint/scan/scan.h"

namespace tessera::ckpt {

// A cache of checked chunks at the ends of ranges, for other scans of the same checkpoint: if
// ranges are cut without regard to chunks, neighbours share them. The oldest chunks make room for
// others. Thread-safe.
class EndChunks {
 public:
  explicit EndChunks(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Returns the chunk of a file; null if it is not kept.
  std::shared_ptr<const std::string> Find(const std::string& file, const FilePiece& chunk);
  void Keep(const std::string& file, const FilePiece& chunk, const std::byte* data);
  // Returns the bytes of the chunks that Find() returned, which needed no read.
  uint64_t found_bytes() const;

 private:
  struct Kept {
    std::string file;
    uint64_t begin;
    std::shared_ptr<std::string> bytes;
  };

  const uint64_t max_bytes_;
  mutable Mutex mutex_;
  std::deque<Kept> kept_ ABSL_GUARDED_BY(mutex_);
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t found_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SCAN_END_CHUNKS_H_
