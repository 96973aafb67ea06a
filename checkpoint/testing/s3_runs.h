#ifndef TESSERA_CHECKPOINT_TESTING_S3_RUNS_H_
#define TESSERA_CHECKPOINT_TESTING_S3_RUNS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/manager/resume.h"
#include "checkpoint/manager/retention.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gtest/gtest.h"
#include "storage/s3/s3_storage.h"
#include "storage/s3/testing/s3_server.h"

namespace tessera::ckpt {

// Several runs that save and delete in one place of an object store.
inline constexpr int kForever = 1 << 30;
inline constexpr char kPrefix[] = "runs/";

class S3FencingTest : public ::testing::Test {
 protected:
  explicit S3FencingTest(const s3::S3ServerOptions& options = {})
      : server_(options), storage_(MustOpen()) {}

  std::unique_ptr<Storage> MustOpen() {
    s3::ClientOptions client = server_.ForClient();
    client.stall_timeout = stall_timeout_;
    return OrFail(OpenS3Storage({.client = client, .prefix = "runs"}));
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
    EXPECT_NE(saved.message().find("has discarded this save"), absl::string_view::npos) << saved;
  }
  void DeleteAll() {
    const std::vector<CheckpointInfo> all = *ListForResume(*storage_);
    for (const CheckpointInfo& saved : all) EXPECT_OK(storage_->DeleteTree(saved.directory));
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

  s3::S3Server server_;
  absl::Duration stall_timeout_ = s3::ClientOptions().stall_timeout;  // of the next save
  std::shared_ptr<Storage> storage_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_TESTING_S3_RUNS_H_
