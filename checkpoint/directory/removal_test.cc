// A deletion or a quarantine takes only what it was meant for, and an interruption loses no
// checkpoint.

#include "checkpoint/directory/removal.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/testing.h"
#include "checkpoint/format/manifest_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/forwarding_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kStepName[] = "step-00000007";

// The parameter is whether the storage renames directories.
class RemovalTest : public testing::TestWithParam<bool> {
 protected:
  // Returns a manifest of one data file.
  static Manifest Of(const std::string& data) {
    Manifest manifest;
    manifest.mutable_trainer()->set_step(7);
    DataFile& file = *manifest.add_files();
    file.set_path(data);
    file.set_size_bytes(4);
    file.set_chunk_bytes(8);
    file.add_chunk_crc32c(0);
    return manifest;
  }
  static std::string Bytes(const std::string& data) { return OrFail(EncodeManifest(Of(data))); }

  void Write(const std::string& path, std::string_view contents = "data") {
    ASSERT_OK(storage_.MakeDirectory(FolderOf(path)));
    ASSERT_OK(WriteAll(storage_, path, contents));
  }
  // Makes a checkpoint of one data file.
  void Commit(const std::string& data, const std::string& dir = kStepName) {
    Write(JoinPath(dir, data));
    Write(JoinPath(dir, kManifestFileName), Bytes(data));
  }
  std::string Contents(const std::string& path) {
    return ReadAll(storage_, path, 1 << 20).value_or("(nothing)");
  }
  std::vector<std::string> Names(const std::string& dir = kStepName) {
    return storage_.List(dir).value_or(std::vector<std::string>());
  }
  bool HasTombstone() { return IsTombstone(Contents(absl::StrCat(kStepName, "/manifest.pb"))); }
  bool Delete(Storage& storage, bool committed,
              const std::optional<std::string>& judged = std::nullopt) {
    return OrFail(Removal::In(storage)->Delete(
        {.step = 7, .directory = kStepName, .committed = committed}, judged));
  }
  bool Delete(bool committed) { return Delete(storage_, committed); }
  // Makes operations of a kind fail, on paths with this end.
  static void Fail(FaultInjectingStorage& storage, OperationKind kind, absl::Status status,
                   std::string_view end = "") {
    storage.FailWhere(
        [kind, end](const Operation& operation) {
          return operation.kind == kind && operation.path.ends_with(end);
        },
        std::move(status));
  }
  Leftovers Discard() { return OrFail(removal_->DiscardLeftovers(kStepName)); }

  MemoryStorage storage_{GetParam()};
  const std::unique_ptr<Removal> removal_ = Removal::In(storage_);
};

// In a storage with, and in one without, directories that are renamed.
class AnyRemovalTest : public RemovalTest {};
INSTANTIATE_TEST_SUITE_P(Renames, AnyRemovalTest, testing::Bool());
class RenamingRemovalTest : public RemovalTest {};
INSTANTIATE_TEST_SUITE_P(Renames, RenamingRemovalTest, testing::Values(true));
class FencingRemovalTest : public RemovalTest {};
INSTANTIATE_TEST_SUITE_P(Renames, FencingRemovalTest, testing::Values(false));

TEST_P(AnyRemovalTest, NamesAreFreeWhereDirectoriesAreRenamed) {
  EXPECT_EQ(removal_->frees_names(), GetParam());
}

TEST_P(AnyRemovalTest, WhatIsQuarantinedHasANameOfItsOwnAndStays) {
  const std::string quarantined =
      GetParam() ? "step-00000007." : absl::StrCat(kStepName, "/manifest.pb.");
  Write(absl::StrCat(quarantined, "damaged"), "of another program");
  for (const char* const word : {"damaged-2", "damaged-3", "damaged-4"}) {
    const std::string data = absl::StrCat("model-", word);
    Commit(data);
    EXPECT_EQ(*removal_->Quarantine(kStepName, "damaged"), absl::StrCat(quarantined, word));
    EXPECT_FALSE(*IsCommitted(storage_, kStepName));
    const std::string manifest = absl::StrCat(quarantined, word, GetParam() ? "/manifest.pb" : "");
    EXPECT_EQ(Contents(manifest), Bytes(data));
  }
}

