// Names say what is a checkpoint, and only a committed one is taken for one.

#include "checkpoint/directory/directory.h"

#include <limits>
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

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

TEST(NamesTest, StepsAndTheirDirectories) {
  for (const auto& [step, name] : std::vector<std::pair<int64_t, std::string>>{
           {0, "step-00000000"},
           {42, "step-00000042"},
           {99'999'999, "step-99999999"},
           {100'000'000, "step-100000000"},
           {std::numeric_limits<int64_t>::max(), "step-9223372036854775807"}}) {
    EXPECT_EQ(StepDirectoryName(step), name);
    EXPECT_EQ(ParseStepDirectoryName(name), step);
  }
  for (const char* const name :
       {"", "step-", "step-42", "step-0000004x", "step-00000042 ", "step-000000042",
        "step--0000042", "step--1234567", "step-+0000042", "step-9223372036854775808",
        "Step-00000042", "step-00000042/", "step-00000042.damaged"}) {
    EXPECT_EQ(ParseStepDirectoryName(name), std::nullopt) << name;
  }
}

TEST(NamesTest, PathsAndTheirParts) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(JoinPath("a", ""), "a");
  EXPECT_EQ(JoinPath("", ""), "");
  EXPECT_EQ(FolderOf("a/b/c"), "a/b");
  EXPECT_EQ(FolderOf("a"), "");
  EXPECT_EQ(FolderOf(""), "");
}

TEST(NamesTest, AStorageForSavingKnowsItsUploads) {
  const OpenStorageOptions options = ForSaving({});
  EXPECT_TRUE(options.create_root);
  const std::string file = "model-00001-of-00004-0123abcd.safetensors";
  for (const char* const folder : {"", "run/", "rolling-0/0123abcd/"}) {
    EXPECT_THAT(absl::StrCat(folder, "step-00000042/", file), MatchesRegex(options.own_uploads));
  }
  EXPECT_THAT("step-00000042/other.safetensors", Not(MatchesRegex(options.own_uploads)));
}

TEST(NamesTest, QuarantinedManifests) {
  EXPECT_TRUE(IsQuarantinedName("manifest.pb.damaged"));
  EXPECT_TRUE(IsQuarantinedName("manifest.pb.abandoned-2"));
  for (const char* const name : {"manifest.pb", "manifest.pb.tmp-0123abcd", "manifest.pb.fenced",
                                 "manifest.pbx", "manifest.sig.damaged", ""}) {
    EXPECT_FALSE(IsQuarantinedName(name)) << name;
  }
}

TEST(TombstoneTest, TellsItsTimeAndIsUnlikeOthers) {
  const int64_t before = absl::ToUnixSeconds(absl::Now());
  const std::string tombstone = MakeTombstone();
  EXPECT_TRUE(IsTombstone(tombstone));
  EXPECT_THAT(tombstone, MatchesRegex("TESSERA tombstone [0-9]+ [0-9a-f]{16}\n.*\n"));
  EXPECT_GE(TombstoneTime(tombstone), before);
  EXPECT_LE(TombstoneTime(tombstone), absl::ToUnixSeconds(absl::Now()));
  EXPECT_NE(MakeTombstone(), tombstone);
  EXPECT_EQ(TombstoneTime("TESSERA tombstone x 0123"), 0);
  EXPECT_FALSE(IsTombstone("TESSERA\n"));
  EXPECT_FALSE(IsTombstone(""));
}

// A storage of another name, perhaps of files of another format.
class NamedStorage final : public ForwardingStorage {
 public:
  NamedStorage(Storage& base, bool is_translation)
      : ForwardingStorage(base), is_translation_(is_translation) {}
  StorageTraits Traits() override { return {.is_translation = is_translation_}; }
  std::string Describe(std::string_view path) const override {
    return absl::StrCat("/data/step-00000009/", std::string(path));
  }

 private:
  const bool is_translation_;
};

