// Several runs that save, set aside and delete in one place of an object store, which has no
// directories to rename: a request of one is on its way while another one works. What is committed
// is whole, and what was set aside stays.

#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/manager/resume.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/s3_runs.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/s3/testing/s3_server.h"

namespace tessera::ckpt {
namespace {

using s3::FaultKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(S3FencingTest, WhatWasSetAsideStaysAndANewSaveOfTheStepStandsBesideIt) {
  ASSERT_OK(SaveStep(4, 4));
  ASSERT_OK(SaveStep(8, 8));
  ASSERT_OK(SaveStep(7, 7, /*rolling=*/true));
  const std::string rolling = ListForResume(*storage_)->at(1).directory;
  EXPECT_THAT(rolling, ::testing::MatchesRegex("rolling-0/[0-9a-f]{8}/step-00000007"));
  const Ledger data = DataOf("step-00000008"), rolling_data = DataOf(rolling);
  const std::string manifest = ManifestOf("step-00000008");
  EXPECT_THAT(*AbandonLater(*storage_, 4), ElementsAre("step-00000008/manifest.pb.abandoned",
                                                       rolling + "/manifest.pb.abandoned"));
  EXPECT_THAT(Steps(), ElementsAre(4));
  ASSERT_OK(SaveStep(8, 80));
  EXPECT_EQ(Value("step-00000008"), 80);
  ExpectThere(data);
  // Once more: the second one gets a name of its own.
  const Ledger again = DataOf("step-00000008");
  EXPECT_EQ(again.size(), 2 * data.size());
  EXPECT_THAT(*AbandonLater(*storage_, 4), ElementsAre("step-00000008/manifest.pb.abandoned-2"));
  ASSERT_OK(SaveStep(8, 81));
  GoOn(12);
  EXPECT_EQ(ManifestOf("step-00000008", ".abandoned"), manifest);
  EXPECT_EQ(Value("step-00000008"), -1) << "retention deletes the checkpoint beside it";
  ExpectThere(again);
  ExpectThere(rolling_data);
  // It is whole.
  for (const auto& [key, contents] : data) {
    server_.PutObject(absl::StrCat(kPrefix, "copy", key.substr(key.rfind('/'))), contents);
  }
  server_.PutObject(absl::StrCat(kPrefix, "copy/manifest.pb"), manifest);
  EXPECT_EQ(Value("copy"), 8);
}

TEST_F(S3FencingTest, NothingIsDeletedBesideASetAsideManifestThatCannotBeRead) {
  ASSERT_OK(SaveStep(4, 4));
  ASSERT_OK(SaveStep(8, 8));
  std::string manifest = ManifestOf("step-00000008");
  manifest[manifest.size() / 2] ^= 1;
  server_.PutObject(absl::StrCat(kPrefix, "step-00000008/manifest.pb"), manifest);
  SingleProcessGroup alone;
  const auto resumed =
      ResumeFromLatest(storage_, alone, {}, [](const Checkpoint&) { return absl::OkStatus(); });
  ASSERT_TRUE(resumed.ok() && resumed->checkpoint.has_value());
  EXPECT_EQ(resumed->checkpoint->step(), 4);
  ASSERT_OK(SaveStep(8, 80));
  const Ledger data = DataOf("step-00000008");
  GoOn(12);
  EXPECT_EQ(Value("step-00000008"), 80);
  EXPECT_EQ(ManifestOf("step-00000008", ".damaged"), manifest);
  ExpectThere(data);
}

// The program that sets a checkpoint aside dies at each of its requests.
TEST_F(S3FencingTest, SettingAsideMayBeInterruptedAnywhere) {
  ASSERT_OK(SaveStep(4, 4));
  bool done = false;
  for (int number = 0; !done; ++number) {
    SCOPED_TRACE(absl::StrCat("request ", number));
    ASSERT_LT(number, 100);
    ASSERT_OK(SaveStep(8, 8));
    const Ledger data = DataOf("step-00000008");
    const std::string manifest = ManifestOf("step-00000008");
    server_.AddFault({.status = 403, .code = "AccessDenied", .skip = number, .times = kForever});
    done = AbandonLater(*MustOpen(), 4).ok();
    server_.ClearFaults();
    if (ManifestOf("step-00000008", ".abandoned") != manifest) {
      EXPECT_THAT(Steps(), ElementsAre(8, 4));
      ASSERT_OK(AbandonLater(*storage_, 4));
    }
    EXPECT_THAT(Steps(), ElementsAre(4));
    // The step is saved again, and once more.
    ASSERT_OK(SaveStep(8, 80));
    EXPECT_EQ(Value("step-00000008"), 80);
    ExpectThere(data);
    ASSERT_OK(AbandonLater(*storage_, 4));
    GoOn(12);
    ExpectThere(data);
    int copies = 0;
    for (const std::string& key : server_.keys()) {
      copies += absl::StrContains(key, "step-00000008/manifest.pb.abandoned") &&
                server_.contents(key) == manifest;
    }
    EXPECT_EQ(copies, 1);
    ASSERT_OK(storage_->DeleteTree("step-00000008"));
    DeleteAll();
    ASSERT_OK(SaveStep(4, 4));
  }
}

TEST_F(S3FencingTest, ALateCommitFailsWhereRetentionHasDeletedItsData) {
  WhileCommitting("step-00000008", [&] {
    ASSERT_OK(SaveStep(12, 12));
    ASSERT_OK(Retain(1));
    EXPECT_THAT(DataOf("step-00000008"), IsEmpty());
  });
  const absl::Status late = SaveStep(8, 8);
  ExpectFenced(late);
  EXPECT_THAT(Steps(), ElementsAre(12));
  EXPECT_EQ(Value("step-00000008"), -1);
  // The tombstone does not count as damage, and a later save of that step can commit.
  const auto verified = VerifyCheckpoint(*storage_, "step-00000008", {});
  EXPECT_TRUE(absl::IsNotFound(verified.status())) << verified.status();
  EXPECT_THAT(verified.status().ToString(), HasSubstr("discarded"));
  ASSERT_OK(SaveStep(8, 80));
  EXPECT_EQ(Value("step-00000008"), 80);
  EXPECT_THAT(Steps(), ElementsAre(12, 8));
}

TEST_F(S3FencingTest, ALateCommitOverATombstoneFailsAfterAnotherDeletion) {
  WhileCommitting("step-00000008", [&] {
    ASSERT_OK(SaveStep(12, 12));
    ASSERT_OK(Retain(1));
  });
  ExpectFenced(SaveStep(8, 8));
  // The second attempt replaces the tombstone, which is no longer the one that it has found.
  WhileCommitting(
      "step-00000008",
      [&] {
        ASSERT_OK(Retain(1));
        EXPECT_THAT(DataOf("step-00000008"), IsEmpty());
      },
      /*replaces_tombstone=*/true);
  ExpectFenced(SaveStep(8, 80));
  EXPECT_THAT(Steps(), ElementsAre(12));
}

// The deletion stands between its tombstone and the data: what the commit finds is complete.
TEST_F(S3FencingTest, ACommitFailsAlsoBeforeItsDataIsDeleted) {
  ASSERT_OK(SaveStep(12, 12));
  for (int tombstones = 0; tombstones < 3; ++tombstones) {
    SCOPED_TRACE(tombstones);
    std::promise<void> deleting, continues;
    server_.AddFault({.method = "POST", .query = "delete", .meanwhile = [&] {
                        deleting.set_value();
                        continues.get_future().wait();
                      }});
    std::thread other;
    const absl::Status saved = SaveStep(8, 8, /*rolling=*/false, [&] {
      other = std::thread([&] { EXPECT_OK(Retain(1)); });
      deleting.get_future().wait();
      return absl::OkStatus();
    });
    continues.set_value();
    other.join();
    ExpectFenced(saved);
    EXPECT_THAT(Steps(), ElementsAre(12));
  }
}

// No checkpoint is committed that takes its place: the data of an attempt stays.
TEST_F(S3FencingTest, DataIsDeletedOnlyBehindANewerCheckpoint) {
  WhileCommitting("/step-00000008", [&] {
    EXPECT_OK(EmptyRollingSlot(*storage_));
    ASSERT_OK(Retain(1));
  });
  ASSERT_OK(SaveStep(8, 8, /*rolling=*/true));
  EXPECT_THAT(Steps(), ElementsAre(8));
}

TEST_F(S3FencingTest, ALateRollingCommitIsWholeOrFails) {
  for (int saves = 1; saves <= 4; ++saves) {
    SCOPED_TRACE(saves);
    WhileCommitting("/step-00000008", [&] {
      for (int64_t step = 8; step < 8 + saves; ++step) {
        ASSERT_OK(SaveStep(step, 80, /*rolling=*/true));
      }
    });
    const absl::Status late = SaveStep(8, 8, /*rolling=*/true);
    const std::vector<int64_t> steps = Steps();
    EXPECT_EQ(steps.front(), 8 + saves - 1);
    if (saves >= 3 || !late.ok()) ExpectFenced(late);
    DeleteAll();
  }
}

// Another run saves the same step, deletes the late one's data, and then gives its checkpoint up.
TEST_F(S3FencingTest, ALateCommitFailsAfterTheCheckpointThatTookItsPlaceIsGone) {
  const std::vector<std::function<void()>> ways = {[&] {
                                                     ASSERT_OK(SaveStep(12, 12));
                                                     ASSERT_OK(Retain(1));
                                                   },
                                                   [&] { ASSERT_OK(AbandonLater(*storage_, 4)); }};
  for (size_t way = 0; way < ways.size(); ++way) {
    SCOPED_TRACE(way);
    WhileCommitting("step-00000008", [&] {
      ASSERT_OK(SaveStep(8, 80));
      ways[way]();
    });
    ExpectFenced(SaveStep(8, 8));
    EXPECT_EQ(Value("step-00000008"), -1);
    Steps();
    ASSERT_OK(SaveStep(8, 81));
    EXPECT_EQ(Value("step-00000008"), 81);
    ASSERT_OK(storage_->DeleteTree("step-00000008"));
  }
}

TEST_F(S3FencingTest, ACommitDeletesTheDataOfRunsThatDied) {
  const std::string left = "step-00000008/model-00001-of-00001-0badcafe.safetensors";
  ASSERT_OK(WriteAll(*storage_, left, "a part"));
  ASSERT_OK(SaveStep(8, 80));
  EXPECT_EQ(Value("step-00000008"), 80);
  EXPECT_EQ(DataOf("step-00000008").size(), 1);
}

// The client gives the first request to commit up, and it arrives once the checkpoint that the
// second one has committed is deleted.
TEST_F(S3FencingTest, ACommitThatArrivesAgainAfterItsDeletionIsRefused) {
  std::promise<void> deleted;
  stall_timeout_ = absl::Seconds(1);
  WhileCommitting("step-00000008", [&] { deleted.get_future().wait(); });
  ASSERT_OK(SaveStep(8, 8));
  ASSERT_OK(SaveStep(12, 12));
  ASSERT_OK(Retain(1));
  deleted.set_value();
  for (int i = 0; i < 20; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    ASSERT_THAT(Steps(), ElementsAre(12));
  }
}

// Another program deletes without regard to any of this.
TEST_F(S3FencingTest, ACommitWithoutItsFilesIsTakenBack) {
  WhileCommitting("step-00000008", [&] {
    const Ledger data = DataOf("step-00000008");
    for (const auto& [key, contents] : data) {
      ASSERT_OK(storage_->Delete(key.substr(sizeof(kPrefix) - 1)));
    }
  });
  const absl::Status saved = SaveStep(8, 8);
  EXPECT_TRUE(absl::IsAborted(saved)) << saved;
  EXPECT_EQ(Value("step-00000008"), -1);
  ASSERT_OK(SaveStep(8, 80));
  EXPECT_EQ(Value("step-00000008"), 80);
}

TEST_F(S3FencingTest, TombstonesGoAfterADay) {
  WhileCommitting("step-00000008", [&] {
    ASSERT_OK(SaveStep(12, 12));
    ASSERT_OK(Retain(1));
  });
  ExpectFenced(SaveStep(8, 8));
  const std::string key = absl::StrCat(kPrefix, "step-00000008/manifest.pb");
  ASSERT_OK(Retain(1));
  std::string tombstone = server_.contents(key);
  const size_t at = tombstone.find_first_of("0123456789");
  ASSERT_NE(at, std::string::npos) << tombstone;
  tombstone.replace(at, 10, absl::StrCat(absl::ToUnixSeconds(absl::Now()) - 25 * 3600));
  server_.PutObject(key, tombstone);
  ASSERT_OK(Retain(1));
  for (const std::string& left : server_.keys()) {
    EXPECT_FALSE(absl::StrContains(left, "step-00000008")) << left;
  }
}

// Folders that releases before attempts had folders of their own have left.
TEST_F(S3FencingTest, RollingCheckpointsOfEarlierReleasesAreFoundAndReplaced) {
  std::vector<float> elements(64, 5);
  ASSERT_OK(
      SaveNow(*storage_, {.step = 5}, OneTensor(elements), {}, {.choose_root = In("rolling-0")}));
  ASSERT_OK(
      SaveNow(*storage_, {.step = 6}, OneTensor(elements), {}, {.choose_root = In("rolling-1")}));
  EXPECT_THAT(Steps(), ElementsAre(6, 5));
  ASSERT_OK(SaveStep(7, 7, /*rolling=*/true));
  EXPECT_THAT(Steps(), ElementsAre(7, 6));
  ASSERT_OK(SaveStep(8, 8, /*rolling=*/true));
  EXPECT_THAT(Steps(), ElementsAre(8, 7));
}

class S3WithoutMetadataTest : public S3FencingTest {
 protected:
  S3WithoutMetadataTest() : S3FencingTest({.keeps_metadata = false}) {}
};

TEST_F(S3WithoutMetadataTest, ACommitWhoseAnswerIsLostHasSucceeded) {
  server_.AddFault(
      {.kind = FaultKind::kLoseAnswer, .method = "PUT", .key_part = "/manifest.pb", .times = 2});
  ASSERT_OK(SaveStep(8, 8));
  EXPECT_EQ(Value("step-00000008"), 8);
  EXPECT_TRUE(absl::IsAlreadyExists(SaveStep(8, 80)));
  EXPECT_EQ(Value("step-00000008"), 8);
}

}  // namespace
}  // namespace tessera::ckpt