TEST_P(AnyRemovalTest, ACheckpointThatIsNotExpectedIsNotQuarantined) {
  Commit("model-a");
  const std::string other = Bytes("model-b"), own = Bytes("model-a");
  EXPECT_TRUE(absl::IsAborted(removal_->Quarantine(kStepName, "damaged", &other).status()));
  EXPECT_TRUE(*IsCommitted(storage_, kStepName));
  EXPECT_THAT(Names(), ElementsAre("manifest.pb", "model-a"));
  EXPECT_THAT(Names(""), ElementsAre("step-00000007/"));
  EXPECT_OK(removal_->Quarantine(kStepName, "damaged", &own));
  EXPECT_FALSE(*IsCommitted(storage_, kStepName));
}

TEST_P(AnyRemovalTest, OnlyTheManifestThatWasCommittedIsTakenBack) {
  ASSERT_OK(storage_.MakeDirectory(kStepName));
  EXPECT_EQ(*removal_->TakeBack(kStepName, Bytes("model-a")), !GetParam()) << "nothing is there";
  Commit("model-b");
  EXPECT_TRUE(*removal_->TakeBack(kStepName, Bytes("model-a")));
  EXPECT_TRUE(*IsCommitted(storage_, kStepName));
  EXPECT_TRUE(*removal_->TakeBack(kStepName, Bytes("model-b")));
  EXPECT_FALSE(*IsCommitted(storage_, kStepName));
  EXPECT_EQ(HasTombstone(), !GetParam());
}

// Another process replaces the manifest after it was read.
TEST_P(AnyRemovalTest, WhatReplacesAManifestThatIsTakenBackStays) {
  class LateStorage final : public ForwardingStorage {
   public:
    LateStorage(Storage& base, std::string manifest)
        : ForwardingStorage(base), manifest_(std::move(manifest)) {}
    absl::StatusOr<VersionedContents> Read(std::string_view path, uint64_t max_bytes) override {
      auto found = ForwardingStorage::Read(path, max_bytes);
      EXPECT_OK(WriteAll(base(), path, manifest_));
      return found;
    }

   private:
    const std::string manifest_;
  };
  Commit("model-a");
  LateStorage late(storage_, Bytes("model-b"));
  EXPECT_TRUE(*Removal::In(late)->TakeBack(kStepName, Bytes("model-a")));
  EXPECT_EQ(Contents(absl::StrCat(kStepName, "/manifest.pb")), Bytes("model-b"));
  EXPECT_THAT(Names(""), ElementsAre("step-00000007/"));
}

TEST_P(AnyRemovalTest, FilesOfAnAttemptGoUnlessAQuarantinedManifestHasThem) {
  Commit("model-a");
  ASSERT_OK(storage_.Rename(absl::StrCat(kStepName, "/manifest.pb"),
                            absl::StrCat(kStepName, "/manifest.pb.damaged")));
  Write(absl::StrCat(kStepName, "/model-b"));
  Write(absl::StrCat(kStepName, "/model-c"));
  ASSERT_OK(removal_->DeleteAttempt(kStepName, Of("model-a")));
  ASSERT_OK(removal_->DeleteAttempt(kStepName, Of("model-b")));
  ASSERT_OK(removal_->DeleteAttempt(kStepName, Of("model-none")));
  EXPECT_THAT(Names(), ElementsAre("manifest.pb.damaged", "model-a", "model-c"));
  // Nothing tells what belongs to this one.
  Write(absl::StrCat(kStepName, "/manifest.pb.damaged"), "garbage");
  ASSERT_OK(removal_->DeleteAttempt(kStepName, Of("model-c")));
  EXPECT_THAT(Names(), ElementsAre("manifest.pb.damaged", "model-a", "model-c"));
  EXPECT_FALSE(Delete(/*committed=*/false));
  EXPECT_EQ(Names().size(), 3);
}

