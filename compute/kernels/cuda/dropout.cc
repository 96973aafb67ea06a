#include <glog/logging.h>

#include <cstdint>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/elementwise.h"
#include "compute/kernels/cuda/operands.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/philox_device.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {
namespace {

template <typename T>
struct DropoutBody {
  Rows<T> x;
  DropoutKey key;
  int64_t first_sample, rows_per_sample, row_offset, global_columns, column_offset;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    const int64_t global_row = row_offset + row;
    const int64_t sample = global_row / rows_per_sample;
    const int64_t first =
        (global_row - sample * rows_per_sample) * global_columns + column_offset + column;
    DropoutFactors factors(key, first_sample + sample);
    T* const at = x.data + row * x.stride + column;
    float values[kCount];
    simt::LoadPack(at, values);
    for (int i = 0; i < kCount; ++i) {
      // Dropped elements become zero whatever their value, NaN included.
      const float factor = factors.Of(static_cast<uint64_t>(first + i));
      values[i] = factor == 0.0f ? 0.0f : values[i] * factor;
    }
    simt::StorePack(values, at);
  }
};

}  // namespace

void DeviceKernels::ApplyDropout(const Dropout& dropout, TensorView x) {
  const Operation here("ApplyDropout", x);
  if (dropout.probability == 0) return;
  CHECK_GE(dropout.rows_per_sample, 1);
  CHECK_GE(dropout.row_offset, 0);
  WithType(x.dtype(), [&]<typename T>(T) {
    const DropoutBody<T> body = {
        AsRows<T>(x),         MakeDropoutKey(dropout.stream, dropout.probability),
        dropout.first_sample, dropout.rows_per_sample,
        dropout.row_offset,   dropout.global_columns,
        dropout.column_offset};
    CHECK_GE(dropout.global_columns, dropout.column_offset + body.x.columns);
    LaunchForEach(stream(), body.x.rows, body.x.columns, AllowsPacks(body.x), body);
  });
}

}  // namespace tessera::cuda
