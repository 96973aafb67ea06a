// Each element is written once, by a rank that holds it, and the bytes are balanced.

#include "checkpoint/plan/save_plan.h"

#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/plan/rank_states.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LogicalTensor& Add(RankState& plan, const std::string& name, TensorRole role, DType dtype,
                   const Shape& shape, const std::vector<Box>& boxes) {
  LogicalTensor& tensor = *plan.add_tensors();
  tensor.set_name(name);
  tensor.set_role(ToProto(role));
  tensor.set_dtype(ToProto(dtype));
  for (int64_t extent : shape) tensor.add_global_shape(extent);
  for (const Box& box : boxes) AddShard(box, 0, 0, tensor);
  return tensor;
}

absl::StatusOr<SavePlan> Plan(const std::vector<RankState>& ranks, const SavePlanOptions& options) {
  std::vector<std::string> descriptions;
  for (const RankState& rank : ranks) descriptions.push_back(rank.SerializeAsString());
  return PlanSave(descriptions, options);
}

std::vector<uint64_t> BytesPerRank(const SavePlan& plan) {
  std::vector<uint64_t> bytes;
  for (const RankPlan& rank : plan.ranks) {
    bytes.push_back(0);
    for (const FilePlan& file : rank.files()) {
      for (const WriteItem& item : file.items()) {
        const DType dtype = FromProto(plan.manifest.tensors(item.manifest_tensor()).dtype());
        bytes.back() += ElementCount(ItemBox(item).shape) * ElementSize(dtype);
      }
    }
  }
  return bytes;
}

// Properties of every plan: the manifest is valid and covered, and each item is part of a shard of
// the rank that writes it.
void ExpectSound(const std::vector<RankState>& ranks, SavePlan plan) {
  for (DataFile& file : *plan.manifest.mutable_files()) {
    file.mutable_chunk_crc32c()->Resize(
        static_cast<int>(CeilDivide(file.size_bytes(), file.chunk_bytes())), 0);
  }
  ASSERT_OK_AND_ASSIGN(const auto encoded, EncodeManifest(plan.manifest));
  EXPECT_OK(ValidateCoverage(plan.manifest));
  std::set<std::string> paths;
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const FilePlan& file : plan.ranks[r].files()) {
      EXPECT_TRUE(paths.insert(file.path()).second) << file.path();
      EXPECT_EQ(plan.manifest.files(file.file_index()).path(), file.path());
      ASSERT_OK_AND_ASSIGN(const auto header, DataFileHeader(ranks[r], file));
      for (const WriteItem& item : file.items()) {
        const LogicalTensor& tensor = ranks[r].tensors(item.local_tensor());
        EXPECT_EQ(tensor.name(), plan.manifest.tensors(item.manifest_tensor()).name());
        EXPECT_TRUE(Contains(ShardBox(tensor, item.local_shard()), ItemBox(item)));
        EXPECT_GE(item.file_offset(), header.size());
      }
    }
  }
  EXPECT_EQ(paths.size(), plan.manifest.files_size());
}

TEST(SavePlanTest, WhatOneRankAloneHoldsCountsInTheBalance) {
  std::vector<RankState> ranks(2);
  Add(ranks[0], "own", TensorRole::kWeight, DType::kF32, {300}, {WholeBox({300})});
  for (RankState& rank : ranks) {
    for (int i = 0; i < 5; ++i) {
      Add(rank, absl::StrCat("shared.", i), TensorRole::kWeight, DType::kF32, {100},
          {WholeBox({100})});
    }
  }
  SavePlanOptions options;
  options.min_split_bytes = 1000;
  ASSERT_OK_AND_ASSIGN(const auto plan, Plan(ranks, options));
  ExpectSound(ranks, plan);
  EXPECT_THAT(BytesPerRank(plan), testing::ElementsAre(1600, 1600));
}