TEST_P(AnyRemovalTest, WhatIsBesideTheQuarantinedGoesWithACheckpoint) {
  Commit("model-a");
  ASSERT_OK(storage_.Rename(absl::StrCat(kStepName, "/manifest.pb"),
                            absl::StrCat(kStepName, "/manifest.pb.damaged")));
  Write(absl::StrCat(kStepName, "/manifest.sig.damaged"));
  Write(absl::StrCat(kStepName, "/manifest.sig"));
  Commit("model-b");
  EXPECT_TRUE(Delete(/*committed=*/true));
  EXPECT_THAT(Names(), ElementsAre("manifest.pb.damaged", "manifest.sig.damaged", "model-a"));
}

TEST_P(AnyRemovalTest, FilesOfOtherAttemptsGoAndWhatIsKeptStays) {
  Commit("model-a");
  const std::vector<std::string> alone = Names();
  ASSERT_OK(removal_->DeleteOtherAttempts(kStepName, Of("model-a"), alone));
  EXPECT_EQ(Names(), alone) << "nothing is to be fenced";
  Write(absl::StrCat(kStepName, "/model-b"));
  Write(absl::StrCat(kStepName, "/manifest.sig"));
  const std::vector<std::string> names = Names();
  Write(absl::StrCat(kStepName, "/model-later"));
  ASSERT_OK(removal_->DeleteOtherAttempts(kStepName, Of("model-a"), names));
  std::vector<std::string> expected = {"manifest.pb", "model-a", "model-later"};
  if (!GetParam()) expected.insert(expected.begin() + 1, "manifest.pb.fenced");
  EXPECT_EQ(Names(), expected);
}

TEST_P(AnyRemovalTest, ACommittedCheckpointIsNotDiscarded) {
  Commit("model-a");
  EXPECT_EQ(Discard(), Leftovers::kCommitted);
  EXPECT_THAT(Names(), ElementsAre("manifest.pb", "model-a"));
  EXPECT_TRUE(Delete(/*committed=*/true));
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_TRUE(Delete(/*committed=*/true)) << "another process was faster";
  EXPECT_EQ(Discard(), Leftovers::kNone);
}

TEST_P(AnyRemovalTest, ACommitBeforeTheDeletionOfAnAttemptSavesIt) {
  Commit("model-a");
  EXPECT_FALSE(Delete(/*committed=*/false));
  EXPECT_TRUE(*IsCommitted(storage_, kStepName));
  EXPECT_EQ(Contents(absl::StrCat(kStepName, "/model-a")), "data");
  EXPECT_THAT(Names(""), ElementsAre("step-00000007/"));
}

TEST_P(AnyRemovalTest, ACheckpointIsDeletedAsLongAsItIsTheOneThatWasJudged) {
  const std::string manifest = absl::StrCat(kStepName, "/manifest.pb");
  Commit("model-a");
  const std::string judged = OrFail(ManifestIdentity(storage_, kStepName));
  EXPECT_EQ(judged, ManifestIdentity(Bytes("model-a")));
  Commit("model-b");
  EXPECT_FALSE(Delete(storage_, /*committed=*/true, judged));
  EXPECT_THAT(Names(), ElementsAre("manifest.pb", "model-a", "model-b"));
  EXPECT_THAT(Names(""), ElementsAre("step-00000007/"));
  ASSERT_OK(storage_.Delete(manifest));
  EXPECT_EQ(OrFail(ManifestIdentity(storage_, kStepName)), "");
  EXPECT_FALSE(Delete(storage_, /*committed=*/true, judged)) << "another process has deleted it";
  Commit("model-a");
  EXPECT_TRUE(Delete(storage_, /*committed=*/true, judged));
  EXPECT_EQ(Contents(absl::StrCat(kStepName, "/model-a")), "(nothing)");
  EXPECT_FALSE(*IsCommitted(storage_, kStepName));
}

