#ifndef TESSERA_STORAGE_ALIGNED_BUFFER_H_
#define TESSERA_STORAGE_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace tessera {

// Memory that direct I/O can use without a copy: its address is a multiple of kIoAlignmentBytes.
// The contents start as zeros. Buffers of 2 MiB and more request huge pages, since with 4 KiB pages
// the first touch of a large buffer costs more than filling it; keep buffers and reuse them.
//
// Move-only; a default-constructed or moved-from buffer is empty. As thread-safe as an array.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;

  // Allocates a buffer of any size; memory is reserved up to the next multiple of
  // kIoAlignmentBytes, see capacity_bytes(). Touches no page. Errors: ResourceExhausted.
  static absl::StatusOr<AlignedBuffer> Allocate(uint64_t size_bytes);

  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

  // Returns size_bytes() rounded up to kIoAlignmentBytes. The whole capacity may be read and
  // written, so that a padded transfer of the tail needs no second buffer.
  size_t capacity_bytes() const { return capacity_bytes_; }

  std::span<std::byte> span() { return {data_, size_bytes_}; }
  std::span<const std::byte> span() const { return {data_, size_bytes_}; }

  // Prefaults every page, so that later first touches cost nothing. Best effort.
  void Prefault() { Prefault(0, capacity_bytes_); }
  // Prefaults the pages of a part that begins at a multiple of kIoAlignmentBytes.
  void Prefault(size_t offset_bytes, size_t size_bytes);

 private:
  AlignedBuffer(std::byte* data, size_t size_bytes, size_t capacity_bytes)
      : data_(data), size_bytes_(size_bytes), capacity_bytes_(capacity_bytes) {}

  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  size_t capacity_bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_ALIGNED_BUFFER_H_
