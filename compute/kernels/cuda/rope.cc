// Rotary positions: the pair (x1, x2) = (x[i], x[i + D/2]) is rotated by the angle of (t, i).

#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/elementwise.h"
#include "compute/kernels/cuda/operands.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {
namespace {

// Rows are (batch, position, head), columns the first half of a head.
template <typename T>
struct RopeBody {
  Rows<float> cos, sin;
  float sign;
  T* x;
  int64_t sequence, heads, half;
  int64_t batch_stride, sequence_stride, head_stride;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    const int64_t token = row / heads, head = row - token * heads;
    const int64_t batch = token / sequence, t = token - batch * sequence;
    T* const low = x + batch * batch_stride + t * sequence_stride + head * head_stride + column;
    float x1[kCount], x2[kCount], c[kCount], s[kCount];
    simt::LoadPack(low, x1);
    simt::LoadPack(low + half, x2);
    simt::LoadPack(cos.data + t * cos.stride + column, c);
    simt::LoadPack(sin.data + t * sin.stride + column, s);
    for (int i = 0; i < kCount; ++i) {
      const float sine = sign * s[i], first = x1[i];
      x1[i] = fmaf(first, c[i], -(x2[i] * sine));
      x2[i] = fmaf(x2[i], c[i], first * sine);
    }
    simt::StorePack(x1, low);
    simt::StorePack(x2, low + half);
  }
};

}  // namespace

void DeviceKernels::Rope(TensorView cos, TensorView sin, bool inverse, TensorView x) {
  const Operation here("Rope", cos, sin, x);
  CHECK_EQ(x.rank(), 4);
  const int64_t sequence = x.dim(1), heads = x.dim(2), half = x.dim(3) / 2;
  CHECK(x.dim(3) == 2 * half && x.stride(3) == 1) << ToString(x.shape());
  CHECK(cos.dtype() == DType::kF32 && sin.dtype() == DType::kF32);
  const Rows<float> cosines = AsRows<float>(cos), sines = AsRows<float>(sin);
  CHECK(cosines.columns == half && cosines.rows >= sequence);
  CHECK(sines.columns == half && sines.rows >= sequence);
  WithType(x.dtype(), [&]<typename T>(T) {
    const RopeBody<T> body = {cosines,    sines,       inverse ? -1.0f : 1.0f,
                              x.as<T>(),  sequence,    heads,
                              half,       x.stride(0), x.stride(1),
                              x.stride(2)};
    bool packs = AllowsPacks(cosines) && AllowsPacks(sines) && AllowsPacks(body.x);
    for (int d = 0; d < 3; ++d) packs = packs && x.stride(d) % kPackElements == 0;
    LaunchForEach(stream(), x.dim(0) * sequence * heads, half, packs, body);
  });
}

}  // namespace tessera::cuda
