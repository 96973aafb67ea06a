#include "trainer/data/batch_loader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/testing.h"
#include "trainer/data/test_files.h"
#include "trainer/data/token_file.h"

namespace tessera {
namespace {

constexpr int64_t kVocab = 60000;

// Writes shards of the given sizes. Tokens count up through all of them, so that a token's value
// tells its position.
void WriteShards(const TestFolder& folder, const std::vector<int64_t>& sizes,
                 TokenFormat format = TokenFormat::kGpt2) {
  int32_t next = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(auto writer, TokenFileWriter::Create(
                                          folder.File("s" + std::to_string(i) + ".bin"), format));
    std::vector<int32_t> tokens(sizes[i]);
    for (int32_t& token : tokens) token = next++;
    ASSERT_OK(writer->Append(tokens));
    ASSERT_OK(writer->Close());
  }
}

std::unique_ptr<TokenDataset> OpenAll(const TestFolder& folder, int64_t length) {
  return OrFail(TokenDataset::Open(folder.File("s*.bin"), length, kVocab));
}

TEST(TokenDatasetTest, CutsSamplesAsDocumented) {
  const TestFolder folder;
  // T = 4: 9 tokens hold two samples, 8 only one; then come an empty shard, one without a complete
  // sample and one of exactly one sample.
  WriteShards(folder, {9, 8, 0, 4, 5});
  const auto dataset = OpenAll(folder, 4);
  EXPECT_EQ(dataset->num_samples(), 4);
  EXPECT_EQ(dataset->num_tokens(), 26);
  const std::vector<int32_t> starts = {0, 4, 9, 21};
  for (int64_t sample = 0; sample < 4; ++sample) {
    std::vector<int32_t> ids(4), targets(4);
    ASSERT_OK(dataset->ReadSample(sample, ids, targets));
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(ids[i], starts[sample] + i);
      EXPECT_EQ(targets[i], starts[sample] + i + 1);
    }
  }
  std::vector<int32_t> ids(4), targets(4);
  EXPECT_TRUE(absl::IsOutOfRange(dataset->ReadSample(4, ids, targets)));
  EXPECT_TRUE(absl::IsOutOfRange(dataset->ReadSample(-1, ids, targets)));
  ids.resize(3);
  EXPECT_TRUE(absl::IsInvalidArgument(dataset->ReadSample(0, ids, targets)));
}

TEST(TokenDatasetTest, SampleLengthOne) {
  const TestFolder folder;
  WriteShards(folder, {0, 3, 1});
  const auto dataset = OpenAll(folder, 1);
  ASSERT_EQ(dataset->num_samples(), 2);
  std::vector<int32_t> id(1), target(1);
  ASSERT_OK(dataset->ReadSample(1, id, target));
  EXPECT_EQ(id[0], 1);
  EXPECT_EQ(target[0], 2);
}

TEST(TokenDatasetTest, OpenErrors) {
  const TestFolder folder;
  const auto open = [&](const char* pattern, int64_t length, int64_t vocab) {
    return TokenDataset::Open(folder.File(pattern), length, vocab).status();
  };
  EXPECT_TRUE(absl::IsNotFound(open("none*.bin", 4, kVocab)));
  WriteShards(folder, {9, 4});
  EXPECT_TRUE(absl::IsInvalidArgument(open("s*.bin", 0, kVocab)));
  EXPECT_TRUE(absl::IsInvalidArgument(open("s*.bin", 9, kVocab)));
  EXPECT_TRUE(absl::IsInvalidArgument(open("s*.bin", 4, 65537)));
  EXPECT_TRUE(absl::IsInvalidArgument(open("s*.bin", 4, 0)));
  auto other = TokenFileWriter::Create(folder.File("s7.bin"), TokenFormat::kLlama3);
  ASSERT_OK((*other)->Close());
  const absl::Status mixed = open("s*.bin", 4, kVocab);
  EXPECT_TRUE(absl::IsInvalidArgument(mixed));
  EXPECT_NE(MessageOf(mixed).find("s7.bin is llama3"), std::string::npos) << mixed;
  folder.Write("s7.bin", "garbage");
  EXPECT_TRUE(absl::IsDataLoss(open("s*.bin", 4, kVocab)));
}

