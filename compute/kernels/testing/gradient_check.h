#ifndef TESSERA_COMPUTE_KERNELS_TESTING_GRADIENT_CHECK_H_
#define TESSERA_COMPUTE_KERNELS_TESTING_GRADIENT_CHECK_H_

#include <cstdint>
#include <functional>
#include <string>

#include "tensor/tensor.h"

namespace tessera::testing {

struct GradientCheckOptions {
  double step = 1e-3;              // of the finite difference; error O(step^4)
  double tolerance = 1e-8;         // relative to the largest gradient of the tensor
  double absolute = 1e-10;         // for tensors whose gradients vanish
  int64_t max_elements = 1 << 30;  // above this, evenly spaced samples
};

// Expects `gradient` (any floating dtype) to be d loss() / d x, by the five-point central
// difference
//   (loss(x-2h) - 8 loss(x-h) + 8 loss(x+h) - loss(x+2h)) / 12h.
// `loss` must read x anew at each call; x (F64) is restored, bit for bit. Four calls per element. A
// failure is reported at the caller's line.
void ExpectGradient(const std::function<double()>& loss, const TensorView& x,
                    const TensorView& gradient, const std::string& what,
                    const GradientCheckOptions& options = {}, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE());

}  // namespace tessera::testing

#endif  // TESSERA_COMPUTE_KERNELS_TESTING_GRADIENT_CHECK_H_
