#ifndef TESSERA_COMPUTE_KERNELS_CPU_WIDEN_H_
#define TESSERA_COMPUTE_KERNELS_CPU_WIDEN_H_

#include <cstdint>

#include "compute/tensor/dtype.h"

namespace tessera {

// to[rows,columns], dense, = from[rows,columns], whose rows are from_stride apart.
void WidenRows(const BFloat16* from, int64_t from_stride, int64_t rows, int64_t columns, float* to);

// to[rows,columns], whose rows are to_stride apart, = from[rows,columns], dense; each element
// rounded as BFloat16(float) does.
void RoundRows(const float* from, int64_t rows, int64_t columns, BFloat16* to, int64_t to_stride);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_WIDEN_H_
