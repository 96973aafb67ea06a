#include "trainer/device/cuda_device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/device/training_device.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/host_copies.h"
#include "trainer/tensor/tensor.h"

namespace tessera {
namespace {

TEST(CudaDeviceTest, ADeviceThatIsNotThereIsRefused) {
  const absl::Status status = OpenCudaDevice(1000).status();
  if (CudaDeviceCount() == 0 && absl::IsFailedPrecondition(status)) {
    EXPECT_EQ(status.message(),
              "this program was built without CUDA: build it with --config=cuda to train on GPUs");
    EXPECT_EQ(SelectCudaDevice(0), status);
  } else {
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
  }
}

// A product and a kernel on every GPU that there is.
TEST(CudaDeviceTest, EveryDeviceComputes) {
  for (int index = 0; index < CudaDeviceCount(); ++index) {
    absl::StatusOr<std::unique_ptr<TrainingDevice>> opened = OpenCudaDevice(index);
    ASSERT_TRUE(opened.ok()) << opened.status();
    TrainingDevice& gpu = **opened;
    const Tensor a(DType::kF32, {16, 32}, gpu.device), b(DType::kF32, {32, 8}, gpu.device);
    const Tensor c(DType::kF32, {16, 8}, gpu.device);
    gpu.backend->Fill(a, 2);
    gpu.backend->Fill(b, 3);
    gpu.backend->MatMul(a, b, c, /*accumulate=*/false);
    std::vector<float> values(16 * 8);
    ASSERT_EQ(gpu.copies->ToHost(c.view().data(), c.view().bytes(), values.data()),
              absl::OkStatus());
    EXPECT_EQ(values, std::vector<float>(values.size(), 192.0f));
    EXPECT_EQ(gpu.backend->Synchronize(), absl::OkStatus());
  }
}

}  // namespace
}  // namespace tessera
