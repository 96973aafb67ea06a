#include "checkpoint/manager/failed_saves.h"

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

const absl::Status kFailed = absl::PermissionDeniedError("the token has expired");
const absl::Status kSkipped = absl::CancelledError("another one is in flight");

TEST(FailedSavesTest, SoManyInARowAreTooMany) {
  FailedSaves saves({.max_failed_saves = 2});
  saves.Add(kFailed, absl::Seconds(1));
  saves.Add(kSkipped, absl::Seconds(2));
  EXPECT_EQ(saves.Judge(absl::Hours(9)), SaveTrouble::kNone);
  saves.Add(absl::OkStatus(), absl::Seconds(3));
  saves.Add(kFailed, absl::Seconds(4));
  EXPECT_EQ(saves.Judge(absl::Hours(9)), SaveTrouble::kNone);
  saves.Add(kFailed, absl::Seconds(5));
  EXPECT_EQ(saves.Judge(absl::Hours(9)), SaveTrouble::kFailures);
  saves.Add(kSkipped, absl::Seconds(6));
  EXPECT_EQ(saves.Judge(absl::Hours(9)), SaveTrouble::kFailures);
  EXPECT_EQ(saves.in_a_row(), 2);
  EXPECT_EQ(saves.last(), kFailed);
}

// What Save() returns where another run has discarded it.
TEST(FailedSavesTest, AnAbortedSaveIsAFailure) {
  FailedSaves saves({.max_failed_saves = 1});
  const absl::Status gone = absl::AbortedError("a file of this save is gone");
  saves.Add(gone, absl::Seconds(1));
  EXPECT_EQ(saves.Judge(absl::Seconds(1)), SaveTrouble::kFailures);
  EXPECT_EQ(saves.last(), gone);
}

TEST(FailedSavesTest, ZeroIsAnyNumber) {
  FailedSaves saves({.max_failed_saves = 0});
  for (int i = 0; i < 1000; ++i) saves.Add(kFailed, absl::Seconds(i));
  EXPECT_EQ(saves.Judge(absl::Hours(9)), SaveTrouble::kNone);
}

TEST(FailedSavesTest, WantOfSpaceIsNoReasonToWait) {
  FailedSaves saves({.max_failed_saves = 0});
  saves.Add(absl::ResourceExhaustedError("full"), absl::Seconds(1));
  EXPECT_EQ(saves.Judge(absl::Seconds(1)), SaveTrouble::kNoRoom);
  saves.Add(absl::OkStatus(), absl::Seconds(2));
  EXPECT_EQ(saves.Judge(absl::Seconds(2)), SaveTrouble::kNone);
}

TEST(FailedSavesTest, TheTimeCountsFromTheLastCheckpointOrTheBeginning) {
  FailedSaves saves({.max_failed_saves = 0, .max_without_checkpoint = absl::Minutes(10)});
  EXPECT_EQ(saves.Judge(absl::Minutes(9)), SaveTrouble::kNone);
  EXPECT_EQ(saves.Judge(absl::Minutes(10)), SaveTrouble::kTooLong);
  saves.Add(absl::OkStatus(), absl::Minutes(9));
  saves.Add(kFailed, absl::Minutes(18));
  EXPECT_EQ(saves.Judge(absl::Minutes(18)), SaveTrouble::kNone);
  EXPECT_EQ(saves.Judge(absl::Minutes(19)), SaveTrouble::kTooLong);
}

}  // namespace
}  // namespace tessera::ckpt
