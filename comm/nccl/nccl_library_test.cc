#include "comm/nccl/nccl_library.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/status/status.h"

namespace tessera {
namespace {

TEST(NcclLibraryTest, WithoutNcclOneSentenceSaysWhereItWasLookedFor) {
  const std::vector<std::string> places = {"/nowhere/libnccl.so.2", "libno-such-library.so.2"};
  EXPECT_EQ(OpenNccl(places).status(),
            absl::NotFoundError(
                "NCCL (libnccl.so.2) is needed to train on GPUs and is not at "
                "/nowhere/libnccl.so.2, libno-such-library.so.2; install it (PyTorch's CUDA "
                "packages have it) or set TESSERA_NCCL to its path"));
}

TEST(NcclLibraryTest, AnotherLibraryIsRefusedByTheFunctionThatItLacks) {
  const std::vector<std::string> places = {"/nowhere/libnccl.so.2", "libc.so.6"};
  EXPECT_EQ(OpenNccl(places).status(),
            absl::FailedPreconditionError("libc.so.6 has no function ncclGetVersion"));
}

TEST(NcclLibraryTest, PlacesAreTheChosenOneOrTheUsualOnes) {
  unsetenv("TESSERA_NCCL");
  const std::vector<std::string> usual = NcclPlaces();
  ASSERT_GE(usual.size(), 2u);
  EXPECT_EQ(usual[0], "libnccl.so.2");
  EXPECT_EQ(std::string("/usr/local/cuda/lib64/libnccl.so.2"),
            usual[std::getenv("CUDA_HOME") == nullptr ? 1 : 2]);
  setenv("TESSERA_NCCL", "/opt/nccl/libnccl.so.2", 1);
  EXPECT_EQ(NcclPlaces(), std::vector<std::string>{"/opt/nccl/libnccl.so.2"});
  unsetenv("TESSERA_NCCL");
}

}  // namespace
}  // namespace tessera
