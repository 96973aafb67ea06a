// Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019). One pass over memory,
// whose bandwidth is the limit.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/adamw.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <cstdint>

#include "base/dispatch.h"
#include "compute/kernels/cpu/adamw_coefficients.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/vector-inl.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

template <typename T>
void UpdateRange(const AdamWCoefficients& c, int64_t count, const float* grad, float* master,
                 float* m, float* v, T* param) {
  ForLanes(count, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 g = load(grad + i) * c.grad_scale;
    const F32x16 first = MulAdd(c.beta1, load(m + i), c.one_minus_beta1 * g);
    const F32x16 second = MulAdd(c.beta2, load(v + i), c.one_minus_beta2 * (g * g));
    store(first, m + i);
    store(second, v + i);
    const F32x16 root = MulAdd(Sqrt(second), c.inverse_root2, c.epsilon);
    const F32x16 weight = MulSub(c.keep, load(master + i), c.step_size * first / root);
    store(weight, master + i);
    if constexpr (sizeof(T) == 2) {
      store(weight, param + i);
    } else if (param != master) {
      store(weight, param + i);
    }
  });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

void CpuBackend::Run(const ops::AdamW& op) {
  const int64_t count = op.param.elements();
  const TensorView& master = op.master.empty() ? op.param : op.master;
  const AdamWCoefficients coefficients = MakeAdamWCoefficients(op.options);
  WithType(op.param.dtype(), [&]<typename T>(T) {
    const auto update_range = TESSERA_CHOOSE(UpdateRange<T>);
    ForRanges(pool_, count, kBlockElements, [&](int64_t begin, int64_t end, int) {
      update_range(coefficients, end - begin, op.grad.as<float>() + begin,
                   master.as<float>() + begin, op.m.as<float>() + begin, op.v.as<float>() + begin,
                   op.param.as<T>() + begin);
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