// A manifest that the disk cannot return is known by that.
TEST_P(AnyRemovalTest, AManifestThatCannotBeReadIsDeletedWithItsCheckpoint) {
  Commit("model-a");
  FaultInjectingStorage faulty(storage_);
  Fail(faulty, OperationKind::kReadAt, absl::UnavailableError("no answer"));
  EXPECT_TRUE(absl::IsUnavailable(ManifestIdentity(faulty, kStepName).status()));
  faulty.ClearFaults();
  Fail(faulty, OperationKind::kReadAt, absl::DataLossError("unreadable"));
  const std::string judged = OrFail(ManifestIdentity(faulty, kStepName));
  EXPECT_FALSE(Delete(storage_, /*committed=*/true, judged)) << "it can be read again";
  EXPECT_EQ(Names().size(), 2);
  if (GetParam()) EXPECT_TRUE(Delete(faulty, /*committed=*/true, judged));
}

// As a manifest that its owner has protected.
TEST_P(AnyRemovalTest, ACheckpointThatCannotBeDeletedStaysInItsPlace) {
  Commit("model-a");
  FaultInjectingStorage faulty(storage_);
  Fail(faulty, OperationKind::kDelete, absl::PermissionDeniedError("protected"), "/manifest.pb");
  const auto deleted = Removal::In(faulty)->Delete(
      {.step = 7, .directory = kStepName, .committed = true}, ManifestIdentity(Bytes("model-a")));
  EXPECT_TRUE(absl::IsPermissionDenied(deleted.status())) << deleted.status();
  EXPECT_TRUE(*IsCommitted(storage_, kStepName));
  EXPECT_THAT(Names(), ElementsAre("manifest.pb", "model-a"));
  if (!GetParam()) return;
  EXPECT_EQ(faulty.operations().back().kind, OperationKind::kSyncDirectory) << "of its name";
  const auto taken = Removal::In(faulty)->TakeBack(kStepName, Bytes("model-a"));
  EXPECT_TRUE(absl::IsPermissionDenied(taken.status())) << taken.status();
  EXPECT_TRUE(*IsCommitted(storage_, kStepName));
}

TEST_P(AnyRemovalTest, WithoutAJudgementAManifestNeedNotBeReadable) {
  Commit("model-a");
  FaultInjectingStorage faulty(storage_);
  Fail(faulty, OperationKind::kReadAt, absl::UnavailableError("no answer"));
  if (GetParam()) EXPECT_TRUE(Delete(faulty, /*committed=*/true));
}

// A storage that replaces no versions need not have any.
TEST_P(AnyRemovalTest, NoVersionIsAnyVersion) {
  if (!GetParam()) return;
  Write("file");
  EXPECT_OK(storage_.DeleteVersion("file", "another"));
  EXPECT_THAT(Names(""), ElementsAre("file"));
  EXPECT_OK(storage_.DeleteVersion("file", ""));
  EXPECT_THAT(Names(""), ElementsAre());
}

