// A job resumes from the newest valid checkpoint; only damage that all ranks see condemns one.

#include "checkpoint/manager/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/testing/test_state.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"
#include "storage/tiered/tiered_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kResumingRanks = 3;
constexpr int64_t kResumingRows = 300;  // a third on each rank
constexpr uint32_t kChunkBytes = 256;

// Owns nothing.
std::shared_ptr<Storage> Shared(Storage* storage) {
  return std::shared_ptr<Storage>(std::shared_ptr<Storage>(), storage);
}

// Three ranks, each with its own view of one storage.
class ResumeTest : public ::testing::Test {
 protected:
  explicit ResumeTest(bool renames_directories = true) : memory_(renames_directories) {
    for (int rank = 0; rank < kResumingRanks; ++rank) {
      views_.push_back(std::make_unique<FaultInjectingStorage>(memory_));
    }
  }

  static StateDict Part(int rank, std::vector<float>& elements) {
    ShardedTensor tensor = {.name = "weight", .global_shape = {kResumingRows}};
    tensor.shards = {Shard::Of(elements, {.global_offset = {rank * kResumingRows / kResumingRanks},
                                          .shape = {kResumingRows / kResumingRanks}})};
    return {{tensor}};
  }
  // Saves `step` with that number in every element. One process saves all of it, into one file.
  void Save(int64_t step, const std::string& root = "", bool finite = true, bool sane = true) {
    std::vector<float> elements(kResumingRows, static_cast<float>(step));
    Manifest metadata;
    metadata.mutable_trainer()->mutable_health()->set_state_is_finite(finite);
    metadata.mutable_trainer()->mutable_health()->set_loss_is_sane(sane);
    ASSERT_OK_AND_ASSIGN(
        const auto saved,
        SaveNow(memory_, {.step = step, .metadata = ToMetadata(metadata)}, OneTensor(elements),
                {.checksum_chunk_bytes = kChunkBytes}, {.choose_root = In(root)}));
  }
  std::string Data(const std::string& checkpoint) {
    const auto names = memory_.List(checkpoint);
    for (const std::string& name : names.value_or(std::vector<std::string>())) {
      if (name.starts_with("model-")) return absl::StrCat(checkpoint, "/", name);
    }
    return "(nothing)";
  }
  // Flips a byte near the end, which rank 2 alone loads.
  void Damage(const std::string& file) {
    std::string bytes = *ReadAll(memory_, file, 1 << 20);
    bytes[bytes.size() - 10] ^= 1;
    ASSERT_OK(memory_.Delete(file));
    ASSERT_OK(WriteAll(memory_, file, bytes));
  }
  void DamageManifest(const std::string& checkpoint) {
    ASSERT_OK(memory_.Delete(checkpoint + "/manifest.pb"));
    ASSERT_OK(WriteAll(memory_, checkpoint + "/manifest.pb", "no manifest"));
  }
  // Every file with its contents.
  std::map<std::string, std::string> Everything(const std::string& directory = "") {
    std::map<std::string, std::string> all;
    const std::vector<std::string> names = *memory_.List(directory);
    for (const std::string& name : names) {
      const std::string path = directory.empty() ? name : absl::StrCat(directory, "/", name);
      if (name.ends_with('/')) {
        all.merge(Everything(path.substr(0, path.size() - 1)));
      } else {
        all[path] = *ReadAll(memory_, path, 1 << 20);
      }
    }
    return all;
  }

