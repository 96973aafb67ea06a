#ifndef TESSERA_LAYOUT_ELEMENTS_COPY_ELEMENTS_H_
#define TESSERA_LAYOUT_ELEMENTS_COPY_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "layout/dtype.h"

namespace tessera {

// Copies `count` contiguous elements at `from` to elements `to_stride` apart at `to`. Neither
// pointer needs alignment.
using CopyElements = void (*)(const std::byte* from, std::byte* to, size_t count,
                              int64_t to_stride);

// Returns the copy function from one dtype to another; nullptr if the conversion is not supported.
// Equal dtypes are copied bit for bit. Between F64, F32, F16 and BF16, numbers are rounded once, to
// nearest, ties to even, with overflow to infinity, and NaN to NaN.
CopyElements FindCopy(DType from, DType to);

// Returns the index of the first finite one of `count` contiguous elements that a conversion makes
// infinite, or -1. The pointer needs no alignment.
using FindOverflow = int64_t (*)(const std::byte* elements, size_t count);

// Returns the function for the conversion of FindCopy(); nullptr if no finite element becomes
// infinite, because the dtype has the range of the other, or because there is no conversion.
FindOverflow FindOverflowOf(DType from, DType to);

// One dim of a region that is stored twice, with strides of its own on each side. In elements.
struct StridedDim {
  int64_t extent = 0;
  int64_t from_stride = 0;
  int64_t to_stride = 0;
};

// Returns the region without dims of extent 1, and with neighbouring dims merged if they are one
// dim on both sides. Keeps the order of the dims.
std::vector<StridedDim> MergeDims(std::span<const StridedDim> dims);

// Copies the elements of a region: the one with indices i from
// from + element_bytes * sum(i * from_stride) to to + element_bytes * sum(i * to_stride).
//
// Elements that are contiguous on both sides are copied together. The last two dims of all others
// are copied in blocks, so that both sides stay in the cache, and are transposed in vector
// registers if each side is contiguous along another of the two. No pointer needs alignment.
//
// Preconditions: element_bytes is 1, 2, 4 or 8; the sides do not overlap. Threads: safe for
// disjoint destinations.
void CopyStrided(std::span<const StridedDim> dims, size_t element_bytes, const std::byte* from,
                 std::byte* to);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_ELEMENTS_COPY_ELEMENTS_H_
