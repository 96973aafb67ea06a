// The declarations of nccl_library.h and nccl_api.h against NCCL's own header.

#include <gtest/gtest.h>
#include <nccl.h>

#include <cstddef>
#include <memory>

#include "base/testing.h"
#include "comm/nccl/nccl_api.h"
#include "comm/nccl/nccl_library.h"

namespace tessera {
namespace {

static_assert(sizeof(NcclApi::UniqueId) == sizeof(ncclUniqueId));
static_assert(NcclApi::kSuccess == static_cast<int>(ncclSuccess));
static_assert(NcclApi::kUnhandledCudaError == static_cast<int>(ncclUnhandledCudaError));
static_assert(NcclApi::kSystemError == static_cast<int>(ncclSystemError));
static_assert(NcclApi::kInternalError == static_cast<int>(ncclInternalError));
static_assert(NcclApi::kInvalidArgument == static_cast<int>(ncclInvalidArgument));
static_assert(NcclApi::kInvalidUsage == static_cast<int>(ncclInvalidUsage));
static_assert(NcclApi::kRemoteError == static_cast<int>(ncclRemoteError));
static_assert(NcclApi::kInProgress == static_cast<int>(ncclInProgress));
static_assert(nccl_abi::kInt8 == static_cast<int>(ncclInt8));
static_assert(nccl_abi::kNoColor == NCCL_SPLIT_NOCOLOR);
static_assert(offsetof(nccl_abi::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(nccl_abi::Config, cga_cluster_size) ==
              offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(nccl_abi::Config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(nccl_abi::Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(nccl_abi::Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(nccl_abi::Config, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(sizeof(nccl_abi::Config) <= sizeof(ncclConfig_t));

TEST(NcclAbiTest, DefaultsAreThoseOfTheInitializer) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const nccl_abi::Config ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.cga_cluster_size, theirs.cgaClusterSize);
  EXPECT_EQ(ours.min_ctas, theirs.minCTAs);
  EXPECT_EQ(ours.max_ctas, theirs.maxCTAs);
  EXPECT_EQ(ours.net_name, theirs.netName);
  EXPECT_EQ(ours.split_share, theirs.splitShare);
  EXPECT_EQ(ours.blocking, 0);
}

// Needs no GPU.
TEST(NcclAbiTest, TheToolkitsLibraryHasEveryFunction) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<NcclApi> nccl, OpenNccl(NcclPlaces()));
  EXPECT_EQ(nccl->ErrorString(NcclApi::kSuccess), "no error");
}

}  // namespace
}  // namespace tessera
