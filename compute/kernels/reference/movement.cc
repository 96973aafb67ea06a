// Movement, elementwise sums and reductions.

#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "compute/kernels/backend.h"
#include "compute/kernels/reference/array.h"
#include "compute/kernels/reference/backend_impl.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera {

std::unique_ptr<Backend> MakeReferenceBackend() {
  return std::make_unique<reference::ReferenceBackend>();
}

namespace reference {

Device ReferenceBackend::device() const { return {}; }

// x[i] = value
void ReferenceBackend::Fill(TensorView x, double value) {
  for (int64_t offset : ElementOffsets(x)) StoreElement(x, offset, value);
}

// to[i] = from[i]. Equal dtypes keep every bit, the payload of a NaN included.
void ReferenceBackend::Copy(TensorView from, TensorView to) {
  CHECK(from.shape() == to.shape()) << ToString(from.shape()) << " into " << ToString(to.shape());
  if (from.dtype() != to.dtype()) {
    CHECK(from.dtype() != DType::kI32 && to.dtype() != DType::kI32)
        << DTypeName(from.dtype()) << " into " << DTypeName(to.dtype());
    return Array(from).StoreTo(to);
  }
  const int64_t size = ElementSize(from.dtype());
  const std::vector<int64_t> sources = ElementOffsets(from), targets = ElementOffsets(to);
  for (size_t i = 0; i < sources.size(); ++i) {
    std::memmove(to.as<char>() + targets[i] * size, from.as<char>() + sources[i] * size, size);
  }
}

// out[i] = a[i] + b[i]
void ReferenceBackend::Add(TensorView a, TensorView b, TensorView out) {
  Array sum(a);
  const Array addend(b);
  CHECK(sum.shape() == addend.shape());
  for (size_t i = 0; i < sum.values().size(); ++i) sum.values()[i] += addend.values()[i];
  sum.StoreTo(out);
}

// x[i] = x[i] * factor
void ReferenceBackend::Scale(TensorView x, double factor) {
  Array scaled(x);
  for (double& value : scaled.values()) value *= factor;
  scaled.StoreTo(x);
}

// out[n] (+)= sum_r x[r,n]
void ReferenceBackend::SumRows(TensorView x, TensorView out, bool accumulate) {
  const Array rows(x);
  Array sums({rows.dim(1)});
  for (int64_t r = 0; r < rows.dim(0); ++r) {
    for (int64_t n = 0; n < rows.dim(1); ++n) sums(n) += rows(r, n);
  }
  sums.StoreTo(out, accumulate);
}

// sum_i x[i]^2
double ReferenceBackend::SumOfSquares(TensorView x) {
  double sum = 0;
  const Array values(x);
  for (double value : values.values()) sum += value * value;
  return sum;
}

// sums[b] = sum of x[i]^2 over i of block b
void ReferenceBackend::SumOfSquaresByBlock(TensorView x, int64_t block, std::span<double> sums) {
  const Array values(x);
  const int64_t count = static_cast<int64_t>(values.values().size());
  CHECK_EQ(static_cast<int64_t>(sums.size()), (count + block - 1) / block);
  std::fill(sums.begin(), sums.end(), 0.0);
  for (int64_t i = 0; i < count; ++i) sums[i / block] += values.values()[i] * values.values()[i];
}

// sum_i x[i]
double ReferenceBackend::Sum(TensorView x) {
  double sum = 0;
  const Array values(x);
  for (double value : values.values()) sum += value;
  return sum;
}

}  // namespace reference
}  // namespace tessera