TEST(TokenDatasetTest, FingerprintDependsOnContentsAndTheirOrderAlone) {
  const TestFolder a, b, c;
  WriteShards(a, {50, 60});
  WriteShards(b, {50, 60});
  std::filesystem::rename(b.File("s0.bin"), b.File("s00.bin"));
  std::filesystem::rename(b.File("s0.bin.crc32c"), b.File("s00.bin.crc32c"));
  const DataFingerprint of_a = OpenAll(a, 4)->fingerprint(), of_b = OpenAll(b, 8)->fingerprint();
  EXPECT_EQ(of_a.sampled, of_b.sampled);
  EXPECT_EQ(of_a.complete, of_b.complete);
  WriteShards(c, {50, 60});
  std::filesystem::rename(c.File("s0.bin"), c.File("s5.bin"));
  std::filesystem::rename(c.File("s0.bin.crc32c"), c.File("s5.bin.crc32c"));
  const DataFingerprint of_c = OpenAll(c, 4)->fingerprint();
  EXPECT_NE(of_a.sampled, of_c.sampled);
  EXPECT_NE(of_a.complete, of_c.complete);
}

// However steps are divided into ranks and micro-batches, the sequence of token ids is the same,
// and every sample occurs once in every epoch.
TEST(BatchLoaderTest, EveryTopologyReadsTheSameSequenceEachSampleOncePerEpoch) {
  constexpr int64_t kLength = 3;
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{4}, {31}, {40, 0, 77}, {5, 200, 9}}) {
    const TestFolder folder;
    WriteShards(folder, sizes);
    const auto dataset = OpenAll(folder, kLength);
    const int64_t n = dataset->num_samples();
    const BatchLoader loader(dataset.get(), 42);
    const int64_t total = 3 * n;
    std::vector<int32_t> expected(total * kLength), ignored(total * kLength);
    ASSERT_OK(loader.FillBatch(0, 0, total, expected, ignored));
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::map<int32_t, int> seen;
      for (int64_t i = 0; i < n; ++i) ++seen[expected[(epoch * n + i) * kLength]];
      EXPECT_EQ(seen.size(), n);
    }
    for (const int64_t dp : {1, 2, 3, 4}) {
      for (const int64_t micro : {1, 2, 5}) {
        for (const int64_t accumulation : {1, 3}) {
          const int64_t global = dp * micro * accumulation;
          for (int64_t consumed = 0; consumed + global <= total; consumed += global) {
            for (int64_t piece = 0; piece < dp * accumulation; ++piece) {
              std::vector<int32_t> ids(micro * kLength), targets(micro * kLength);
              ASSERT_OK(loader.FillBatch(consumed, piece * micro, micro, ids, targets));
              const int64_t at = (consumed + piece * micro) * kLength;
              for (size_t i = 0; i < ids.size(); ++i) {
                ASSERT_EQ(ids[i], expected[at + i]);
                ASSERT_EQ(targets[i], ids[i] + 1);
              }
            }
          }
        }
      }
    }
  }
}

