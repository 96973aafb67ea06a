// out = x + bias, by row: the last step of a sum of products over shards.

#include <glog/logging.h>

#include <cstdint>

#include "trainer/kernels/cuda/device_kernels.h"
#include "trainer/kernels/cuda/elementwise.h"
#include "trainer/kernels/cuda/operands.h"
#include "trainer/kernels/cuda/simt.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera::cuda {
namespace {

template <typename T>
struct AddBiasBody {
  Rows<float> x;
  const T* bias;
  Rows<T> out;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    float values[kCount], addends[kCount];
    simt::LoadPack(x.data + row * x.stride + column, values);
    simt::LoadPack(bias + column, addends);
    for (int i = 0; i < kCount; ++i) values[i] += addends[i];
    simt::StorePack(values, out.data + row * out.stride + column);
  }
};

}  // namespace

void DeviceKernels::AddBias(TensorView x, TensorView bias, TensorView out) {
  CHECK(x.dtype() == DType::kF32 && x.shape() == out.shape())
      << ToString(x.shape()) << " to " << ToString(out.shape());
  if (bias.empty()) {
    if (x.data() != out.data()) Copy(x, out);
    return;
  }
  WithType(out.dtype(), [&]<typename T>(T) {
    const AddBiasBody<T> body = {AsRows<float>(x), bias.as<T>(), AsRows<T>(out)};
    CHECK(bias.dtype() == out.dtype() && bias.contiguous());
    CHECK_EQ(bias.elements(), body.x.columns);
    LaunchForEach(stream(), body.x.rows, body.x.columns,
                  AllowsPacks(body.x) && AllowsPacks(body.bias) && AllowsPacks(body.out), body);
  });
}

}  // namespace tessera::cuda
