#ifndef TESSERA_CONVERT_CORE_STRIDED_READ_H_
#define TESSERA_CONVERT_CORE_STRIDED_READ_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt::convert {

// One dim of a region whose elements have strides both in a file and in memory, in elements.
struct StridedDim {
  int64_t extent;
  int64_t file_stride;    // not negative
  int64_t memory_stride;  // positive
};

// Reads the elements of a region: the element with indices i is at
// offset_bytes + element_bytes * sum(i * file_stride) in the file and goes to
// memory + element_bytes * sum(i * memory_stride).
//
// What is contiguous on both sides is read in place. Everything else is read in ranges that cover
// many elements, through a buffer of at most kStridedBufferBytes, and copied from there; only
// elements further than kSparseReadBytes apart are read one by one. A thread keeps its buffer.
//
// Precondition: element_bytes is 1, 2, 4 or 8; all elements lie inside the file and the memory.
// Threads: safe for disjoint memory. Errors: those of the file.
absl::Status ReadStrided(const ReadableFile& file, uint64_t offset_bytes,
                         std::vector<StridedDim> dims, size_t element_bytes, std::byte* memory);

inline constexpr int64_t kStridedBufferBytes = int64_t{4} << 20;
inline constexpr int64_t kSparseReadBytes = int64_t{64} << 10;

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_STRIDED_READ_H_
