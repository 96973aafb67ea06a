#include "compute/parallel/micro_batches.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/testing.h"

namespace tessera {
namespace {

using Terms = std::vector<std::string>;

// The binary tree over terms, written out: "((0+1)+2)".
std::string Tree(const Terms& terms) {
  if (terms.size() == 1) return terms[0];
  size_t middle = 1;
  while (middle * 2 < terms.size()) middle *= 2;
  const auto cut = terms.begin() + static_cast<int64_t>(middle);
  return "(" + Tree(Terms(terms.begin(), cut)) + "+" + Tree(Terms(cut, terms.end())) + ")";
}

Terms Indices(int64_t n) {
  Terms indices;
  for (int64_t i = 0; i < n; ++i) indices.push_back(std::to_string(i));
  return indices;
}

// The sum as the ranks compute it.
std::string SplitSum(const MicroBatchSplit& split) {
  const auto name = [&](int rank, int64_t i) {
    return std::to_string(GlobalMicroBatch(split, rank, i));
  };
  Terms outer;
  if (split.zero_stage == 2) {
    for (int64_t i = 0; i < split.local(); ++i) {
      Terms inner;
      for (int rank = 0; rank < split.data_ranks; ++rank) inner.push_back(name(rank, i));
      outer.push_back(Tree(inner));
    }
  } else {
    for (int rank = 0; rank < split.data_ranks; ++rank) {
      Terms inner;
      for (int64_t i = 0; i < split.local(); ++i) inner.push_back(name(rank, i));
      outer.push_back(Tree(inner));
    }
  }
  return Tree(outer);
}

TEST(MicroBatchesTest, EveryOneIsComputedOnce) {
  for (const int zero : {0, 1, 2}) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      const MicroBatchSplit split = {
          .zero_stage = zero, .data_ranks = ranks, .micro_batches = 5 * ranks};
      std::set<int64_t> seen;
      for (int rank = 0; rank < ranks; ++rank) {
        for (int64_t i = 0; i < split.local(); ++i) seen.insert(GlobalMicroBatch(split, rank, i));
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), split.micro_batches);
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), split.micro_batches - 1);
    }
  }
}

TEST(MicroBatchesTest, ExactAcceptsTheSplitsWhoseSumIsTheTree) {
  for (const int zero : {0, 1, 2}) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (int64_t micro_batches = ranks; micro_batches <= 40; micro_batches += ranks) {
        const MicroBatchSplit split = {
            .zero_stage = zero, .data_ranks = ranks, .micro_batches = micro_batches};
        const bool is_tree = SplitSum(split) == Tree(Indices(micro_batches));
        const absl::Status status = CheckMicroBatches(3 * micro_batches, 3, ranks, zero, true);
        EXPECT_EQ(status.ok(), is_tree) << status << " zero " << zero;
        EXPECT_OK(CheckMicroBatches(3 * micro_batches, 3, ranks, zero, false));
      }
    }
  }
}

TEST(MicroBatchesTest, SentencesNameTheSettings) {
  for (const auto& [batch, zero, exact] :
       {std::tuple{14, 0, false}, {24, 2, true}, {36, 1, true}}) {
    const absl::Status status = CheckMicroBatches(batch, 2, 3 * (zero == 1 ? 2 : 1), zero, exact);
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << batch;
    for (const char* name : {"global_batch_size", "micro_batch_size", "data_parallel_size"}) {
      EXPECT_NE(std::string(status.message()).find(name), std::string::npos) << status;
    }
  }
}

}  // namespace
}  // namespace tessera