TEST_P(AnyRemovalTest, NothingIsReadWhereThereAreNoLocks) {
  Commit("model-a");
  EXPECT_TRUE(*RemoveUnlessRead(storage_, *removal_, {.step = 7, .directory = kStepName}));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_P(RenamingRemovalTest, AQuarantineRenamesOnlyWhatIsExpectedAndTellsIfItCannot) {
  Commit("model-a");
  FaultInjectingStorage faulty(storage_);
  const std::string other = Bytes("model-b");
  EXPECT_FALSE(Removal::In(faulty)->Quarantine(kStepName, "damaged", &other).ok());
  for (const Operation& operation : faulty.operations()) {
    EXPECT_NE(operation.kind, OperationKind::kRename) << operation;
  }
  Fail(faulty, OperationKind::kRename, absl::PermissionDeniedError("denied"));
  const auto moved = Removal::In(faulty)->Quarantine(kStepName, "damaged");
  EXPECT_TRUE(absl::IsPermissionDenied(moved.status())) << moved.status();
  EXPECT_TRUE(*IsCommitted(storage_, kStepName));
  faulty.ClearFaults();
  EXPECT_OK(Removal::In(faulty)->Quarantine(kStepName, "damaged"));
  EXPECT_EQ(faulty.operations().back().kind, OperationKind::kSyncDirectory);
}

TEST_P(RenamingRemovalTest, RemainsOfASaveGoWithTheirDirectory) {
  Write(absl::StrCat(kStepName, "/model-a"));
  EXPECT_EQ(Discard(), Leftovers::kNone);
  EXPECT_THAT(Names(""), IsEmpty());
}

// A directory from an object store has no late writers, and so its tombstone can go.
TEST_P(RenamingRemovalTest, ADirectoryWithQuarantinedFilesIsUsedAgain) {
  Write(absl::StrCat(kStepName, "/manifest.pb.damaged"), Bytes("model-a"));
  Write(absl::StrCat(kStepName, "/model-a"));
  EXPECT_EQ(Discard(), Leftovers::kKept);
  Write(absl::StrCat(kStepName, "/manifest.pb"), MakeTombstone());
  ASSERT_OK(MarkAsFenced(storage_, kStepName));
  EXPECT_EQ(Discard(), Leftovers::kKept);
  EXPECT_EQ(Contents(absl::StrCat(kStepName, "/manifest.pb")), "(nothing)");
  // Its quarantine was interrupted.
  Write(absl::StrCat(kStepName, "/manifest.pb"), Bytes("model-a"));
  EXPECT_EQ(Discard(), Leftovers::kKept);
  EXPECT_EQ(Contents(absl::StrCat(kStepName, "/manifest.pb")), "(nothing)");
  EXPECT_EQ(Contents(absl::StrCat(kStepName, "/model-a")), "data");
}

// As on a network file system that keeps a file as long as a process has it open.
TEST_P(RenamingRemovalTest, WhatCannotBeDeletedIsInNoSavesWay) {
  FaultInjectingStorage faulty(storage_);
  Fail(faulty, OperationKind::kDeleteTree, absl::UnavailableError("busy"), ".discarded-00000001");
  Write("step-00000001.discarded-00000001/model-a");
  Write("step-00000002.discarded-00000002/model-a");
  EXPECT_TRUE(absl::IsUnavailable(SettleDiscarded(faulty, "")));
  EXPECT_THAT(Names(""), ElementsAre("step-00000001.discarded-00000001/"));
  EXPECT_EQ(OrFail(Removal::In(faulty)->DiscardLeftovers(kStepName)), Leftovers::kNone);
  faulty.ClearFaults();
  Fail(faulty, OperationKind::kDeleteTree, absl::UnavailableError("busy"));
  Write(absl::StrCat(kStepName, "/model-a"));
  EXPECT_EQ(OrFail(Removal::In(faulty)->DiscardLeftovers(kStepName)), Leftovers::kNone);
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_P(RenamingRemovalTest, InterruptedDeletionsAreSettled) {
  Write("run/step-00000001.discarded-00000001/model-a");
  Commit("model-a", "run/step-00000002.discarded-00000001");
  Commit("model-a", "run/step-00000003.discarded-00000001");
  Commit("model-b", "run/step-00000003");
  Commit("model-a", "run/step-00000004.discarded-00000001");
  Write("run/step-00000004/model-b");
  Write("run/step-00000005.discarded-00000001/manifest.pb.damaged");
  Write("run/other.discarded-00000001/model-a");
  Write("run/step-00000006.damaged/model-a");
  ASSERT_OK(SettleDiscarded(storage_, "run"));
  EXPECT_THAT(Names("run"),
              ElementsAre("other.discarded-00000001/", "step-00000002/", "step-00000003.abandoned/",
                          "step-00000003/", "step-00000004.discarded-00000001/", "step-00000004/",
                          "step-00000005/", "step-00000006.damaged/"));
  EXPECT_TRUE(*IsCommitted(storage_, "run/step-00000002"));
  EXPECT_EQ(Contents("run/step-00000003/manifest.pb"), Bytes("model-b"));
  EXPECT_OK(SettleDiscarded(storage_, "none"));
}

TEST_P(FencingRemovalTest, RemainsOfASaveAreKept) {
  EXPECT_EQ(Discard(), Leftovers::kNone);
  Write(absl::StrCat(kStepName, "/model-a"));
  EXPECT_EQ(Discard(), Leftovers::kKept);
  Write(absl::StrCat(kStepName, "/manifest.pb"), MakeTombstone());
  ASSERT_OK(MarkAsFenced(storage_, kStepName));
  EXPECT_EQ(Discard(), Leftovers::kKept);
  EXPECT_EQ(Names().size(), 3);
}

TEST_P(FencingRemovalTest, AnInterruptedQuarantineIsCompletedBeforeASave) {
  Commit("model-a");
  Write(absl::StrCat(kStepName, "/manifest.pb.damaged"), Bytes("model-a"));
  EXPECT_EQ(Discard(), Leftovers::kKept);
  EXPECT_TRUE(HasTombstone());
  EXPECT_EQ(Names().size(), 4);
}

TEST_P(FencingRemovalTest, DataOfAnAttemptGoesBehindATombstone) {
  Write(absl::StrCat(kStepName, "/model-a"));
  EXPECT_TRUE(Delete(/*committed=*/false));
  EXPECT_TRUE(HasTombstone());
  EXPECT_THAT(Names(), ElementsAre("manifest.pb", "manifest.pb.fenced"));
}

// Another process finds an old fence that can go at the same time.
TEST_P(FencingRemovalTest, ATombstoneIsNeverWithoutItsFence) {
  class OthersForget final : public ForwardingStorage {
   public:
    using ForwardingStorage::ForwardingStorage;
    absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                      const WriteCondition& condition) override {
      if (IsTombstone(contents)) EXPECT_OK(base().Delete(std::string(path) + ".fenced"));
      return ForwardingStorage::Write(path, contents, condition);
    }
  };
  Write(absl::StrCat(kStepName, "/model-a"));
  OthersForget shared(storage_);
  EXPECT_TRUE(Delete(shared, /*committed=*/false));
  EXPECT_THAT(Names(), ElementsAre("manifest.pb", "manifest.pb.fenced"));
}

TEST_P(FencingRemovalTest, ATombstoneLivesForADay) {
  const auto write_tombstone = [&](absl::Duration age) {
    Write(absl::StrCat(kStepName, "/manifest.pb"),
          absl::StrCat("TESSERA tombstone ", absl::ToUnixSeconds(absl::Now() - age), " x"));
  };
  ASSERT_OK(storage_.MakeDirectory(kStepName));
  ASSERT_OK(MarkAsFenced(storage_, kStepName));
  write_tombstone(absl::Hours(24) - absl::Minutes(5));
  EXPECT_TRUE(Delete(/*committed=*/false));
  EXPECT_EQ(Names().size(), 2);
  write_tombstone(absl::Hours(24) + absl::Minutes(5));
  EXPECT_TRUE(Delete(/*committed=*/false));
  EXPECT_THAT(Names(), IsEmpty());
  ASSERT_OK(MarkAsFenced(storage_, kStepName));
  EXPECT_TRUE(Delete(/*committed=*/false)) << "the tombstone is gone";
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_P(FencingRemovalTest, AFenceStaysBesideATombstoneThatCannotBeDeleted) {
  Write(absl::StrCat(kStepName, "/manifest.pb"), "TESSERA tombstone 0 x");
  ASSERT_OK(MarkAsFenced(storage_, kStepName));
  FaultInjectingStorage faulty(storage_);
  Fail(faulty, OperationKind::kDelete, absl::PermissionDeniedError("denied"), "/manifest.pb");
  const auto deleted =
      Removal::In(faulty)->Delete({.step = 7, .directory = kStepName, .committed = false});
  EXPECT_TRUE(absl::IsPermissionDenied(deleted.status())) << deleted.status();
  EXPECT_THAT(Names(), ElementsAre("manifest.pb", "manifest.pb.fenced"));
}

// A late commit may be on its way only where files of others, or a fence, say so.
TEST_P(FencingRemovalTest, ACheckpointIsReplacedByATombstoneIfOthersMayCommit) {
  Commit("model-a");
  Write(absl::StrCat(kStepName, "/manifest.sig"));
  EXPECT_TRUE(Delete(/*committed=*/true));
  EXPECT_THAT(Names(), IsEmpty()) << "it was alone";
  Commit("model-a");
  Write(absl::StrCat(kStepName, "/model-b"));
  EXPECT_TRUE(Delete(/*committed=*/true));
  EXPECT_TRUE(HasTombstone());
  EXPECT_THAT(Names(), ElementsAre("manifest.pb", "manifest.pb.fenced"));
  Commit("model-a");
  EXPECT_TRUE(Delete(/*committed=*/true));
  EXPECT_TRUE(HasTombstone()) << "the directory had a fence";
}

// Others change the manifest between each look at it and each write.
TEST_P(FencingRemovalTest, AFenceIsTriedFiveTimes) {
  class RestlessStorage final : public ForwardingStorage {
   public:
    using ForwardingStorage::ForwardingStorage;
    absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                      const WriteCondition& condition) override {
      if (!path.ends_with("/manifest.pb"))
        return ForwardingStorage::Write(path, contents, condition);
      ++writes;
      return absl::AlreadyExistsError("just written");
    }
    int writes = 0;
  };
  Write(absl::StrCat(kStepName, "/model-a"));
  RestlessStorage restless(storage_);
  EXPECT_FALSE(Delete(restless, /*committed=*/false));
  EXPECT_EQ(restless.writes, 5);
  EXPECT_EQ(Contents(absl::StrCat(kStepName, "/model-a")), "data");
}

// A store that turns out to have no conditional replacement.
class UnconditionalStorage final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                    const WriteCondition& condition) override {
    if (!condition.version.empty()) return absl::UnimplementedError("no conditions");
    return ForwardingStorage::Write(path, contents, condition);
  }
};

