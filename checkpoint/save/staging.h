#ifndef TESSERA_CHECKPOINT_SAVE_STAGING_H_
#define TESSERA_CHECKPOINT_SAVE_STAGING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/elements/device_copies.h"
#include "storage/aligned_buffer.h"

namespace tessera::ckpt {

// The staging memory that a save asks for; wanted_bytes and least_bytes are multiples of
// kIoAlignmentBytes.
struct StagingRequest {
  uint64_t wanted_bytes = 0;  // for the whole state at once
  uint64_t limit_bytes = 0;   // SaveOptions::staging_bytes
  uint64_t least_bytes = 0;   // the minimum with which a save can run
  // The device whose page-locked memory is needed, which is present at once; null: ordinary memory.
  std::shared_ptr<DeviceMemory> device = nullptr;
};

// The staging memory of saves: one range of address space, kept from save to save, since the first
// touch of memory costs more than filling it. One save at a time; not thread-safe.
class StagingPool {
 public:
  // `available_bytes` returns how much memory is available; null: AvailableMemoryBytes().
  explicit StagingPool(std::function<uint64_t()> available_bytes = nullptr);

  // Makes memory() as large as the request, its limit and half of the available memory permit;
  // keeps existing memory that is large enough, and of the same device. ResourceExhausted, with the
  // needed, available and configured sizes, if not even least_bytes are available.
  absl::Status Reserve(const StagingRequest& request);

  // Prefaults some more of the reserved memory, in the order of addresses. Returns false once
  // nothing is left to do.
  bool Prefault();
  // Makes Prefault() prefault at least the first `bytes` that are reserved. The memory behind them
  // may never be needed, and is left.
  void Want(uint64_t bytes) { wanted_bytes_ = std::max(wanted_bytes_, bytes); }

  // Returns the bytes of memory(), from its beginning on, that were touched. The first touch of the
  // rest costs more than filling it.
  size_t present_bytes() const { return std::min(present_bytes_, usable_bytes_); }
  // Records that the first `bytes` of memory() have been touched.
  void SetPresent(size_t bytes) { present_bytes_ = std::max(present_bytes_, bytes); }

  // Returns the reserved memory, aligned for direct I/O. Valid after Reserve().
  std::span<std::byte> memory() { return reserved_.first(usable_bytes_); }

  // Returns the reason why memory() is smaller than wanted; empty if it is not.
  const std::string& note() const { return note_; }

 private:
  void Free();
  absl::Status Allocate(uint64_t bytes, uint64_t least_bytes);
  absl::Status AllocateOnce(uint64_t bytes);

  const std::function<uint64_t()> available_bytes_;
  std::shared_ptr<DeviceMemory> device_;  // null: the memory is `buffer_`
  AlignedBuffer buffer_;
  PageLockedMemory page_locked_;
  std::span<std::byte> reserved_;
  size_t usable_bytes_ = 0;
  size_t present_bytes_ = 0;
  uint64_t wanted_bytes_ = 0;
  std::string note_;
};

// Staging memory in buffers of one size. Buffers that were used before come first, since the first
// touch of a new one can cost several times as much as filling it. Not thread-safe.
class StagingBuffers {
 public:
  StagingBuffers() = default;
  // The first `present` buffers of the memory are taken as used before.
  StagingBuffers(std::span<std::byte> memory, uint64_t stride_bytes, uint64_t present);

  bool has_present() const { return !present_.empty(); }
  bool has_any() const { return count() > 0; }
  uint64_t stride_bytes() const { return stride_bytes_; }
  size_t count() const { return present_.size() + untouched_.size() / stride_bytes_; }

  // Takes a buffer. Precondition: has_any().
  std::byte* Take();
  void Return(std::byte* buffer) { present_.push_back(buffer); }

  // Returns the bytes of the memory, from its beginning on, that were touched.
  uint64_t touched_bytes() const { return memory_.size() - untouched_.size() - unused_tail_bytes_; }

 private:
  std::span<std::byte> memory_;
  uint64_t stride_bytes_ = 1;
  std::vector<std::byte*> present_;
  std::span<std::byte> untouched_;
  uint64_t unused_tail_bytes_ = 0;  // too few for a buffer
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_STAGING_H_
