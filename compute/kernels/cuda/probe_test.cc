#include "compute/kernels/cuda/probe.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

TEST(ProbeTest, LibrariesLink) {
  const CudaProbe probe = ProbeCuda();
  EXPECT_GE(probe.nccl_version, 20000);
  EXPECT_GE(probe.runtime_version, 11000);
  EXPECT_EQ(probe.error, "");
  EXPECT_EQ(probe.device_name.empty(), probe.devices == 0);
  EXPECT_EQ(ToString(probe).find("no device") != std::string::npos, probe.devices == 0)
      << ToString(probe);
}

TEST(ProbeTest, TheDeviceComputes) {
  const CudaProbe probe = ProbeCuda();
  if (probe.devices == 0) GTEST_SKIP() << "no device (needs: gpu)";
  EXPECT_EQ(probe.error, "");
  EXPECT_NE(ToString(probe).find("kernel ran"), std::string::npos) << ToString(probe);
}

TEST(ProbeTest, LineForPeople) {
  const CudaProbe none{.nccl_version = 22907, .runtime_version = 13010};
  EXPECT_EQ(ToString(none), "NCCL 2.29.7, CUDA 13.1, no device");
  CudaProbe broken = none;
  broken.devices = 2;
  broken.device_name = "Some GPU";
  broken.error = "kernel: out of memory";
  EXPECT_EQ(ToString(broken),
            "NCCL 2.29.7, CUDA 13.1, 2 x Some GPU, broken: kernel: out of memory");
}

}  // namespace
}  // namespace tessera