TEST_P(FencingRemovalTest, WithoutConditionsAManifestIsDeleted) {
  UnconditionalStorage unconditional(storage_);
  Commit("model-a");
  ASSERT_OK(MarkAsFenced(storage_, kStepName));
  EXPECT_TRUE(Delete(unconditional, /*committed=*/true));
  EXPECT_THAT(Names(), ElementsAre("manifest.pb.fenced"));
  Commit("model-a");
  EXPECT_EQ(*Removal::In(unconditional)->Quarantine(kStepName, "damaged"),
            absl::StrCat(kStepName, "/manifest.pb.damaged"));
  EXPECT_THAT(Names(), ElementsAre("manifest.pb.damaged", "manifest.pb.fenced", "model-a"));
}

TEST_P(FencingRemovalTest, WithoutConditionsAManifestThatStaysIsAnError) {
  FaultInjectingStorage faulty(storage_);
  UnconditionalStorage unconditional(faulty);
  Commit("model-a");
  Fail(faulty, OperationKind::kDelete, absl::PermissionDeniedError("denied"));
  const auto moved = Removal::In(unconditional)->Quarantine(kStepName, "damaged");
  EXPECT_TRUE(absl::IsPermissionDenied(moved.status())) << moved.status();
}

}  // namespace
}  // namespace tessera::ckpt
