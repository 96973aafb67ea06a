// Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019). One pass over memory,
// which is what bounds it.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "trainer/kernels/cpu/cpu_backend_impl.h"
#include "trainer/kernels/cpu/loops.h"
#include "trainer/kernels/cpu/vector.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera {
namespace {

// What is constant over the elements, computed in fp64.
struct Coefficients {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float grad_scale;
  float step_size;      // learning rate / (1 - beta1^t)
  float inverse_root2;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float keep;  // 1 - learning rate * weight decay
};

Coefficients MakeCoefficients(const AdamWOptions& options) {
  CHECK_GE(options.step, 1);
  const double t = static_cast<double>(options.step);
  return {.beta1 = static_cast<float>(options.beta1),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .grad_scale = static_cast<float>(options.grad_scale),
          .step_size = static_cast<float>(options.learning_rate / (1 - std::pow(options.beta1, t))),
          .inverse_root2 = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, t))),
          .epsilon = static_cast<float>(options.epsilon),
          .keep = static_cast<float>(1 - options.learning_rate * options.weight_decay)};
}

template <typename T>
void UpdateRange(const Coefficients& c, int64_t count, const float* grad, float* master, float* m,
                 float* v, T* param) {
  ForLanes(count, [&](int64_t i, auto load, auto store) {
    const F32x16 g = load(grad + i) * c.grad_scale;
    const F32x16 first = c.beta1 * load(m + i) + c.one_minus_beta1 * g;
    const F32x16 second = c.beta2 * load(v + i) + c.one_minus_beta2 * (g * g);
    store(first, m + i);
    store(second, v + i);
    const F32x16 update = c.step_size * first / (Sqrt(second) * c.inverse_root2 + c.epsilon);
    const F32x16 weight = c.keep * load(master + i) - update;
    store(weight, master + i);
    if constexpr (sizeof(T) == 2) {
      store(weight, param + i);
    } else if (param != master) {
      store(weight, param + i);
    }
  });
}

}  // namespace

void CpuBackend::AdamW(const AdamWOptions& options, TensorView grad, TensorView master,
                       TensorView m, TensorView v, TensorView param) {
  const int64_t count = param.elements();
  if (master.empty()) {
    CHECK(param.dtype() == DType::kF32) << "rounded parameters need master weights";
    master = param;
  }
  for (const TensorView* operand : {&grad, &master, &m, &v}) {
    CHECK(operand->dtype() == DType::kF32 && operand->contiguous());
    CHECK_EQ(operand->elements(), count);
  }
  CHECK(param.contiguous());
  const Coefficients coefficients = MakeCoefficients(options);
  WithType(param.dtype(), [&]<typename T>(T) {
    ForRanges(pool_, count, kBlockElements, [&](int64_t begin, int64_t end, int) {
      UpdateRange(coefficients, end - begin, grad.as<float>() + begin, master.as<float>() + begin,
                  m.as<float>() + begin, v.as<float>() + begin, param.as<T>() + begin);
    });
  });
}

}  // namespace tessera
