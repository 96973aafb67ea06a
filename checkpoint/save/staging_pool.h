#ifndef TESSERA_CHECKPOINT_SAVE_STAGING_POOL_H_
#define TESSERA_CHECKPOINT_SAVE_STAGING_POOL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "checkpoint/storage/aligned_buffer.h"

namespace tessera::ckpt {

// A save's demand for staging memory; wanted_bytes and least_bytes are multiples of
// kIoAlignmentBytes.
struct StagingRequest {
  uint64_t wanted_bytes = 0;  // for the whole state at once
  uint64_t limit_bytes = 0;   // SaveOptions::staging_bytes
  uint64_t least_bytes = 0;   // the minimum with which a save can run
};

// The staging memory of saves: one range of address space, kept from save to save, since the first
// touch of memory costs more than filling it. One save at a time; not thread-safe.
class StagingPool {
 public:
  // `available_bytes` (may be null: AvailableMemoryBytes) returns how much memory is available.
  explicit StagingPool(std::function<uint64_t()> available_bytes = nullptr);

  // Makes memory() as large as the request, its limit and half of the available memory permit;
  // keeps existing memory that is large enough. ResourceExhausted, with the needed, available and
  // configured sizes, where not even least_bytes are available.
  absl::Status Reserve(const StagingRequest& request);

  // Prefaults some more of the reserved memory, in the order of addresses. Returns false once
  // nothing is left to do.
  bool Prefault();

  // How much of memory(), from its beginning on, was touched: the first touch of the rest costs
  // more than filling it.
  size_t present_bytes() const { return std::min(present_bytes_, usable_bytes_); }
  // Records that the first `bytes` of memory() have been touched.
  void SetPresent(size_t bytes) { present_bytes_ = std::max(present_bytes_, bytes); }

  // Valid after Reserve(). Aligned for direct I/O.
  std::span<std::byte> memory() { return {buffer_.data(), usable_bytes_}; }

  // The reason why memory() is smaller than wanted; empty if it is not.
  const std::string& note() const { return note_; }

 private:
  absl::Status Allocate(uint64_t bytes, uint64_t least_bytes);

  const std::function<uint64_t()> available_bytes_;
  AlignedBuffer buffer_;
  size_t usable_bytes_ = 0;
  size_t present_bytes_ = 0;
  std::string note_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_STAGING_POOL_H_
