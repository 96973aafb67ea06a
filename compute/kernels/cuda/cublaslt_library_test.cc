#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "compute/kernels/cuda/cublaslt_api.h"

namespace tessera {
namespace {

TEST(CublasLtLibraryTest, WithoutCublasLtOneSentenceSaysWhereItWasLookedFor) {
  const std::vector<std::string> places = {"/nowhere/libcublasLt.so.13", "libno-such-library.so.2"};
  EXPECT_EQ(OpenCublasLt(places).status(),
            absl::NotFoundError(
                "cuBLASLt (libcublasLt.so.13 or .12) is needed to train on GPUs and is not at "
                "/nowhere/libcublasLt.so.13, libno-such-library.so.2; install it (PyTorch's CUDA "
                "packages have it) or set TESSERA_CUBLASLT to its path"));
}

TEST(CublasLtLibraryTest, AnotherLibraryIsRefusedByTheFunctionThatItLacks) {
  const std::vector<std::string> places = {"libc.so.6"};
  EXPECT_EQ(OpenCublasLt(places).status(),
            absl::FailedPreconditionError("libc.so.6 has no function cublasLtGetVersion"));
}

TEST(CublasLtLibraryTest, TheNewerVersionComesFirst) {
  const std::vector<std::string> places = CublasLtPlaces();
  ASSERT_GE(places.size(), 4u);
  EXPECT_EQ(places[0], "libcublasLt.so.13");
}

TEST(CublasLtLibraryTest, TheFingerprintHasWhatForcesTf32) {
  ASSERT_EQ(unsetenv("NVIDIA_TF32_OVERRIDE"), 0);
  EXPECT_EQ(DescribeCublasLt(130100), "cuBLASLt 130100");
  ASSERT_EQ(setenv("NVIDIA_TF32_OVERRIDE", "0", 1), 0);
  EXPECT_EQ(DescribeCublasLt(130100), "cuBLASLt 130100 with NVIDIA_TF32_OVERRIDE=0");
  ASSERT_EQ(unsetenv("NVIDIA_TF32_OVERRIDE"), 0);
}

}  // namespace
}  // namespace tessera
