#include "compute/kernels/cuda/products.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "compute/tensor/tensor.h"
#include "layout/dtype.h"

namespace tessera::cuda {

int64_t AlignmentOf(int64_t leading_dim, DType dtype) {
  return std::gcd(leading_dim * ElementSize(dtype), kProductAlignmentBytes);
}

MatrixLayout LayoutOf(const TensorView& x) {
  CHECK_EQ(x.rank(), 2) << ShapeToString(x.shape());
  const bool row_major = x.dim(1) <= 1 || x.stride(1) == 1;
  CHECK(row_major || x.dim(0) <= 1 || x.stride(0) == 1)
      << "neither dim is dense: " << ShapeToString(x.shape());
  // The stride of a single row has no meaning, and may be less than its length.
  const int64_t length = x.dim(row_major ? 1 : 0), count = x.dim(row_major ? 0 : 1);
  const int64_t stride = count <= 1 ? length : x.stride(row_major ? 0 : 1);
  const int64_t leading_dim = std::max<int64_t>({stride, length, 1});
  return {row_major, leading_dim, AlignmentOf(leading_dim, x.dtype())};
}

}  // namespace tessera::cuda