TEST(SavePlanTest, SmallReplicasAreThoseOfOneRank) {
  std::vector<RankState> ranks(4);
  for (int r = 0; r < 4; ++r) {
    for (const char* name : {"norm.running_mean", "norm.running_var", "stage.norm.running_var"}) {
      if (name[0] == 's' && r < 2) continue;
      Add(ranks[r], name, TensorRole::kWeight, DType::kF32, {4096}, {WholeBox({4096})});
    }
  }
  ASSERT_OK_AND_ASSIGN(const auto plan, Plan(ranks, {}));
  ExpectSound(ranks, plan);
  EXPECT_THAT(BytesPerRank(plan), testing::ElementsAre(32 << 10, 0, 16 << 10, 0));
}

TEST(SavePlanTest, FilesByKindAndSize) {
  std::vector<RankState> ranks(2);
  for (int r = 0; r < 2; ++r) {
    Add(ranks[r], "w", TensorRole::kWeight, DType::kBF16, {8, 100}, {{{4 * r, 0}, {4, 100}}});
    Add(ranks[r], "buffer", TensorRole::kBuffer, DType::kU8, {2, 3}, {{{r, 0}, {1, 3}}});
    Add(ranks[r], "m", TensorRole::kOptimizerState, DType::kF32, {8, 100},
        {{{4 * r, 0}, {4, 100}}});
    Add(ranks[r], "master", TensorRole::kMasterWeight, DType::kF32, {8, 100},
        {{{4 * r, 0}, {4, 100}}});
  }
  auto plan = Plan(ranks, {});
  ASSERT_OK(plan);
  ExpectSound(ranks, *plan);
  std::vector<std::string> paths;
  for (const DataFile& file : plan->manifest.files()) paths.push_back(file.path());
  EXPECT_THAT(paths, testing::ElementsAre("model-00001-of-00002.safetensors",
                                          "model-00002-of-00002.safetensors",
                                          "optimizer-00001-of-00002.safetensors",
                                          "optimizer-00002-of-00002.safetensors"));
  SavePlanOptions options;
  options.max_file_bytes = 1000;  // splits the 1,600 bytes of "m" and "master" by rows
  plan = Plan(ranks, options);
  ASSERT_OK(plan);
  ExpectSound(ranks, *plan);
  EXPECT_EQ(plan->manifest.files_size(), 10);
  for (const DataFile& file : plan->manifest.files()) EXPECT_LE(file.size_bytes(), 4096 + 1000);
}

TEST(SavePlanTest, AFileIsFullAtTheLimit) {
  std::vector<RankState> ranks(1);
  for (const char* name : {"a", "b"}) {
    Add(ranks[0], name, TensorRole::kWeight, DType::kF32, {100}, {WholeBox({100})});
  }
  for (const auto& [limit, files] : {std::pair(800, 1), std::pair(799, 2)}) {
    SavePlanOptions options;
    options.max_file_bytes = limit;
    const auto plan = Plan(ranks, options);
    ASSERT_OK(plan);
    EXPECT_EQ(plan->manifest.files_size(), files) << limit;
  }
}

TEST(SavePlanTest, RefusalsNameTensorRankAndBox) {
  std::vector<RankState> ranks(2);
  Add(ranks[0], "gap", TensorRole::kWeight, DType::kF32, {4, 4}, {{{0, 0}, {2, 4}}});
  Add(ranks[1], "gap", TensorRole::kWeight, DType::kF32, {4, 4}, {{{2, 0}, {1, 4}}});
  Add(ranks[0], "dtype", TensorRole::kWeight, DType::kF32, {4}, {WholeBox({4})});
  Add(ranks[1], "dtype", TensorRole::kWeight, DType::kBF16, {4}, {});
  Add(ranks[0], "outside", TensorRole::kWeight, DType::kF32, {4}, {{{2}, {3}}});
  Add(ranks[0], "nowhere", TensorRole::kWeight, DType::kF32, {4}, {});
  Add(ranks[1], "alias", TensorRole::kWeight, DType::kF32, {4}, {}).set_alias_of("missing");
  const absl::Status status = Plan(ranks, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("tensor gap [4,4]: element [3,0]"), HasSubstr("rank 1 [2:3,0:4]"),
            HasSubstr("tensor dtype: rank 0 has WEIGHT F32 [4], rank 1 has WEIGHT BF16"),
            HasSubstr("tensor outside"), HasSubstr("[2:5]"), HasSubstr("tensor nowhere"),
            HasSubstr("held: nothing"), HasSubstr("alias of missing, which no rank describes")));
}

