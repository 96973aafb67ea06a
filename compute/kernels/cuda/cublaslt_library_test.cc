#include "compute/kernels/cuda/cublaslt_library.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

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

}  // namespace
}  // namespace tessera
