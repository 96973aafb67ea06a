// Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019). One pass over memory.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "trainer/kernels/backend.h"
#include "trainer/kernels/cpu/adamw_coefficients.h"
#include "trainer/kernels/cuda/device_kernels.h"
#include "trainer/kernels/cuda/elementwise.h"
#include "trainer/kernels/cuda/operands.h"
#include "trainer/kernels/cuda/operation.h"
#include "trainer/kernels/cuda/simt.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera::cuda {
namespace {

template <typename T>
struct AdamWBody {
  AdamWCoefficients c;
  const float* grad;
  float* master;
  float* m;
  float* v;
  T* param;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t /*row*/, int64_t i) const {
    float g[kCount], first[kCount], second[kCount], weight[kCount];
    simt::LoadPack(grad + i, g);
    simt::LoadPack(m + i, first);
    simt::LoadPack(v + i, second);
    simt::LoadPack(master + i, weight);
    for (int j = 0; j < kCount; ++j) {
      const float gradient = g[j] * c.grad_scale;
      first[j] = fmaf(c.beta1, first[j], c.one_minus_beta1 * gradient);
      second[j] = fmaf(c.beta2, second[j], c.one_minus_beta2 * (gradient * gradient));
      const float root = fmaf(sqrtf(second[j]), c.inverse_root2, c.epsilon);
      weight[j] = fmaf(c.keep, weight[j], -(c.step_size * first[j] / root));
    }
    simt::StorePack(first, m + i);
    simt::StorePack(second, v + i);
    simt::StorePack(weight, master + i);
    if constexpr (std::is_same_v<T, float>) {
      if (param == master) return;
    }
    simt::StorePack(weight, param + i);
  }
};

}  // namespace

void DeviceKernels::AdamW(const AdamWOptions& options, TensorView grad, TensorView master,
                          TensorView m, TensorView v, TensorView param) {
  const Operation here("AdamW", grad, master, m, v);
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
  const AdamWCoefficients coefficients = MakeAdamWCoefficients(options);
  WithType(param.dtype(), [&]<typename T>(T) {
    const AdamWBody<T> body = {coefficients,  grad.as<float>(), master.as<float>(),
                               m.as<float>(), v.as<float>(),    param.as<T>()};
    const bool packs = count % kPackElements == 0 && AllowsPacks(body.grad) &&
                       AllowsPacks(body.master) && AllowsPacks(body.m) && AllowsPacks(body.v) &&
                       AllowsPacks(body.param);
    LaunchForEach(stream(), 1, count, packs, body);
  });
}

}  // namespace tessera::cuda
