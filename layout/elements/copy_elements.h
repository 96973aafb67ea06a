#ifndef TESSERA_LAYOUT_ELEMENTS_COPY_ELEMENTS_H_
#define TESSERA_LAYOUT_ELEMENTS_COPY_ELEMENTS_H_

#include <cstddef>
#include <cstdint>

#include "layout/dtype.h"

namespace tessera {

// Copies `count` contiguous elements at `from` to elements `to_stride` apart at `to`. Neither
// pointer needs alignment.
using CopyElements = void (*)(const std::byte* from, std::byte* to, size_t count,
                              int64_t to_stride);

// Returns the copy function from one dtype to another: bit for bit if they are equal; between F64,
// F32, F16 and BF16 rounded once, to nearest, ties to even, with overflow to infinity, and NaN to
// NaN. nullptr if the conversion is not supported.
CopyElements FindCopy(DType from, DType to);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_ELEMENTS_COPY_ELEMENTS_H_