  // Resumes on all ranks, which must return the same.
  absl::StatusOr<ResumeResult> Resume(const ResumeRules& options = {}) {
    std::vector<absl::StatusOr<ResumeResult>> results(kResumingRanks, absl::UnknownError("none"));
    std::vector<std::vector<float>> loaded(kResumingRanks,
                                           std::vector<float>(kResumingRows / kResumingRanks));
    loads_ = 0;
    RunRanks(kResumingRanks, [&](ProcessGroup& group) {
      const int rank = group.rank();
      Storage* const storage = others_.contains(rank) ? others_[rank] : views_[rank].get();
      results[rank] =
          ResumeFromLatest(Shared(storage), group, options, [&](const Checkpoint& checkpoint) {
            if (rank == 0) ++loads_;
            return checkpoint
                .Load(Part(rank, loaded[rank]), {.group = &group, .timeout = absl::Seconds(20)})
                .status();
          });
    });
    for (int rank = 0; rank < kResumingRanks; ++rank) {
      EXPECT_EQ(results[rank].status(), results[0].status()) << "rank " << rank;
      if (!results[0].ok() || !results[0]->checkpoint.has_value()) continue;
      EXPECT_EQ(results[rank]->checkpoint->directory(), results[0]->checkpoint->directory());
      const auto step = static_cast<float>(results[0]->checkpoint->step());
      EXPECT_EQ(loaded[rank], std::vector<float>(kResumingRows / kResumingRanks, step))
          << "rank " << rank;
    }
    return results[0];
  }
  // The step that is resumed from; -1: none.
  int64_t Step(const ResumeRules& options = {}) {
    const auto result = OrFail(Resume(options));
    skipped_ = result.skipped;
    return result.checkpoint.has_value() ? result.checkpoint->step() : -1;
  }
  // An error with this code and these texts, and no file changed.
  void ExpectEnds(absl::StatusCode code, const std::vector<std::string>& texts,
                  const ResumeRules& options = {}) {
    const auto before = Everything();
    const absl::Status status = Resume(options).status();
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& text : texts) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    }
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
    EXPECT_EQ(Everything(), before);
  }

  MemoryStorage memory_;
  std::vector<std::unique_ptr<FaultInjectingStorage>> views_;
  std::map<int, Storage*> others_;  // ranks that see another storage, or null: none
  std::vector<SkippedCheckpoint> skipped_;
  int loads_ = 0;
};

TEST_F(ResumeTest, TheNewestIsTakenAndNothingIsTouched) {
  EXPECT_EQ(Step(), -1);
  Save(4);
  Save(8);
  Save(6, "rolling-0");
  const auto before = Everything();
  EXPECT_EQ(Step(), 8);
  EXPECT_THAT(skipped_, IsEmpty());
  EXPECT_EQ(Everything(), before);
}

TEST_F(ResumeTest, DamageThatRank0SeesTooIsQuarantined) {
  for (const int64_t step : {4, 8, 12}) Save(step);
  Damage(Data("step-00000012"));  // found while loading
  DamageManifest("step-00000008");
  EXPECT_EQ(Step({.quarantine = false}), 4);
  ASSERT_EQ(skipped_.size(), 2u);
  EXPECT_EQ(skipped_[0].moved_to, "");
  EXPECT_EQ(Step(), 4);
  ASSERT_EQ(skipped_.size(), 2u);
  EXPECT_EQ(skipped_[0].directory, "step-00000012");
  EXPECT_EQ(skipped_[0].moved_to, "step-00000012.damaged");
  EXPECT_THAT(std::string(skipped_[0].reason.message()), HasSubstr("checksum of bytes ["));
  EXPECT_EQ(skipped_[1].moved_to, "step-00000008.damaged");
  EXPECT_EQ(Step(), 4);
  EXPECT_THAT(skipped_, IsEmpty());
}

// One rank's mount is empty, or it talks to another object store.
TEST_F(ResumeTest, ARankThatSeesNothingEndsTheRunAndCondemnsNothing) {
  for (const int64_t step : {4, 8, 12}) Save(step);
  MemoryStorage empty;
  others_[1] = &empty;
  ExpectEnds(absl::StatusCode::kUnavailable,
             {"step-00000012 reads well on rank 0, but could not be loaded (rank 1: Open ",
              "model-", "make sure that every rank sees the same files"});
  others_[2] = &empty;
  ExpectEnds(absl::StatusCode::kUnavailable, {"(ranks 1, 2: Open "});
}

