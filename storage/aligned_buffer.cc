#include "storage/aligned_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/system_memory.h"
#include "storage/storage.h"

namespace tessera {
absl::StatusOr<AlignedBuffer> AlignedBuffer::Allocate(uint64_t size_bytes) {
  if (size_bytes == 0) return AlignedBuffer();
  if (size_bytes > SIZE_MAX / 2) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate an I/O buffer of ", size_bytes, " bytes"));
  }
  const size_t capacity_bytes = RoundUp<size_t>(size_bytes, kIoAlignmentBytes);
  void* mapped = capacity_bytes >= kHugePageBytes
                     ? MapOnHugePages(capacity_bytes)
                     : mmap(nullptr, capacity_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate an I/O buffer of ", size_bytes,
                     " bytes: ", std::generic_category().message(error)));
  }
  return AlignedBuffer(static_cast<std::byte*>(mapped), size_bytes, capacity_bytes);
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this == &other) return *this;
  if (data_ != nullptr) munmap(data_, capacity_bytes_);
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  capacity_bytes_ = std::exchange(other.capacity_bytes_, 0);
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, capacity_bytes_);
}

void AlignedBuffer::Prefault(size_t offset_bytes, size_t size_bytes) {
#ifdef MADV_POPULATE_WRITE
  if (size_bytes == 0 || madvise(data_ + offset_bytes, size_bytes, MADV_POPULATE_WRITE) == 0) {
    return;
  }
#endif
  for (size_t at = offset_bytes; at < offset_bytes + size_bytes; at += kIoAlignmentBytes) {
    volatile std::byte* page = data_ + at;
    *page = *page;
  }
}

}  // namespace tessera
