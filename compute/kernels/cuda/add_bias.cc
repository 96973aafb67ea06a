// out = x + bias, by row: the last step of a sum of products over shards.

#include <glog/logging.h>

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

template <typename X, typename T, typename Out>
struct AddBiasBody {
  Rows<X> x;
  const T* bias;
  Rows<Out> out;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    float values[kCount], addends[kCount];
    simt::LoadPack(x.data + row * x.stride + column, values);
    simt::LoadPack(bias + column, addends);
    for (int i = 0; i < kCount; ++i) values[i] += addends[i];
    simt::StorePack(values, out.data + row * out.stride + column);
  }
};

template <typename X, typename T, typename Out>
void LaunchAddBias(simt::Stream stream, const TensorView& x, const TensorView& bias,
                   const TensorView& out) {
  const AddBiasBody<X, T, Out> body = {AsRows<X>(x), bias.as<T>(), AsRows<Out>(out)};
  CHECK(bias.contiguous());
  CHECK_EQ(bias.elements(), body.x.columns);
  LaunchForEach(stream, body.x.rows, body.x.columns,
                AllowsPacks(body.x) && AllowsPacks(body.bias) && AllowsPacks(body.out), body);
}

}  // namespace

void DeviceKernels::AddBiasTo(const TensorView& bias, const TensorView& x) {
  const Operation here("AddBiasTo", bias, x);
  WithType(x.dtype(), [&]<typename X>(X) {
    WithType(bias.dtype(), [&]<typename T>(T) { LaunchAddBias<X, T, X>(stream(), x, bias, x); });
  });
}

void DeviceKernels::AddBias(TensorView x, TensorView bias, TensorView out) {
  const Operation here("AddBias", x, bias, out);
  CHECK(x.dtype() == DType::kF32 && x.shape() == out.shape())
      << ToString(x.shape()) << " to " << ToString(out.shape());
  if (bias.empty()) {
    if (x.data() != out.data()) Copy(x, out);
    return;
  }
  WithType(out.dtype(), [&]<typename T>(T) {
    CHECK(bias.dtype() == out.dtype()) << DTypeName(bias.dtype());
    LaunchAddBias<float, T, T>(stream(), x, bias, out);
  });
}

}  // namespace tessera::cuda
