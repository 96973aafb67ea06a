#include <glog/logging.h>

#include <cstdint>

#include "compute/kernels/cuda/column_sums.h"
#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operands.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {
namespace {

template <typename T>
struct SumRowsBody {
  Rows<T> x;

  TESSERA_DEVICE void Add(int64_t row, int64_t column, float (&sums)[1]) const {
    sums[0] += simt::ToFloat(x.data[row * x.stride + column]);
  }
};

}  // namespace

void DeviceKernels::SumRows(TensorView x, TensorView out, bool accumulate) {
  const Operation here("SumRows", x, out);
  CHECK(out.dtype() == DType::kF32 && out.contiguous());
  WithType(x.dtype(), [&]<typename T>(T) {
    const SumRowsBody<T> body = {AsRows<T>(x)};
    const int64_t rows = body.x.rows, columns = body.x.columns;
    CHECK_EQ(out.elements(), columns);
    void* const partials = Scratch(ColumnSumsScratchBytes<1>(rows, columns));
    if (partials == nullptr) return;
    LaunchColumnSums<1>(stream(), body, rows, columns, accumulate, partials, {{out.as<float>()}});
  });
}

}  // namespace tessera::cuda