TEST_F(ResumeTest, ARankThatReadsOtherBytesEndsTheRunAndCondemnsNothing) {
  for (const int64_t step : {4, 8}) Save(step);
  const std::string data = Data("step-00000008");
  const uint64_t bytes = ReadAll(memory_, data, 1 << 20)->size();
  views_[2]->CorruptReads(data, bytes - 10, std::byte{1});
  ExpectEnds(absl::StatusCode::kUnavailable, {"(rank 2: ", "checksum of bytes ["});
  views_[2]->ClearFaults();
  views_[2]->TruncateReads(data, bytes - 1);
  ExpectEnds(absl::StatusCode::kUnavailable, {"(rank 2: ", "size: expected"});
  views_[2]->ClearFaults();
  // What rank 0 finds damaged, too, is, whatever else a rank sees.
  views_[1]->CorruptReads(data, bytes / 2, std::byte{1});
  Damage(data);
  EXPECT_EQ(Step(), 4);
}

// A power loss leaves zeros in files that were not synced: in staged files, not in remote ones.
TEST_F(ResumeTest, DamagedStagedFilesAreNoDamagedCheckpoint) {
  for (const int64_t step : {4, 8}) Save(step);
  const std::string data = Data("step-00000008");
  const std::string sound = *ReadAll(memory_, data, 1 << 20);
  const auto before = Everything();
  for (const size_t damaged_from : {size_t{0}, sound.size() - 10}) {
    MemoryStorage staged;
    ASSERT_OK(staged.MakeDirectory("step-00000008"));
    ASSERT_OK(
        WriteAll(staged, data,
                 sound.substr(0, damaged_from) + std::string(sound.size() - damaged_from, '\0')));
    TieredStorage storage(std::make_unique<FaultInjectingStorage>(staged),
                          std::make_unique<FaultInjectingStorage>(memory_));
    for (int rank = 0; rank < kResumingRanks; ++rank) others_[rank] = &storage;
    EXPECT_EQ(Step(), 8);
    EXPECT_THAT(skipped_, IsEmpty());
    EXPECT_EQ(Everything(), before);
  }
}

// Rank 0 is one rank, too.
TEST_F(ResumeTest, WhatRank0AloneFindsDamagedEndsTheRunAndIsNotCondemned) {
  for (const int64_t step : {4, 8}) Save(step);
  const std::string data = Data("step-00000008"), manifest = "step-00000008/manifest.pb";
  const auto expect_ends = [&](const std::string& why, const ResumeRules& options = {}) {
    ExpectEnds(absl::StatusCode::kUnavailable,
               {"rank 1 reads memory:step-00000008 well, which rank 0 finds damaged (" + why,
                "make sure that every rank sees the same files there; nothing was renamed"},
               options);
  };
  views_[0]->TruncateReads(data, 100);
  expect_ends("model-");
  expect_ends("model-", {.quarantine = false});
  EXPECT_EQ(loads_, 1) << "of step 4";
  views_[1]->TruncateReads(data, 100);
  ExpectEnds(absl::StatusCode::kUnavailable, {"rank 2 reads memory:step-00000008 well"});
  views_[1]->ClearFaults();
  views_[0]->ClearFaults();
  views_[0]->TruncateReads(manifest, 10);
  expect_ends("manifest.pb: ");
  views_[0]->ClearFaults();
  // In the third that rank 0 loads.
  views_[0]->CorruptReads(data, ReadAll(memory_, data, 1 << 20)->size() - 4 * kResumingRows,
                          std::byte{1});
  expect_ends("model-");
  EXPECT_EQ(loads_, 2);

  // Where there is no other checkpoint, and where none is needed.
  ASSERT_OK(memory_.DeleteTree("step-00000004"));
  expect_ends("model-");
  expect_ends("model-", {.ignore_no_valid = true});
  views_[0]->ClearFaults();
  EXPECT_EQ(Step(), 8);
}

