// Several runs that save, set aside and delete in one place of an object store, which has no
// directories to rename: a request of one is on its way while another one works. What is committed
// is whole, and what was set aside stays.

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/manager/resume.h"
#include "checkpoint/manager/retention.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/s3/s3_storage.h"
#include "storage/s3/testing/s3_server.h"

namespace tessera::ckpt {
namespace {

using s3::FaultKind;
using s3::S3Server;
using s3::S3ServerOptions;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kForever = 1 << 30;
constexpr char kPrefix[] = "runs/";

class S3FencingTest : public ::testing::Test {
 protected:
  explicit S3FencingTest(const S3ServerOptions& options = {})
      : server_(options), storage_(MustOpen()) {}

  std::unique_ptr<Storage> MustOpen() {
    return OrFail(OpenS3Storage({.client = server_.ForClient(), .prefix = "runs"}));
  }

  // Another run's save: `value` in every element.
  absl::Status SaveStep(int64_t step, float value, bool rolling = false,
                        std::function<absl::Status()> before_commit = nullptr) {
    std::vector<float> elements(64, value);
    const auto storage = MustOpen();
    SaveOptions options;
    options.before_commit = std::move(before_commit);
    const auto slot = [&](const PlannedSave&) { return EmptyRollingSlot(*storage); };
    return SaveNow(*storage, {.step = step}, OneTensor(elements), options,
                   {.choose_root = rolling ? ChooseRoot(slot) : nullptr})
        .status();
  }
  // Saves `value` over what is committed there.
  absl::Status Overwrite(int64_t step, float value) {
    std::vector<float> elements(64, value);
    return CheckpointFolder(MustOpen())
        .Save(step, OneTensor(elements), {.overwrite = true})
        .status();
  }
  absl::Status Retain(int64_t newest) {
    return Retention(*storage_, {.newest = newest}).Apply(absl::Now());
  }

  // While the request that commits is on its way, `other` happens, before it arrives. Where a
  // tombstone is replaced, one that tries whether the store obeys conditions comes before.
  void WhileCommitting(const std::string& directory, std::function<void()> other,
                       bool replaces_tombstone = false) {
    server_.AddFault({.method = "PUT",
                      .key_part = directory + "/manifest.pb",
                      .skip = replaces_tombstone ? 1 : 0,
                      .meanwhile = std::move(other)});
  }

  // The value in a committed checkpoint, of which everything is checked; -1: none is committed.
  float Value(const std::string& directory) {
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(*storage_, directory);
    if (absl::IsNotFound(checkpoint.status())) return -1;
    EXPECT_OK(checkpoint);
    if (!checkpoint.ok()) return -2;
    const auto verified = VerifyCheckpoint(*storage_, directory, {.digests = true});
    EXPECT_TRUE(verified.ok() && verified->damage.empty())
        << directory << ": "
        << (verified.ok() ? verified->damage[0].message : verified.status().ToString());
    const auto elements = checkpoint->LoadTensor<float>("weight");
    EXPECT_OK(elements);
    return elements.ok() ? elements->front() : -2;
  }
  // The steps of all committed checkpoints, newest first, each of them whole.
  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    const auto saved = OrFail(ListForResume(*storage_));
    for (const CheckpointInfo& checkpoint : saved) {
      steps.push_back(checkpoint.step);
      EXPECT_GE(Value(checkpoint.directory), 0) << checkpoint.directory;
    }
    return steps;
  }

  using Ledger = std::map<std::string, std::string>;
  // The objects of a directory, by their names; without those of the manifest.
  Ledger DataOf(const std::string& directory) {
    Ledger data;
    for (const std::string& key : server_.keys()) {
      if (key.starts_with(kPrefix + directory + "/model-")) data[key] = server_.contents(key);
    }
    return data;
  }
  std::string ManifestOf(const std::string& directory, const std::string& suffix = "") {
    return server_.contents(absl::StrCat(kPrefix, directory, "/manifest.pb", suffix));
  }
  void ExpectThere(const Ledger& ledger) {
    EXPECT_FALSE(ledger.empty());
    for (const auto& [key, contents] : ledger) EXPECT_EQ(server_.contents(key), contents) << key;
  }
  // The commit itself failed, not what the save looks at afterwards.
  static void ExpectFenced(const absl::Status& saved) {
    EXPECT_TRUE(absl::IsAborted(saved)) << saved;
    EXPECT_THAT(std::string(saved.message()), HasSubstr("has discarded this save"));
  }
  void DeleteAll() {
    const std::vector<CheckpointInfo> all = *ListForResume(*storage_);
    for (const CheckpointInfo& saved : all) {
      EXPECT_OK(storage_->DeleteTree(saved.directory));
    }
  }
  // Everything that a run deletes in the course of time.
  void GoOn(int64_t step) {
    ASSERT_OK(SaveStep(step, 1, /*rolling=*/true));
    ASSERT_OK(SaveStep(step + 1, 1, /*rolling=*/true));
    ASSERT_OK(SaveStep(step + 2, 1, /*rolling=*/true));
    ASSERT_OK(SaveStep(step + 3, 1));
    ASSERT_OK(SaveStep(step + 4, 1));
    ASSERT_OK(Retain(1));
    ASSERT_OK(CheckpointFolder(*storage_).Prune(1));
  }

  S3Server server_;
  std::shared_ptr<Storage> storage_;
};

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

TEST_F(S3FencingTest, ACheckpointIsOverwrittenOnRequest) {
  ASSERT_OK(SaveStep(8, 8));
  for (const float value : {80, 81}) {
    ASSERT_OK(Overwrite(8, value));
    EXPECT_EQ(Value("step-00000008"), value);
    EXPECT_EQ(DataOf("step-00000008").size(), 1);
  }
  // Also over a tombstone, and over nothing.
  ASSERT_OK(AbandonLater(*storage_, 4));
  ASSERT_OK(Overwrite(8, 82));
  ASSERT_OK(Overwrite(9, 9));
  EXPECT_THAT(Steps(), ElementsAre(9, 8));
}

// The run dies at each of its requests.
TEST_F(S3FencingTest, OverwritingMayBeInterruptedAnywhere) {
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
TEST_F(S3FencingTest, ALateCommitOverACheckpointReplacesNoOther) {
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
TEST_F(S3FencingTest, AnOverwritingCommitThatArrivesAgainIsRefused) {
  ASSERT_OK(SaveStep(8, 8));
  std::promise<void> overwritten;
  WhileCommitting(
      "step-00000008", [&] { overwritten.get_future().wait(); }, /*replaces_tombstone=*/true);
  ASSERT_OK(Overwrite(8, 80));
  ASSERT_OK(Overwrite(8, 81));
  overwritten.set_value();
  for (int i = 0; i < 20; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    ASSERT_EQ(Value("step-00000008"), 81);
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
