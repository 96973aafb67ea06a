#ifndef TESSERA_LAYOUT_COPY_MATRIX_H_
#define TESSERA_LAYOUT_COPY_MATRIX_H_

#include <cstddef>
#include <cstdint>

namespace tessera::ckpt {

// One dim of a matrix that is copied. Strides are in bytes.
struct MatrixDim {
  int64_t extent = 0;
  int64_t from_stride = 0;
  int64_t to_stride = 0;
};

// Copies a matrix of elements, whose dims may be in any order on either side, in blocks, so that
// both sides stay in the cache. A transposition, where each side is contiguous along another dim,
// is done in vector registers. No pointer needs alignment; the sides do not overlap.
// Precondition: element_bytes is 1, 2, 4 or 8.
void CopyMatrix(const MatrixDim& a, const MatrixDim& b, size_t element_bytes, const std::byte* from,
                std::byte* to);

}  // namespace tessera::ckpt

#endif  // TESSERA_LAYOUT_COPY_MATRIX_H_