class ManifestInPlaceTest : public testing::Test {
 protected:
  ManifestInPlaceTest() { EXPECT_OK(storage_.MakeDirectory("d")); }

  void Write(const std::string& name, const std::string& contents) {
    ASSERT_OK(WriteAll(storage_, JoinPath("d", name), contents));
  }
  void FailToOpen(const std::string& name, const absl::Status& error) {
    faulty_.ClearFaults();
    faulty_.FailWhere(
        [path = JoinPath("d", name)](const Operation& operation) {
          return operation.kind == OperationKind::kOpen && operation.path == path;
        },
        error);
  }

  MemoryStorage storage_;
  FaultInjectingStorage faulty_{storage_};
};

TEST_F(ManifestInPlaceTest, IsCommittedUnlessItIsATombstoneOrHasBeenCopied) {
  EXPECT_FALSE(*IsCommitted(storage_, "nothing"));
  EXPECT_FALSE(*IsCommitted(storage_, "d"));
  Write("manifest.pb", "a manifest");
  EXPECT_TRUE(*IsCommitted(storage_, "d"));
  Write("manifest.pb.damaged", "another manifest");
  EXPECT_TRUE(*IsCommitted(storage_, "d"));
  Write("manifest.pb.damaged-2", "a manifest");
  EXPECT_FALSE(*IsCommitted(storage_, "d")) << "its quarantine was interrupted";
  ASSERT_OK(storage_.Delete("d/manifest.pb.damaged-2"));
  ASSERT_OK(MarkAsFenced(storage_, "d"));
  EXPECT_TRUE(*IsCommitted(storage_, "d"));
  Write("manifest.pb", MakeTombstone());
  EXPECT_FALSE(*IsCommitted(storage_, "d"));
}

TEST_F(ManifestInPlaceTest, WhatADamagedFileSaysCountsAndAnErrorIsReturned) {
  Write("manifest.pb", "a manifest");
  Write("manifest.pb.damaged", "a manifest");
  for (const absl::Status& error :
       {absl::NotFoundError("gone"), absl::DataLossError("a bad disk"),
        absl::ResourceExhaustedError("too long"), absl::UnavailableError("no answer")}) {
    SCOPED_TRACE(error.ToString());
    const bool fails = absl::IsUnavailable(error);
    FailToOpen("manifest.pb", error);
    const absl::StatusOr<bool> manifest = IsCommitted(faulty_, "d");
    EXPECT_EQ(manifest.status().code(), fails ? error.code() : absl::StatusCode::kOk);
    if (manifest.ok()) EXPECT_EQ(*manifest, !absl::IsNotFound(error));
    // A copy that cannot be read is not the same.
    FailToOpen("manifest.pb.damaged", error);
    const absl::StatusOr<bool> copy = IsCommitted(faulty_, "d");
    EXPECT_EQ(copy.status().code(), fails ? error.code() : absl::StatusCode::kOk);
    if (copy.ok()) EXPECT_TRUE(*copy);
  }
}

TEST_F(ManifestInPlaceTest, ATombstoneIsReadAndAManifestIsNone) {
  EXPECT_EQ(*ReadTombstone(storage_, "d"), std::nullopt);
  const std::string tombstone = MakeTombstone();
  Write("manifest.pb", tombstone);
  EXPECT_EQ((*ReadTombstone(storage_, "d"))->contents, tombstone);
  FailToOpen("manifest.pb", absl::UnavailableError("no answer"));
  EXPECT_TRUE(absl::IsUnavailable(ReadTombstone(faulty_, "d").status()));
  Write("manifest.pb", "a manifest");
  const absl::Status manifest = ReadTombstone(storage_, "d").status();
  EXPECT_TRUE(absl::IsAlreadyExists(manifest)) << manifest;
  EXPECT_EQ(MessageOf(manifest), "memory:d/manifest.pb is no tombstone");
  EXPECT_EQ((*ReadInPlace(storage_, "d"))->contents, "a manifest");
}

