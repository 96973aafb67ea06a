#include "trainer/data/dataset.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/testing.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Two shards without checksums, as another program writes them.
class ForeignShardsTest : public ::testing::Test {
 protected:
  ForeignShardsTest() {
    for (const char* name : {"s0.bin", "s1.bin"}) {
      auto writer = TokenFileWriter::Create(folder_.File(name), TokenFormat::kGpt2);
      EXPECT_OK((*writer)->Append(std::vector<int32_t>(100, 7)));
      EXPECT_OK((*writer)->Close());
      fs::remove(ChecksumPath(folder_.File(name)));
    }
  }
  std::unique_ptr<TokenDataset> Open() const {
    return OrFail(TokenDataset::Open(folder_.File("s*"), 4, 100));
  }
  std::vector<std::string> AddChecksums(TokenDataset& dataset, int64_t max_bytes) const {
    std::vector<std::string> notes;
    EXPECT_OK(dataset.AddChecksums(max_bytes,
                                   [&notes](const std::string& note) { notes.push_back(note); }));
    return notes;
  }
  const TestFolder folder_;
};

TEST_F(ForeignShardsTest, GetChecksumsThatLaterRunsFind) {
  const auto dataset = Open();
  EXPECT_EQ(dataset->fingerprint().complete, 0u);
  EXPECT_EQ(AddChecksums(*dataset, 1 << 20),
            std::vector<std::string>{"computing checksums of " + folder_.File("s0.bin") +
                                     " and 1 more (2.39 KiB), which are stored for later runs"});
  EXPECT_NE(dataset->fingerprint().complete, 0u);
  // The pattern s* matches the checksums, too.
  const auto again = Open();
  EXPECT_EQ(again->num_tokens(), dataset->num_tokens());
  EXPECT_EQ(again->fingerprint().complete, dataset->fingerprint().complete);
  EXPECT_EQ(again->fingerprint().sampled, dataset->fingerprint().sampled);
  EXPECT_EQ(AddChecksums(*again, 0), std::vector<std::string>());
}

TEST_F(ForeignShardsTest, AreNotReadWhereTheyAreTooMuch) {
  const auto dataset = Open();
  const std::vector<std::string> notes = AddChecksums(*dataset, 2000);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("prepare_data --checksum=FILES"), std::string::npos) << notes[0];
  EXPECT_EQ(dataset->fingerprint().complete, 0u);
  EXPECT_FALSE(fs::exists(ChecksumPath(folder_.File("s0.bin"))));
}

TEST_F(ForeignShardsTest, AreNamedWhereTheyAreTooShort) {
  auto writer = TokenFileWriter::Create(folder_.File("s2.bin"), TokenFormat::kGpt2);
  EXPECT_OK((*writer)->Append(std::vector<int32_t>(101, 7)));
  EXPECT_OK((*writer)->Close());
  std::vector<std::string> notes;
  const NoteSink note = [&](const std::string& text) { notes.push_back(text); };
  Open()->NoteUnread(note);
  EXPECT_TRUE(notes.empty());
  const auto dataset = OrFail(TokenDataset::Open(folder_.File("s*"), 100, 100));
  EXPECT_EQ(dataset->num_samples(), 1);
  EXPECT_EQ(dataset->DescribeFiles(), "3 files, the first " + folder_.File("s0.bin"));
  dataset->NoteUnread(note);
  EXPECT_EQ(notes, std::vector<std::string>{
                       "2 of 3 token files are not read, since they do not have the 101 tokens of "
                       "one sample: " +
                       folder_.File("s0.bin") + ", " + folder_.File("s1.bin")});
}

TEST_F(ForeignShardsTest, ThatCannotKeepChecksumsHaveThemForOneRun) {
  const auto file = TokenFile::Open(folder_.File("s0.bin"));
  // A file cannot be renamed to the name of a folder, not even by root.
  fs::create_directories(ChecksumPath(folder_.File("s0.bin")) + "/in_the_way");
  absl::Status why_not;
  ASSERT_OK((*file)->MakeChecksums(why_not));
  EXPECT_FALSE(why_not.ok());
  EXPECT_NE((*file)->CompleteFingerprint(), 0u);
}

TEST(DataFingerprintTest, WhatBothKnowIsCompared) {
  const DataFingerprint complete{.sampled = 1, .complete = 2};
  EXPECT_TRUE(MayBeSameData(complete, complete));
  EXPECT_FALSE(MayBeSameData(complete, {.sampled = 1, .complete = 3}));
  EXPECT_TRUE(MayBeSameData(complete, {.sampled = 1}));
  EXPECT_TRUE(MayBeSameData({.sampled = 1}, complete));
  EXPECT_FALSE(MayBeSameData(complete, {.sampled = 2}));
}

}  // namespace
}  // namespace tessera
