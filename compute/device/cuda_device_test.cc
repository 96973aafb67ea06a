#include "compute/device/cuda_device.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace tessera {
namespace {

TEST(CudaDeviceTest, ADeviceThatIsNotThereIsRefused) {
  const absl::Status status = OpenCudaDevice(1000).status();
  if (CudaDeviceCount() == 0 && absl::IsFailedPrecondition(status)) {
    EXPECT_EQ(status.message(),
              "this program was built without CUDA: build it with --config=cuda to train on GPUs");
  } else {
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
  }
}

}  // namespace
}  // namespace tessera
