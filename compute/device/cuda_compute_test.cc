// A kernel, a product by cuBLASLt and a copy on every GPU that there is.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/testing.h"
#include "compute/device/cuda_device.h"
#include "compute/device/training_device.h"
#include "compute/kernels/backend.h"
#include "layout/dtype.h"
#include "tensor/host_copies.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

TEST(CudaComputeTest, EveryDeviceComputes) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU (needs: gpu)";
  for (int index = 0; index < CudaDeviceCount(); ++index) {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TrainingDevice> opened, OpenCudaDevice(index));
    TrainingDevice& gpu = *opened;
    const Tensor a(DType::kF32, {16, 32}, gpu.device), b(DType::kF32, {32, 8}, gpu.device);
    const Tensor c(DType::kF32, {16, 8}, gpu.device);
    gpu.backend->Fill({a, 2});
    gpu.backend->Fill({b, 3});
    gpu.backend->MatMul({a, b, c, /*accumulate=*/false});
    std::vector<float> values(16 * 8);
    ASSERT_EQ(gpu.copies->ToHost(c.view().data(), c.view().bytes(), values.data()),
              absl::OkStatus());
    EXPECT_EQ(values, std::vector<float>(values.size(), 192.0f));
    EXPECT_EQ(gpu.backend->Synchronize(), absl::OkStatus());
  }
}

}  // namespace
}  // namespace tessera