TEST_F(ResumeTest, ARankThatCannotLookWhetherRank0IsRightEndsTheRun) {
  for (const int64_t step : {4, 8}) Save(step);
  DamageManifest("step-00000008");
  views_[2]->FailWhere(
      [](const Operation& operation) { return operation.path == "step-00000008/manifest.pb"; },
      absl::UnavailableError("the storage failed"));
  ExpectEnds(absl::StatusCode::kUnavailable, {"rank 2: ", "the storage failed"});
}

TEST_F(ResumeTest, ARankWithoutTheFolderEndsTheRun) {
  for (const int64_t step : {4, 8}) Save(step);
  others_[1] = nullptr;
  ExpectEnds(absl::StatusCode::kUnavailable, {"rank 1: no folder, in which rank 0 finds"});
}

TEST_F(ResumeTest, AStepThatIsAskedForIsTakenAndLaterOnesAreAbandoned) {
  for (const int64_t step : {4, 6, 8}) Save(step);
  Save(7, "rolling-0");
  ASSERT_OK_AND_ASSIGN(const auto resumed, Resume({.step = 6}));
  EXPECT_EQ(resumed.checkpoint->step(), 6);
  EXPECT_THAT(resumed.abandoned,
              ElementsAre("step-00000008.abandoned", "rolling-0/step-00000007.abandoned"));
  // Nothing is renamed for a step that is not there, or is damaged.
  const absl::Status none = Resume({.step = 5}).status();
  EXPECT_EQ(ProblemOf(none), ResumeProblem::kNoSuchStep);
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("step 5: no such checkpoint in memory:; there are steps 4, 6"));
  ASSERT_OK(memory_.Delete("step-00000004/" + memory_.List("step-00000004")->back()));
  const absl::Status damaged = Resume({.step = 4}).status();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(std::string(damaged.message()), Not(HasSubstr("more")));
  DamageManifest("step-00000004");
  EXPECT_TRUE(absl::IsDataLoss(Resume({.step = 4}).status()));
  EXPECT_EQ(Step(), 6);
}

TEST_F(ResumeTest, ADamagedOriginalIsDamageWhateverRank0HasStaged) {
  for (const int64_t step : {4, 8}) Save(step);
  const std::string data = Data("step-00000008");
  MemoryStorage staged;
  ASSERT_OK(staged.MakeDirectory("step-00000008"));
  ASSERT_OK(WriteAll(staged, data, *ReadAll(memory_, data, 1 << 20)));
  Damage(data);
  TieredStorage storage(std::make_unique<FaultInjectingStorage>(staged),
                        std::make_unique<FaultInjectingStorage>(memory_));
  others_[0] = &storage;
  EXPECT_EQ(Step(), 4);
}

TEST_F(ResumeTest, AStorageThatFailsNeverCondemns) {
  for (const int64_t step : {4, 8}) Save(step);
  for (const auto kind : {OperationKind::kOpen, OperationKind::kReadAt}) {
    for (const absl::StatusCode code :
         {absl::StatusCode::kUnavailable, absl::StatusCode::kDeadlineExceeded,
          absl::StatusCode::kPermissionDenied, absl::StatusCode::kResourceExhausted}) {
      for (int rank = 0; rank < kResumingRanks; ++rank) {
        views_[rank]->FailWhere(
            [&, kind](const Operation& operation) {
              return operation.kind == kind && operation.path.starts_with("step-00000008/model-");
            },
            absl::Status(code, "the storage failed"));
        ExpectEnds(code, {"the storage failed"});
        if (rank > 0) ExpectEnds(code, {absl::StrCat("rank ", rank, ": ")});
        views_[rank]->ClearFaults();
      }
    }
  }
  // One rank finds damage, and rank 0 cannot look.
  MemoryStorage empty;
  others_[2] = &empty;
  int opened = 0;
  views_[0]->FailWhere(
      [&](const Operation& operation) {
        // Twice for the offer, once for the load, and then to look again.
        return operation.kind == OperationKind::kOpen &&
               operation.path == "step-00000008/manifest.pb" && ++opened > 3;
      },
      absl::UnavailableError("the storage failed"));
  ExpectEnds(absl::StatusCode::kUnavailable, {"the storage failed"});
}

