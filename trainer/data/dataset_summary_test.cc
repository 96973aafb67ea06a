#include "trainer/data/dataset_summary.h"

#include <gtest/gtest.h>

#include "base/testing.h"
#include "trainer/data/test_files.h"

namespace tessera {
namespace {

TEST(DatasetSummaryTest, RoundTripAndEveryMissingFieldIsNamed) {
  const TestFolder folder;
  DatasetSummary summary;
  summary.request = "abc";
  summary.train = {3, 4, 5};
  summary.unigram_nats_per_token = 1.25;
  summary.files = {{"train_000.bin", 7}};
  ASSERT_OK(WriteDatasetSummary(summary, folder.path()));
  ASSERT_OK_AND_ASSIGN(const auto read, ReadDatasetSummary(folder.path()));
  EXPECT_EQ(read.train.tokens, 5);
  EXPECT_EQ(read.unigram_nats_per_token, 1.25);
  EXPECT_EQ(read.files.at(0).name, "train_000.bin");

  const std::string text = Slurp(folder.File(kDatasetFileName));
  for (const std::string field : {"format_version", "request", "vocab_size", "train", "text_bytes",
                                  "unigram_nats_per_token", "files", "size_bytes"}) {
    std::string damaged = text;
    damaged.replace(damaged.find("\"" + field + "\"") + 1, 1, "?");
    folder.Write(kDatasetFileName, damaged);
    ExpectError(ReadDatasetSummary(folder.path()).status(), absl::StatusCode::kDataLoss, field);
  }
  std::string outside = text;
  outside.replace(outside.find("train_000.bin"), 5, "../..");
  folder.Write(kDatasetFileName, outside);
  ExpectError(ReadDatasetSummary(folder.path()).status(), absl::StatusCode::kDataLoss, "slash");
  folder.Write(kDatasetFileName, text.substr(0, text.size() / 2));
  ExpectError(ReadDatasetSummary(folder.path()).status(), absl::StatusCode::kDataLoss, "JSON");
}

}  // namespace
}  // namespace tessera