TEST(BatchLoaderTest, EvaluationReadsTheFirstSamplesInOrder) {
  const TestFolder folder;
  WriteShards(folder, {9, 9});
  const auto dataset = OpenAll(folder, 4);
  const BatchLoader loader(dataset.get(), 42);
  std::vector<int32_t> ids(12), targets(12);
  ASSERT_OK(loader.FillEvaluationBatch(1, 3, ids, targets));
  EXPECT_EQ(ids, (std::vector<int32_t>{4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16}));
  EXPECT_EQ(targets, (std::vector<int32_t>{5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_TRUE(absl::IsOutOfRange(loader.FillEvaluationBatch(2, 3, ids, targets)));
  EXPECT_TRUE(absl::IsInvalidArgument(loader.FillEvaluationBatch(0, 2, ids, targets)));
  EXPECT_TRUE(absl::IsInvalidArgument(loader.FillBatch(0, -1, 3, ids, targets)));
}

TEST(BatchLoaderTest, BadTokensAreReportedWhenRead) {
  const TestFolder folder;
  WriteShards(folder, {100});
  ASSERT_OK_AND_ASSIGN(const auto dataset, TokenDataset::Open(folder.File("s*.bin"), 4, 50));
  const BatchLoader loader(dataset.get(), 1);
  std::vector<int32_t> ids(96), targets(96);
  const absl::Status status = loader.FillBatch(0, 0, 24, ids, targets);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_NE(MessageOf(status).find("s0.bin at offset"), std::string::npos) << status;
}

TEST(SampleOrderTest, EveryEpochIsAPermutation) {
  for (int64_t n = 1; n <= 800; ++n) {
    const SampleOrder order(1234, n);
    const int64_t epoch = n % 5;
    std::vector<bool> seen(n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t sample = order.SampleAt(epoch * n + i);
      ASSERT_TRUE(sample >= 0 && sample < n) << n;
      ASSERT_FALSE(seen[sample]) << n << " " << i;
      seen[sample] = true;
    }
  }
}

TEST(SampleOrderTest, LargeSizesStayInRangeAndDoNotRepeat) {
  for (const int64_t n : {int64_t{65536}, int64_t{65537}, (int64_t{1} << 32) - 1, int64_t{1} << 40,
                          (int64_t{1} << 53) + 1, INT64_MAX}) {
    const SampleOrder order(7, n);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 2000; ++i) {
      const int64_t index = i < 1000 ? i : n - 2000 + i;
      const int64_t sample = order.Permute(3, index);
      ASSERT_TRUE(sample >= 0 && sample < n) << n;
      ASSERT_TRUE(seen.insert(sample).second) << n;
    }
  }
}

// A model computes with what it leaves, and looks up rows by these ids.
TEST(ErrorKeepingLoaderTest, WhatCannotBeReadIsZerosAndTheFirstErrorStays) {
  const TestFolder folder;
  WriteShards(folder, {9});
  const auto dataset = OrFail(TokenDataset::Open(folder.File("s*.bin"), 4, /*vocab_size=*/8));
  const ErrorKeepingLoader loader(dataset.get(), /*seed=*/1);
  const std::vector<int32_t> zeros(8);
  for (const int64_t first : {1, 2}) {  // sample 1 has the token 8, and there is no sample 2
    std::vector<int32_t> ids(8, 77), targets(8, 77);
    ASSERT_OK(loader.FillEvaluationBatch(first, 2, ids, targets));
    EXPECT_EQ(ids, zeros);
    EXPECT_EQ(targets, zeros);
    EXPECT_TRUE(absl::IsDataLoss(loader.kept_error())) << loader.kept_error();
  }
}

// Positions in checkpoints refer to samples by this order, which must never change.
TEST(SampleOrderTest, TheOrderIsFrozen) {
  const auto first = [](uint64_t seed, int64_t n, int64_t epoch) {
    std::vector<int64_t> samples;
    for (int64_t i = 0; i < 6; ++i) samples.push_back(SampleOrder(seed, n).SampleAt(epoch * n + i));
    return samples;
  };
  EXPECT_EQ(first(1234, 6, 0), (std::vector<int64_t>{5, 1, 3, 4, 0, 2}));
  EXPECT_EQ(first(1234, 1000, 0), (std::vector<int64_t>{550, 519, 675, 688, 836, 834}));
  EXPECT_EQ(first(1234, 1000, 1), (std::vector<int64_t>{690, 699, 756, 347, 939, 101}));
  EXPECT_EQ(first(1, int64_t{1} << 40, 0),
            (std::vector<int64_t>{147230633329, 593315193607, 179636724856, 921921266178,
                                  388755923882, 299453206576}));
}

TEST(SampleOrderTest, SeedsAndEpochsDiffer) {
  constexpr int64_t kN = 1000;
  const SampleOrder a(1, kN), b(2, kN);
  int same_seed = 0, same_epoch = 0, fixed = 0, successors = 0;
  for (int64_t i = 0; i < kN; ++i) {
    same_seed += a.Permute(0, i) == b.Permute(0, i);
    same_epoch += a.Permute(0, i) == a.Permute(1, i);
    fixed += a.Permute(0, i) == i;
    successors += i > 0 && a.Permute(0, i) == a.Permute(0, i - 1) + 1;
  }
  // Each is about Poisson with mean 1 for random permutations.
  for (const int count : {same_seed, same_epoch, fixed, successors}) EXPECT_LE(count, 8);
}

// Over many epochs every sample is equally often at every place, in small and larger sets.
TEST(SampleOrderTest, PlacesAreUniform) {
  for (const int64_t n : {2, 3, 5, 16, 17, 40}) {
    const SampleOrder order(99, n);
    constexpr int kEpochs = 4000;
    std::vector<int> counts(n * n);
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      for (int64_t i = 0; i < n; ++i) ++counts[i * n + order.Permute(epoch, i)];
    }
    const double mean = double{kEpochs} / n;
    for (const int count : counts) EXPECT_NEAR(count, mean, 5.5 * std::sqrt(mean)) << n;
  }
}

TEST(SampleOrderTest, EpochOfAPosition) {
  const SampleOrder order(1, 10);
  EXPECT_EQ(order.EpochAt(0), 0);
  EXPECT_EQ(order.EpochAt(9), 0);
  EXPECT_EQ(order.EpochAt(10), 1);
  EXPECT_EQ(order.SampleAt(25), order.Permute(2, 5));
}

}  // namespace
}  // namespace tessera