TEST(SavePlanTest, NothingToSave) {
  std::vector<RankState> ranks(3);
  Add(ranks[1], "empty", TensorRole::kWeight, DType::kF32, {0, 3}, {{{0, 0}, {0, 3}}});
  ASSERT_OK_AND_ASSIGN(const auto plan, Plan(ranks, {}));
  EXPECT_EQ(plan.manifest.tensors_size(), 1);
  EXPECT_EQ(plan.manifest.files_size(), 0);
}

double MaxOverMean(const SavePlan& plan) {
  const std::vector<uint64_t> bytes = BytesPerRank(plan);
  const double sum = std::accumulate(bytes.begin(), bytes.end(), 0.0);
  return *std::ranges::max_element(bytes) * bytes.size() / sum;
}

TEST(SavePlanTest, BalancedOverAnyNumberOfReplicas) {
  for (const int dp : {2, 3, 5, 8, 16, 33, 64}) {
    SCOPED_TRACE(dp);
    std::vector<RankState> ranks(dp);
    for (RankState& rank : ranks) {
      Add(rank, "embedding", TensorRole::kWeight, DType::kBF16, {32000, 512},
          {WholeBox({32000, 512})});
      Add(rank, "few.rows", TensorRole::kWeight, DType::kF32, {2, 3000000},
          {WholeBox({2, 3000000})});
      Add(rank, "one.row", TensorRole::kWeight, DType::kF32, {1, 1, 5000000},
          {WholeBox({1, 1, 5000000})});
      for (int i = 0; i < 20; ++i) {
        Add(rank, absl::StrCat("small.", i), TensorRole::kWeight, DType::kF32, {100 + i},
            {WholeBox({100 + i})});
      }
    }
    SavePlanOptions options;
    options.min_split_bytes = 16 << 10;
    ASSERT_OK_AND_ASSIGN(const auto plan, Plan(ranks, options));
    ExpectSound(ranks, plan);
    EXPECT_LE(MaxOverMean(plan), 1.1);
  }
}

TEST(SavePlanTest, BalancedOverGroupsThatShareRanks) {
  // Tensor parallel 2 over data parallel 4: half of each matrix on every second rank, norms on all.
  std::vector<RankState> ranks(8);
  for (int r = 0; r < 8; ++r) {
    for (int layer = 0; layer < 10; ++layer) {
      Add(ranks[r], absl::StrCat("w.", layer), TensorRole::kWeight, DType::kF32, {512, 512},
          {{{256 * (r % 2), 0}, {256, 512}}});
      Add(ranks[r], absl::StrCat("norm.", layer), TensorRole::kWeight, DType::kF32, {512},
          {WholeBox({512})});
    }
  }
  ASSERT_OK_AND_ASSIGN(const auto plan, Plan(ranks, {}));
  ExpectSound(ranks, plan);
  EXPECT_LE(MaxOverMean(plan), 1.1);
}

TEST(SavePlanTest, DescriptionsThatCannotBeReadAreNamed) {
  RankState rank;
  Add(rank, "w", TensorRole::kWeight, DType::kF32, {4}, {WholeBox({4})});
  const std::string good = rank.SerializeAsString();
  rank.mutable_tensors(0)->mutable_shards()->add_global_offset(
      1);  // a column longer than the other
  for (const std::string& bad :
       {good.substr(0, good.size() - 1), std::string("\xff\xff"), rank.SerializeAsString()}) {
    const absl::Status status = PlanSave(std::vector<std::string>{good, bad}, {}).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1")) << status;
  }
}