// A file of another program, for instance, without a word on where in the checkpoint.
TEST_F(ResumeTest, OtherErrorsOfALoadLeadToNoOtherCheckpoint) {
  for (const int64_t step : {4, 8}) Save(step);
  for (const absl::Status& error :
       {absl::NotFoundError("no tokens.bin"), absl::FailedPreconditionError("another model"),
        absl::DataLossError("checksum")}) {
    std::vector<std::string> seen(kResumingRanks);
    RunRanks(kResumingRanks, [&](ProcessGroup& group) {
      int calls = 0;
      const auto result = ResumeFromLatest(Shared(views_[group.rank()].get()), group, {},
                                           [&](const Checkpoint&) { return ++calls, error; });
      seen[group.rank()] = absl::StrCat(calls, " ", result.status().ToString());
    });
    EXPECT_THAT(seen, ::testing::Each(absl::StrCat("1 ", error.ToString())));
  }
  EXPECT_EQ(Step(), 8);
}

TEST_F(ResumeTest, WhereNoneIsValidTheRunEndsUnlessItMayBeginAnew) {
  for (const int64_t step : {4, 8}) {
    Save(step);
    DamageManifest(absl::StrCat("step-0000000", step));
  }
  ExpectEnds(absl::StatusCode::kFailedPrecondition,
             {"no checkpoint in ",
              " is valid (step-00000008: ", "; step-00000004: ", "nothing was renamed"});
  EXPECT_EQ(ProblemOf(Resume().status()), ResumeProblem::kNoneValid);
  EXPECT_EQ(Step({.ignore_no_valid = true}), -1);
  ASSERT_EQ(skipped_.size(), 2u);
  EXPECT_EQ(skipped_[1].moved_to, "step-00000004.damaged");
  // The next start finds nothing but what was quarantined.
  ExpectEnds(absl::StatusCode::kFailedPrecondition,
             {"is valid (step-00000004.damaged; step-00000008.damaged)"});
  EXPECT_EQ(Step({.ignore_no_valid = true}), -1);
  Save(2);
  EXPECT_EQ(Step(), 2);
}

TEST_F(ResumeTest, ADivergedOneIsSkippedForTheNewestHealthyOne) {
  Save(2);
  Save(4);
  Save(6, "rolling-0", /*finite=*/true, /*sane=*/false);
  Save(8, "", /*finite=*/false);
  EXPECT_EQ(Step(), 4);
  ASSERT_EQ(skipped_.size(), 2u);
  EXPECT_EQ(skipped_[0].moved_to, "step-00000008.diverged");
  EXPECT_THAT(std::string(skipped_[0].reason.message()), HasSubstr("the state is not finite"));
  EXPECT_EQ(skipped_[1].moved_to, "rolling-0/step-00000006.diverged");
  EXPECT_EQ(loads_, 1);
}

TEST_F(ResumeTest, OnlyDivergedOnesEndTheRun) {
  Save(4, "", /*finite=*/false);
  ExpectEnds(absl::StatusCode::kFailedPrecondition,
             {"is valid (step-00000004: the run had diverged at step 4: the state is not finite)"});
  EXPECT_EQ(Step({.quarantine = false, .ignore_no_valid = true}), -1);
  EXPECT_EQ(Step({.ignore_no_valid = true}), -1);
  ExpectEnds(absl::StatusCode::kFailedPrecondition, {"step-00000004.diverged"});
}

