#ifndef TESSERA_COMPUTE_KERNELS_CPU_ADAMW_COEFFICIENTS_H_
#define TESSERA_COMPUTE_KERNELS_CPU_ADAMW_COEFFICIENTS_H_

#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "compute/kernels/backend.h"

namespace tessera {

// The constants of an update, computed in fp64.
struct AdamWCoefficients {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float grad_scale;
  float step_size;      // learning rate / (1 - beta1^t)
  float inverse_root2;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float keep;  // 1 - learning rate * weight decay
};

// Returns base^exponent, by squaring: std::pow has variants for several processors that differ in
// the last bit.
inline double IntegerPower(double base, int64_t exponent) {
  double power = 1;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 == 1) power *= base;
  }
  return power;
}

inline AdamWCoefficients MakeAdamWCoefficients(const AdamWOptions& options) {
  CHECK_GE(options.step, 1);
  const double correction1 = 1 - IntegerPower(options.beta1, options.step);
  const double correction2 = 1 - IntegerPower(options.beta2, options.step);
  return {.beta1 = static_cast<float>(options.beta1),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .grad_scale = static_cast<float>(options.grad_scale),
          .step_size = static_cast<float>(options.learning_rate / correction1),
          .inverse_root2 = static_cast<float>(1 / std::sqrt(correction2)),
          .epsilon = static_cast<float>(options.epsilon),
          .keep = static_cast<float>(1 - options.learning_rate * options.weight_decay)};
}

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_ADAMW_COEFFICIENTS_H_
