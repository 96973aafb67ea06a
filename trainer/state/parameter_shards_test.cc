#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/include/checkpoint.h"
#include "gtest/gtest.h"
#include "trainer/state/state_chunks.h"

namespace tessera {
namespace {

// Visits every element of every shard: logical name -> flat logical index -> value in memory.
std::map<std::string, std::map<int64_t, int64_t>> Contents(
    const std::vector<LogicalShards>& logical) {
  std::map<std::string, std::map<int64_t, int64_t>> contents;
  for (const LogicalShards& entry : logical) {
    const std::vector<int64_t> global_strides = ContiguousStrides(entry.piece->global_shape);
    for (const ckpt::Shard& shard : entry.shards) {
      const int64_t count = ElementCount(shard.box.shape);
      for (int64_t i = 0; i < count; ++i) {
        int64_t rest = i, memory = 0, global = 0;
        for (int dim = static_cast<int>(shard.box.shape.size()) - 1; dim >= 0; --dim) {
          const int64_t index = rest % shard.box.shape[dim];
          rest /= shard.box.shape[dim];
          memory += index * shard.strides[dim];
          global += (shard.box.global_offset[dim] + index) * global_strides[dim];
        }
        const bool inserted = contents[entry.piece->name]
                                  .emplace(global, static_cast<const int64_t*>(shard.data)[memory])
                                  .second;
        EXPECT_TRUE(inserted) << entry.piece->name << " element " << global << " twice";
      }
    }
  }
  return contents;
}

// A column slice of a fused matrix, as one tensor-parallel rank holds it: logical [4, 12], of which
// this rank holds columns [2, 4), [6, 8) and [10, 12), concatenated; then a padding column.
Parameter FusedColumns() {
  Parameter parameter;
  parameter.shape = {4, 7};
  for (int part = 0; part < 3; ++part) {
    parameter.pieces.push_back({.name = "c_attn",
                                .global_shape = {4, 12},
                                .global_offset = {0, 4 * part + 2},
                                .local_offset = {0, 2 * part},
                                .shape = {4, 2}});
  }
  return parameter;
}

// Two logical matrices, stacked by rows.
Parameter FusedRows() {
  Parameter parameter;
  parameter.shape = {6, 3};
  parameter.pieces = {{.name = "gate",
                       .global_shape = {8, 3},
                       .global_offset = {4, 0},
                       .local_offset = {0, 0},
                       .shape = {4, 3}},
                      {.name = "up",
                       .global_shape = {2, 3},
                       .global_offset = {0, 0},
                       .local_offset = {4, 0},
                       .shape = {2, 3}}};
  return parameter;
}

// Every range of every parameter, against a loop over local elements.
TEST(ShardsOfRangeTest, EveryRangeHoldsWhatItsElementsMean) {
  for (const Parameter& parameter : {FusedColumns(), FusedRows()}) {
    const int64_t count = ElementCount(parameter.shape);
    std::vector<int64_t> memory(count);
    for (int64_t i = 0; i < count; ++i) memory[i] = 1000 + i;
    for (int64_t begin = 0; begin <= count; ++begin) {
      for (int64_t end = begin; end <= count; ++end) {
        std::map<std::string, std::map<int64_t, int64_t>> expected;
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = i / parameter.shape[1], column = i % parameter.shape[1];
          for (const ParameterPiece& piece : parameter.pieces) {
            const int64_t r = row - piece.local_offset[0], c = column - piece.local_offset[1];
            if (r < 0 || c < 0 || r >= piece.shape[0] || c >= piece.shape[1]) continue;
            const int64_t global =
                (piece.global_offset[0] + r) * piece.global_shape[1] + piece.global_offset[1] + c;
            expected[piece.name][global] = 1000 + i;
          }
        }
        EXPECT_EQ(Contents(ShardsOfRange(parameter, begin, end, memory.data(), sizeof(int64_t))),
                  expected)
            << "range [" << begin << ", " << end << ")";
      }
    }
  }
}

TEST(ShardsOfRangeTest, EmptyRangeKeepsItsPiecesWithoutShards) {
  const Parameter parameter = FusedRows();
  const std::vector<LogicalShards> logical = ShardsOfRange(parameter, 5, 5, nullptr, 4);
  ASSERT_EQ(logical.size(), 2u);
  EXPECT_TRUE(logical[0].shards.empty());
  EXPECT_TRUE(logical[1].shards.empty());
}

}  // namespace
}  // namespace tessera