class ObjectStoreResumeTest : public ResumeTest {
 protected:
  ObjectStoreResumeTest() : ResumeTest(/*renames_directories=*/false) {}
};

TEST_F(ObjectStoreResumeTest, WhatWasQuarantinedIsStillKnown) {
  Save(4);
  DamageManifest("step-00000004");
  ASSERT_OK_AND_ASSIGN(const std::string slot, EmptyRollingSlot(memory_));
  Save(6, slot, /*finite=*/false);
  EXPECT_EQ(Step({.ignore_no_valid = true}), -1);
  EXPECT_EQ(skipped_.size(), 2u);
  ExpectEnds(absl::StatusCode::kFailedPrecondition,
             {"step-00000004/manifest.pb.damaged", slot + "/step-00000006/manifest.pb.diverged"});
}

// This job stands still after its judgement; another one quarantines the step and saves it.
void ExpectAnotherCheckpointStays(MemoryStorage& memory, const std::function<void()>& save) {
  SingleProcessGroup alone;
  ASSERT_OK_AND_ASSIGN(const auto resumed,
                       ResumeFromLatest(Shared(&memory), alone, {}, [&](const Checkpoint&) {
                         EXPECT_OK(Removal::In(memory)->Quarantine("step-00000008", "damaged"));
                         save();
                         return absl::OkStatus();
                       }));
  ASSERT_EQ(resumed.skipped.size(), 1u);
  EXPECT_EQ(resumed.skipped[0].moved_to, "");
}

TEST_F(ResumeTest, AnotherCheckpointInThePlaceOfADamagedOneIsNotTouched) {
  for (const int64_t step : {4, 8}) Save(step);
  DamageManifest("step-00000008");
  ExpectAnotherCheckpointStays(memory_, [&] { Save(8); });
  EXPECT_EQ(Step(), 8);
}

TEST_F(ResumeTest, NothingIsRenamedByAJobThatHasLostItsLock) {
  class LostLock final : public FolderLock {
   public:
    LostLock() : FolderLock("") {}
    absl::Status Confirm() override { return absl::FailedPreconditionError("taken over"); }
  } lock;
  for (const int64_t step : {4, 8}) Save(step);
  DamageManifest("step-00000008");
  ExpectEnds(absl::StatusCode::kFailedPrecondition, {"taken over"}, {.lock = &lock});
}

TEST_F(ResumeTest, ADamagedOneThatCannotBeQuarantinedEndsTheRun) {
  for (const int64_t step : {4, 8}) Save(step);
  DamageManifest("step-00000008");
  views_[0]->FailWhere(
      [](const Operation& operation) { return operation.kind == OperationKind::kRename; },
      absl::PermissionDeniedError("read-only"));
  ExpectEnds(absl::StatusCode::kPermissionDenied, {"read-only"});
  views_[0]->ClearFaults();
  EXPECT_EQ(Step(), 4);
}

TEST_F(ResumeTest, WhatOnlyOtherRanksSeeEndsTheRun) {
  Save(4);
  MemoryStorage empty;
  others_[0] = &empty;
  ExpectEnds(absl::StatusCode::kUnavailable, {"rank 1 finds ", "step-00000004, and rank 0 finds"});
}

TEST_F(ResumeTest, ALaterStepThatCannotBeListedIsNotSkipped) {
  for (const int64_t step : {2, 4, 8}) Save(step);
  const auto unreadable = [&](const std::string& directory) {
    views_[0]->ClearFaults();
    views_[0]->FailWhere(
        [directory](const Operation& operation) {
          return operation.kind == OperationKind::kList && operation.path == directory;
        },
        absl::UnavailableError("the storage failed"));
  };
  unreadable("step-00000008");
  ExpectEnds(absl::StatusCode::kUnavailable, {"the storage failed"});
  unreadable("step-00000002");
  EXPECT_EQ(Step(), 8);
}

}  // namespace
}  // namespace tessera::ckpt
