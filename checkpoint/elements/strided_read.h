#ifndef TESSERA_CHECKPOINT_ELEMENTS_STRIDED_READ_H_
#define TESSERA_CHECKPOINT_ELEMENTS_STRIDED_READ_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "layout/elements/copy_elements.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Reads the elements of a region: the element with indices i is at offset_bytes + element_bytes *
// sum(i * from_stride) in the file and goes to memory + element_bytes * sum(i * to_stride). Strides
// in the file are not negative; strides in memory are positive.
//
// Elements that are contiguous on both sides are read in place. All others are read in ranges that
// cover many elements, through two buffers of at most kStridedBufferBytes: one is read while
// elements are copied from the other. Only elements more than kSparseReadBytes apart are read one
// by one. A thread keeps its buffers.
//
// Precondition: element_bytes is 1, 2, 4 or 8; all elements lie inside the file and the memory.
// Threads: safe for disjoint memory. Errors: those of the file.
absl::Status ReadStrided(const ReadableFile& file, uint64_t offset_bytes,
                         std::vector<StridedDim> dims, size_t element_bytes, std::byte* memory);

inline constexpr int64_t kStridedBufferBytes = int64_t{4} << 20;
inline constexpr int64_t kSparseReadBytes = int64_t{64} << 10;

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_ELEMENTS_STRIDED_READ_H_