// A writer without the box would write other elements, under a valid checksum.
TEST(SavePlanTest, OnlyARankThatHoldsABoxCanWriteIt) {
  std::vector<RankState> ranks(2);
  Add(ranks[1], "other", TensorRole::kWeight, DType::kF32, {2}, {WholeBox({2})});
  for (RankState& rank : ranks) {
    Add(rank, "w", TensorRole::kWeight, DType::kF32, {4}, {WholeBox({4})});
  }
  ASSERT_OK_AND_ASSIGN(const MergedState state,
                       MergeRankStates(std::vector<std::string>{ranks[0].SerializeAsString(),
                                                                ranks[1].SerializeAsString()}));
  for (const MergedTensor& tensor : state.tensors) {
    const bool shared = state.DescriptionOf(tensor).name() == "w";
    ASSERT_OK_AND_ASSIGN(const LocalShard held, FindHeldShard(state, tensor.boxes[0], 1));
    EXPECT_EQ(held.tensor, shared ? 1 : 0);
    EXPECT_EQ(FindHeldShard(state, tensor.boxes[0], 0).ok(), shared);
    const absl::Status missing = FindHeldShard(state, tensor.boxes[0], 2).status();
    EXPECT_TRUE(absl::IsInternal(missing)) << missing;
    EXPECT_THAT(std::string(missing.message()),
                HasSubstr(shared ? "tensor w: rank 2 is to write box [0:4]"
                                 : "tensor other: rank 2 is to write box [0:2]"));
  }
}

// Every rank holds random boxes; together they may or may not cover the tensor, partly several
// times. The oracle examines each element.
TEST(SavePlanTest, RandomHoldingsAgainstEachElement) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  int planned = 0;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, " round ", round));
    const Shape shape = {1 + static_cast<int64_t>(random() % 6),
                         1 + static_cast<int64_t>(random() % 6)};
    std::vector<RankState> ranks(1 + random() % 4);
    std::vector<std::vector<int>> holders(ElementCount(shape));  // ranks, by element
    for (size_t r = 0; r < ranks.size(); ++r) {
      // A flat range, in boxes that are disjoint on this rank.
      const int64_t size = ElementCount(shape);
      const int64_t begin = random() % 3 == 0 ? 0 : random() % size;
      const int64_t end = random() % 3 == 0 ? size : begin + random() % (size - begin + 1);
      Add(ranks[r], "t", TensorRole::kWeight, DType::kBF16, shape,
          FlatRangeToBoxes(WholeBox(shape), begin, end));
      for (int64_t e = begin; e < end; ++e) holders[e].push_back(static_cast<int>(r));
    }
    const bool covered = std::ranges::none_of(holders, [](const auto& h) { return h.empty(); });
    SavePlanOptions options;
    options.min_split_bytes = 2 + random() % 20;
    options.max_file_bytes = 8 + random() % 100;
    const auto plan = Plan(ranks, options);
    ASSERT_EQ(plan.ok(), covered) << plan.status();
    if (!covered) {
      EXPECT_THAT(std::string(plan.status().message()),
                  AllOf(HasSubstr("tensor t "), HasSubstr("is in no shard")));
      continue;
    }
    ++planned;
    ExpectSound(ranks, *plan);
    std::vector<int> written(holders.size(), 0);
    for (size_t r = 0; r < ranks.size(); ++r) {
      for (const FilePlan& file : plan->ranks[r].files()) {
        for (const WriteItem& item : file.items()) {
          const Box box = ItemBox(item);
          for (int64_t y = 0; y < box.shape[0]; ++y) {
            for (int64_t x = 0; x < box.shape[1]; ++x) {
              const int64_t element =
                  (box.global_offset[0] + y) * shape[1] + box.global_offset[1] + x;
              ++written[element];
              EXPECT_THAT(holders[element], testing::Contains(static_cast<int>(r)));
            }
          }
        }
      }
    }
    EXPECT_THAT(written, testing::Each(1));
    if (HasFailure()) return;
  }
  EXPECT_GT(planned, 20);
}

}  // namespace
}  // namespace tessera::ckpt
