#ifndef TESSERA_TRAINER_APP_GEMM_PEAK_H_
#define TESSERA_TRAINER_APP_GEMM_PEAK_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "compute/kernels/backend.h"
#include "layout/dtype.h"

namespace tessera {

// The sizes of the product of a linear layer, y[m,n] = x[m,k] W[n,k]^T.
struct ProductSize {
  int64_t m = 0, n = 0, k = 0;

  double flops() const { return 2.0 * static_cast<double>(m * n * k); }
};

// Returns the best FLOP/s of a matrix product on this backend, over cubes of several sizes and the
// products of `model`: the basis of the share of peak in the progress line. Each product runs
// several times and its best run counts, since other load on the machine can only slow it down.
//
// Cost: about 0.5 s. A product that is predicted to take long, or for which the training leaves no
// memory, is left out, and no operand has a side above 4,096. Errors: those of the backend.
absl::StatusOr<double> MeasureGemmPeak(Backend& backend, DType dtype,
                                       std::span<const ProductSize> model);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_GEMM_PEAK_H_
