// The data read after a change of topology: the token ids themselves, as every rank reads them, not
// counters.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "layout/topology.h"
#include "tests/support/training.h"
#include "trainer/config/config.pb.h"
#include "trainer/data/dataset.h"

namespace tessera {
namespace {

using testing::SampleLog;
using testing::TrainedRun;

constexpr int64_t kTokens = 2400;
constexpr int64_t kLength = 24;  // 99 samples

// A part of a run: topology, division of the batch, and the step at which it ends.
struct Part {
  std::string topology;
  int64_t micro_batch_size;
  int64_t global_batch_size;
  int64_t last_step;
};

using Sample = std::vector<int32_t>;

class DataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(testing::WriteTokens(root_ + "/tokens.bin", testing::kVocabulary, kTokens),
              absl::OkStatus());
  }
  // Trains the parts in sequence, each from the checkpoint of the one before.
  void Train(const std::string& name, const std::vector<Part>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      ASSERT_OK_AND_ASSIGN(
          TrainConfig config,
          testing::MakeConfig(
              {.model = absl::StrCat(testing::kGpt2, " make_vocab_size_divisible_by: 1"),
               .tokens = root_ + "/tokens.bin",
               .topology = parts[i].topology,
               .micro_batch_size = parts[i].micro_batch_size,
               .global_batch_size = parts[i].global_batch_size,
               .seq_length = kLength,
               .steps = parts[i].last_step}));
      CheckpointConfig& checkpoint = *config.mutable_checkpoint();
      if (i > 0) checkpoint.set_load(root_ + "/" + name);
      checkpoint.set_save(root_ + "/" + name);
      checkpoint.set_save_interval(1);
      SampleLog log;
      const absl::StatusOr<TrainedRun> run = testing::TrainOnThreads(config, &log);
      ASSERT_OK(run) << parts[i].topology;
      ASSERT_NO_FATAL_FAILURE(Check(parts[i], log.Take(), run->progress.consumed_samples));
    }
  }

  // Checks the reads of the ranks of a part: tensor and pipeline ranks of one data rank read the
  // same, every sample is read by one data rank, and together they leave no gap. The ids and
  // targets are appended to sequence_ and targets_.
  void Check(const Part& part, const std::vector<SampleLog::Read>& reads,
             int64_t consumed_samples) {
    ASSERT_OK_AND_ASSIGN(const Topology topology, ParseTopology(part.topology));
    std::map<int64_t, SampleLog::Read> by_position;
    std::map<int64_t, int> readers;
    for (const SampleLog::Read& read : reads) {
      const auto [first, is_new] = by_position.emplace(read.position, read);
      EXPECT_EQ(first->second.rank.data, read.rank.data)
          << "sample " << read.position << " by two data ranks";
      EXPECT_EQ(first->second.ids, read.ids) << "sample " << read.position;
      EXPECT_EQ(first->second.targets, read.targets) << "sample " << read.position;
      ++readers[read.position];
    }
    // Only the first stage uses ids, and only the last one targets.
    const int expected_readers = topology.tensor * (topology.pipeline > 1 ? 2 : 1);
    for (const auto& [position, read] : by_position) {
      ASSERT_EQ(position, static_cast<int64_t>(sequence_.size())) << part.topology;
      EXPECT_EQ(readers[position], expected_readers) << "sample " << position;
      sequence_.push_back(read.ids);
      targets_.push_back(read.targets);
    }
    EXPECT_EQ(consumed_samples, static_cast<int64_t>(sequence_.size()));
  }

  std::vector<Sample> TakeSequence() {
    targets_.clear();
    return std::exchange(sequence_, {});
  }

  // Every sample of the data set, in its own order.
  std::vector<Sample> AllSamples() const {
    const auto dataset =
        OrFail(TokenDataset::Open(root_ + "/tokens.bin", kLength, testing::kVocabulary));
    std::vector<Sample> samples;
    for (int64_t i = 0; i < dataset->num_samples(); ++i) {
      Sample ids(kLength), targets(kLength);
      EXPECT_OK(dataset->ReadSample(i, ids, targets));
      samples.push_back(ids);
    }
    return samples;
  }

  // No epoch of sequence_, including the unfinished last one, reads a sample twice; complete ones
  // read all samples.
  void ExpectEachOncePerEpoch() const {
    const std::vector<Sample> all = AllSamples();
    const std::set<Sample> distinct(all.begin(), all.end());
    ASSERT_EQ(distinct.size(), all.size()) << "samples must be told apart by their tokens";
    ASSERT_GT(sequence_.size(), 2 * all.size());
    for (size_t begin = 0; begin < sequence_.size(); begin += all.size()) {
      const size_t end = std::min(begin + all.size(), sequence_.size());
      const std::set<Sample> epoch(sequence_.begin() + begin, sequence_.begin() + end);
      EXPECT_EQ(epoch.size(), end - begin) << "a sample twice in the epoch from " << begin;
      if (end - begin == all.size()) EXPECT_EQ(epoch, distinct);
    }
  }

  const TestFolder folder_;
  const std::string root_ = folder_.path();
  std::vector<Sample> sequence_;  // as read so far
  std::vector<Sample> targets_;
};

TEST_F(DataTest, SameGlobalBatchGoesOnWithTheSameSequence) {
  ASSERT_NO_FATAL_FAILURE(Train("alone", {{"single", 1, 24, 10}}));
  const std::vector<Sample> targets = targets_;
  const std::vector<Sample> alone = TakeSequence();
  ASSERT_EQ(alone.size(), 240u);
  ASSERT_NO_FATAL_FAILURE(Train("moved", {{"dp4_zero2_tp2_pp2", 2, 24, 2},
                                          {"dp3", 4, 24, 3},
                                          {"dp2_zero1_tp2_sp", 1, 24, 5},
                                          {"pp2_vpp2", 3, 24, 6},
                                          {"dp6_zero2", 2, 24, 8},
                                          {"dp12_zero1", 1, 24, 9},
                                          {"single", 24, 24, 10}}));
  EXPECT_EQ(sequence_, alone);
  EXPECT_EQ(targets_, targets);
  ExpectEachOncePerEpoch();
}

TEST_F(DataTest, OtherGlobalBatchesReadEachSampleOncePerEpoch) {
  ASSERT_NO_FATAL_FAILURE(Train("moved", {{"dp4_zero2_tp2_pp2", 2, 16, 3},  // 48
                                          {"dp3_zero1", 1, 9, 6},           // 75
                                          {"dp5_zero2", 2, 20, 8},  // 115, across the epoch's end
                                          {"tp4", 7, 14, 10},       // 143
                                          {"dp2_pp2_vpp2", 1, 4, 16},  // 167
                                          {"single", 31, 31, 18}}));   // 229
  ASSERT_EQ(sequence_.size(), 229u);
  ExpectEachOncePerEpoch();
  const std::vector<Sample> moved = TakeSequence();
  ASSERT_NO_FATAL_FAILURE(Train("alone", {{"single", 1, 229, 1}}));
  EXPECT_EQ(moved, sequence_);
}

}  // namespace
}  // namespace tessera