TEST_F(ManifestInPlaceTest, TheMarkOfAFenceMayBeThere) {
  ASSERT_OK(MarkAsFenced(storage_, "d"));
  ASSERT_OK(MarkAsFenced(storage_, "d"));
  EXPECT_FALSE(MarkAsFenced(storage_, "nothing").ok());
}

TEST_F(ManifestInPlaceTest, ADataFileThatWasWrittenIsLookedFor) {
  Write("model", "abc");
  EXPECT_OK(CheckDataFile(storage_, "d/model", 3));
  const absl::Status longer = CheckDataFile(storage_, "d/model", 4);
  EXPECT_TRUE(absl::IsAborted(longer)) << longer;
  EXPECT_THAT(MessageOf(longer), HasSubstr("written by this save with 4 bytes, now it has 3: "));
  const absl::Status gone = CheckDataFile(storage_, "d/other", 3);
  EXPECT_TRUE(absl::IsAborted(gone)) << gone;
  EXPECT_THAT(MessageOf(gone), HasSubstr("with 3 bytes, now it is gone: "));
  FailToOpen("model", absl::UnavailableError("no answer"));
  EXPECT_TRUE(absl::IsUnavailable(CheckDataFile(faulty_, "d/model", 3)));
}

TEST_F(ManifestInPlaceTest, AReaderOfAnotherNameLearnsOfTheNewestCheckpoints) {
  for (int64_t step = 1; step <= 11; ++step) {
    const std::string directory = JoinPath("run", StepDirectoryName(step));
    ASSERT_OK(storage_.MakeDirectory(directory));
    ASSERT_OK(WriteAll(storage_, JoinPath(directory, kManifestFileName), "a manifest"));
  }
  ASSERT_OK(storage_.MakeDirectory("run/step-00000012"));
  for (const char* const directory : {"run/step-00000099", "run"}) {
    const absl::Status missing = ReadManifest(storage_, directory).status();
    EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
    EXPECT_THAT(MessageOf(missing),
                AllOf(HasSubstr(absl::StrCat("no committed checkpoint in memory:", directory,
                                             " (manifest.pb is missing); ")),
                      HasSubstr("checkpoints in memory:run: step-00000002, step-00000003, "),
                      ::testing::EndsWith(", step-00000011")));
  }
  EXPECT_THAT(MessageOf(ReadManifest(storage_, "none/step-00000001").status()),
              HasSubstr("; no checkpoint in memory:none either"));
  Write("manifest.pb", MakeTombstone());
  const absl::Status discarded = ReadManifest(storage_, "d").status();
  EXPECT_TRUE(absl::IsNotFound(discarded)) << discarded;
  EXPECT_THAT(MessageOf(discarded), HasSubstr("discarded before it was complete); no checkpoint"));
}

TEST_F(ManifestInPlaceTest, WhatIsNoFileIsDamage) {
  ASSERT_OK(storage_.MakeDirectory("e/manifest.pb"));
  EXPECT_TRUE(absl::IsDataLoss(ReadManifest(storage_, "e").status()));
}

TEST_F(ManifestInPlaceTest, TheNameOfTheStorageCountsWhereThereIsNoOther) {
  Manifest manifest;
  manifest.mutable_trainer()->set_step(7);
  ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(manifest));
  ASSERT_OK(WriteAll(storage_, "manifest.pb", bytes));
  Write("manifest.pb", bytes);
  NamedStorage own(storage_, /*is_translation=*/false), foreign(storage_, /*is_translation=*/true);
  const absl::Status other_step = ReadManifest(own, "").status();
  EXPECT_TRUE(absl::IsDataLoss(other_step)) << other_step;
  EXPECT_THAT(MessageOf(other_step), HasSubstr("its directory is named step-00000009"));
  EXPECT_OK(ReadManifest(own, "d"));
  EXPECT_OK(ReadManifest(foreign, ""));
}

}  // namespace
}  // namespace tessera::ckpt
