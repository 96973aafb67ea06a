// A checkpoint in an object store is overwritten on request: other runs do the same meanwhile, the
// run dies at any request, or the store cannot replace an object.

#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "checkpoint/manager/resume.h"
#include "checkpoint/testing/s3_runs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/s3/testing/s3_server.h"

namespace tessera::ckpt {
namespace {

using s3::S3ServerOptions;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using S3OverwritingTest = S3FencingTest;

// The run dies at each of its requests.
TEST_F(S3OverwritingTest, OverwritingMayBeInterruptedAnywhere) {
  int old = 0;
  bool done = false;
  for (int number = 0; !done; ++number) {
    SCOPED_TRACE(absl::StrCat("request ", number));
    ASSERT_LT(number, 100);
    ASSERT_OK(SaveStep(8, 8));
    server_.AddFault({.status = 403, .code = "AccessDenied", .skip = number, .times = kForever});
    const int before = server_.fault_count();
    const bool saved = Overwrite(8, 80).ok();
    done = server_.fault_count() == before;
    server_.ClearFaults();
    const float value = Value("step-00000008");
    EXPECT_TRUE(value == 80 || (value == 8 && !saved)) << value;
    old += value == 8;
    EXPECT_THAT(Steps(), ElementsAre(8));
    ASSERT_OK(Overwrite(8, 81));
    EXPECT_EQ(Value("step-00000008"), 81);
    EXPECT_EQ(DataOf("step-00000008").size(), 1);
    DeleteAll();
  }
  EXPECT_GT(old, 5);
}

// While the request that overwrites is on its way, others do the same, delete, and set aside.
TEST_F(S3OverwritingTest, ALateCommitOverACheckpointReplacesNoOther) {
  const std::vector<std::pair<std::function<void()>, float>> ways = {
      {[&] { ASSERT_OK(Overwrite(8, 81)); }, 81},
      {[&] {
         ASSERT_OK(SaveStep(12, 12));
         ASSERT_OK(Retain(1));
       },
       -1},
      {[&] { ASSERT_OK(AbandonLater(*storage_, 4)); }, -1},
      {[&] {
         ASSERT_OK(AbandonLater(*storage_, 4));
         ASSERT_OK(SaveStep(8, 82));
       },
       82}};
  for (const auto& [other, value] : ways) {
    SCOPED_TRACE(value);
    ASSERT_OK(SaveStep(8, 8));
    WhileCommitting("step-00000008", other, /*replaces_tombstone=*/true);
    const absl::Status late = Overwrite(8, 80);
    EXPECT_FALSE(late.ok());
    EXPECT_EQ(Value("step-00000008"), value) << late;
    Steps();
    ASSERT_OK(Overwrite(8, 83));
    EXPECT_EQ(Value("step-00000008"), 83);
    ASSERT_OK(storage_->DeleteTree("step-00000008"));
    DeleteAll();
  }
}

// The client gives the first request up, and it arrives when the checkpoint is overwritten again.
TEST_F(S3OverwritingTest, AnOverwritingCommitThatArrivesAgainIsRefused) {
  ASSERT_OK(SaveStep(8, 8));
  std::promise<void> overwritten;
  WhileCommitting(
      "step-00000008", [&] { overwritten.get_future().wait(); }, /*replaces_tombstone=*/true);
  stall_timeout_ = absl::Seconds(1);
  ASSERT_OK(Overwrite(8, 80));
  ASSERT_OK(Overwrite(8, 81));
  const std::string manifest = ManifestOf("step-00000008");
  overwritten.set_value();
  server_.WaitUntilIdle();
  EXPECT_EQ(ManifestOf("step-00000008"), manifest);
  EXPECT_EQ(Value("step-00000008"), 81);
}

// The checkpoint is overwritten while a request of its deletion is on its way.
TEST_F(S3OverwritingTest, ALateDeletionSparesWhatHasReplacedTheCheckpoint) {
  for (const char* method : {"GET", "DELETE"}) {
    SCOPED_TRACE(method);
    ASSERT_OK(SaveStep(8, 8));
    ASSERT_OK(SaveStep(12, 12));
    const int before = server_.fault_count();
    // The deletion reads the manifest a third time before it deletes it.
    server_.AddFault({.method = method,
                      .key_part = "step-00000008/manifest.pb",
                      .skip = method == std::string("GET") ? 2 : 0,
                      .meanwhile = [&] { ASSERT_OK(Overwrite(8, 81)); }});
    ASSERT_OK(CheckpointFolder(*storage_).Prune(1));
    EXPECT_EQ(server_.fault_count(), before + 1);
    EXPECT_EQ(Value("step-00000008"), 81);
    DeleteAll();
  }
}

// Stores that cannot replace a version, and say so or do not.
class S3WithoutReplacementTest : public S3FencingTest,
                                 public ::testing::WithParamInterface<S3ServerOptions> {
 protected:
  S3WithoutReplacementTest() : S3FencingTest(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(Stores, S3WithoutReplacementTest,
                         ::testing::Values(S3ServerOptions{.vendor = s3::Vendor::kAliyun},
                                           S3ServerOptions{.ignores_matches = true}));

TEST_P(S3WithoutReplacementTest, OverwritingIsRefusedByName) {
  ASSERT_OK(SaveStep(8, 8));
  const Ledger before = DataOf("step-00000008");
  const absl::Status refused = Overwrite(8, 80);
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("step-00000008"));
  EXPECT_EQ(Value("step-00000008"), 8);
  EXPECT_EQ(DataOf("step-00000008"), before);
  ASSERT_OK(Overwrite(9, 9)) << "nothing is there to be replaced";
}

}  // namespace
}  // namespace tessera::ckpt
