#ifndef TESSERA_COMPUTE_KERNELS_CPU_MATMUL_PACK_H_
#define TESSERA_COMPUTE_KERNELS_CPU_MATMUL_PACK_H_

#include <cstdint>

#include "layout/dtype.h"
#include "tensor/bfloat16.h"

namespace tessera {

// The layouts that oneDNN's bf16 kernels for AMX read without copying.

// A packed b[k,n] is divided into blocks of 32 x 64: all of the first 64 columns from top to
// bottom, then the next 64. In a block, pairs of rows are interleaved (oneDNN's BA16a64b2a).
inline constexpr int64_t kPackRows = 32;
inline constexpr int64_t kPackColumns = 64;

// Packs the first `depth` rows (a multiple of kPackRows) of 64 columns of b[k,n]. `b` is their
// first element, `leading` the distance between rows, or between columns if b is `transposed`.
void PackColumns(const BFloat16* b, int64_t leading, bool transposed, int64_t depth,
                 BFloat16* packed);

// Copies to the dense to[rows,depth] a matrix that is stored as its transpose: `from` is its
// element [0,0], `leading` the distance between its rows as stored. `rows` is a multiple of 16,
// `depth` of 32.
void TransposeRows(const BFloat16* from, int64_t leading, int64_t rows, int64_t depth,
                   BFloat16* to);

// Copies or adds to `to` a dense tile of fp32 or bf16. `to_stride` is in elements.
void MoveTile(DType from_dtype, const void* from, int64_t rows, int64_t columns, bool add,
              DType to_dtype, void* to, int64_t to_stride);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_MATMUL_PACK_H_
