#include "convert/core/foreign_layout.h"

#include <algorithm>
#include <random>

#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::convert {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Index = std::vector<int64_t>;

// Calls visit(index) for every index of a shape, in row-major order.
template <typename Visit>
void ForEachIndex(const Shape& shape, const Visit& visit) {
  if (ElementCount(shape) == 0) return;
  Index index(shape.size());
  while (true) {
    visit(std::as_const(index));
    size_t d = shape.size();
    while (d > 0 && ++index[d - 1] == shape[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

int64_t FlatIndex(const Index& index, const Shape& shape) {
  int64_t flat = 0;
  for (size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + index[d];
  return flat;
}

class RandomParameter {
 public:
  explicit RandomParameter(std::mt19937_64& random) : random_(random) {
    const size_t rank = Draw(1, 3);
    share_size = Draw(1, 3);
    parameter.name = "fused";
    for (size_t d = 0; d < rank; ++d) parameter.shape.push_back(Draw(1, 6));
    if (Draw(0, 3) > 0) {
      parameter.tensor_parallel_dim = static_cast<int>(Draw(0, rank - 1));
      parameter.sections = Draw(1, 2);
      parameter.shape[parameter.tensor_parallel_dim] = parameter.sections * share_size * Draw(1, 3);
    }
    const auto dim = static_cast<size_t>(Draw(0, rank - 1));
    for (int64_t at = 0; at < parameter.shape[dim];) {
      const int64_t count = std::min(Draw(1, 4), parameter.shape[dim] - at);
      const bool is_padding = Draw(0, 4) == 0;
      if (!is_padding && count % 2 == 0 && Draw(0, 1) == 1) {
        AddBlock(dim, at, count / 2, 2);
        AddBlock(dim, at + 1, count / 2, 2);
      } else if (!is_padding) {
        AddBlock(dim, at, count, 1);
      }
      at += count;
    }
  }

  int64_t Draw(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  ForeignParameter parameter;
  int64_t share_size = 1;
  ModelDescription model;
  // For each logical tensor, the flat index in the parameter of each of its elements.
  std::map<std::string, std::vector<int64_t>> expected;

 private:
  void AddBlock(size_t dim, int64_t begin, int64_t count, int64_t step) {
    const size_t foreign_rank = parameter.shape.size();
    ForeignBlock block = {.foreign_offset = Index(foreign_rank)};
    block.foreign_offset[dim] = begin;
    if (step > 1) {
      block.foreign_step = Index(foreign_rank, 1);
      block.foreign_step[dim] = step;
    }
    Shape shape = parameter.shape;
    shape[dim] = count;
    if (dim == 0 && count == 1 && foreign_rank > 1 && Draw(0, 1) == 1) shape.erase(shape.begin());
    block.transposed = shape.size() >= 2 && Draw(0, 1) == 1;
    if (block.transposed) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
    Place(std::move(shape), block);
    Remember(block);
    parameter.blocks.push_back(std::move(block));
  }

  // The block becomes a tensor, or is appended to the last one.
  void Place(Shape shape, ForeignBlock& block) {
    block.offset.assign(shape.size(), 0);
    block.shape = shape;
    LogicalParameter* const last = model.parameters.empty() ? nullptr : &model.parameters.back();
    if (last != nullptr && last->shape.size() == shape.size() &&
        std::equal(shape.begin() + 1, shape.end(), last->shape.begin() + 1) && Draw(0, 1) == 1) {
      block.offset[0] = last->shape[0];
      last->shape[0] += shape[0];
    } else {
      model.parameters.push_back(
          {.name = "tensor" + std::to_string(model.parameters.size()), .shape = std::move(shape)});
    }
    block.name = model.parameters.back().name;
  }

  void Remember(const ForeignBlock& block) {
    const size_t extra = parameter.shape.size() - block.shape.size();
    ForEachIndex(block.shape, [&](Index index) {
      if (block.transposed) std::swap(index[index.size() - 1], index[index.size() - 2]);
      Index foreign = block.foreign_offset;
      for (size_t d = 0; d < index.size(); ++d) {
        const int64_t step = block.foreign_step.empty() ? 1 : block.foreign_step[extra + d];
        foreign[extra + d] += index[d] * step;
      }
      expected[block.name].push_back(FlatIndex(foreign, parameter.shape));
    });
  }

  std::mt19937_64& random_;
};

// What a rank has: the parameter's elements as their flat indices.
std::vector<int32_t> LocalElements(const ForeignParameter& parameter,
                                   const TensorParallelShare& share) {
  const int dim = parameter.tensor_parallel_dim;
  std::vector<int32_t> elements;
  ForEachIndex(parameter.shape, [&](const Index& index) {
    if (dim >= 0) {
      const int64_t section = parameter.shape[dim] / parameter.sections;
      const int64_t part = section / share.size;
      if (index[dim] % section / part != share.rank) return;
    }
    elements.push_back(static_cast<int32_t>(FlatIndex(index, parameter.shape)));
  });
  return elements;
}

// Compares the pieces of every tensor, element by element, with what is expected.
void CheckPieces(const std::vector<ForeignTensor>& tensors,
                 const std::map<std::string, std::vector<int32_t>>& files,
                 const RandomParameter& random, int64_t copies) {
  ASSERT_EQ(tensors.size(), random.expected.size());
  for (const ForeignTensor& tensor : tensors) {
    const std::vector<int64_t>& expected = random.expected.at(tensor.name);
    std::vector<int64_t> seen(expected.size());
    for (const StoredPiece& piece : tensor.pieces) {
      const std::vector<int32_t>& file = files.at(piece.file);
      ASSERT_EQ(piece.offset_bytes % 4, 0);
      ForEachIndex(piece.box.shape, [&](Index index) {
        int64_t at = static_cast<int64_t>(piece.offset_bytes / 4);
        for (size_t d = 0; d < index.size(); ++d) {
          at += index[d] * piece.strides[d];
          index[d] += piece.box.global_offset[d];
        }
        const int64_t flat = FlatIndex(index, tensor.shape);
        ASSERT_LT(at, file.size());
        ASSERT_EQ(file[at], expected[flat]) << tensor.name << " element " << flat;
        ++seen[flat];
      });
    }
    for (const int64_t count : seen) ASSERT_EQ(count, copies) << tensor.name;
  }
}

TEST(ForeignTensorSetTest, RandomRangesHaveTheElementsOfAnOracle) {
  std::mt19937_64 generator(TestSeed());
  for (int trial = 0; trial < 2000; ++trial) {
    RandomParameter random(generator);
    const ForeignParameter& parameter = random.parameter;
    ForeignTensorSet set(random.model);
    std::map<std::string, std::vector<int32_t>> files;
    for (int64_t rank = 0; rank < random.share_size; ++rank) {
      const TensorParallelShare share = {rank, random.share_size};
      const std::vector<int32_t> local = LocalElements(parameter, share);
      const auto count = static_cast<int64_t>(local.size());
      for (int64_t begin = 0; begin < count;) {
        const int64_t end = std::min(count, begin + random.Draw(1, count));
        const std::string name = std::to_string(rank) + ":" + std::to_string(begin);
        std::vector<int32_t>& file = files[name];
        const int64_t before = random.Draw(0, 5);
        file.assign(before, -1);
        file.insert(file.end(), local.begin() + begin, local.begin() + end);
        ASSERT_OK(set.AddRange(parameter, share, kForeignWeight, begin, end,
                               {name, static_cast<uint64_t>(before) * 4, DType::kI32}));
        begin = end;
      }
    }
    const int64_t copies = parameter.tensor_parallel_dim < 0 ? random.share_size : 1;
    CheckPieces(std::move(set).Finish(), files, random, copies);
    ASSERT_FALSE(HasFatalFailure()) << "trial " << trial;
  }
}

// Columns of a rank's share, stored column by column.
TEST(ForeignTensorSetTest, RandomBoxesWithStridesHaveTheElementsOfAnOracle) {
  std::mt19937_64 generator(TestSeed());
  for (int trial = 0; trial < 500; ++trial) {
    RandomParameter random(generator);
    const ForeignParameter& parameter = random.parameter;
    ForeignTensorSet set(random.model);
    std::map<std::string, std::vector<int32_t>> files;
    for (int64_t rank = 0; rank < random.share_size; ++rank) {
      const TensorParallelShare share = {rank, random.share_size};
      const std::vector<int32_t> local = LocalElements(parameter, share);
      const Shape shape = *LocalShape(parameter, share.size);
      const int64_t columns = shape.back(), rows = static_cast<int64_t>(local.size()) / columns;
      for (int64_t begin = 0; begin < columns;) {
        const int64_t count = std::min(random.Draw(1, 3), columns - begin);
        const std::string name = std::to_string(rank) + ":" + std::to_string(begin);
        std::vector<int32_t>& file = files[name];
        for (int64_t column = begin; column < begin + count; ++column) {
          for (int64_t row = 0; row < rows; ++row) file.push_back(local[row * columns + column]);
        }
        Box box = WholeBox(shape);
        box.global_offset.back() = begin;
        box.shape.back() = count;
        Index strides(shape.size(), 1);
        for (size_t d = shape.size() - 1; d-- > 0;) {
          strides[d] = d + 2 == shape.size() ? 1 : strides[d + 1] * shape[d + 1];
        }
        strides.back() = rows;
        ASSERT_OK(
            set.AddBox(parameter, share, kForeignWeight, box, {name, 0, DType::kI32}, strides));
        begin += count;
      }
    }
    const int64_t copies = parameter.tensor_parallel_dim < 0 ? random.share_size : 1;
    CheckPieces(std::move(set).Finish(), files, random, copies);
    ASSERT_FALSE(HasFatalFailure()) << "trial " << trial;
  }
}

ModelDescription TwoParameters() {
  return {.parameters = {{.name = "table", .shape = {4, 2}, .tied_name = "head"},
                         {.name = "bias", .shape = {6}, .weight_decay = false}}};
}

ForeignParameter Bias() {
  return {.name = "linear.bias",
          .shape = {6},
          .tensor_parallel_dim = 0,
          .sections = 1,
          .blocks = {{.name = "bias", .offset = {0}, .shape = {6}, .foreign_offset = {0}}}};
}

TEST(ForeignTensorSetTest, DescribesWeightsTiesAndOptimizerStates) {
  const ModelDescription model = TwoParameters();
  const ForeignParameter table = {
      .name = "word.weight",
      .shape = {8, 2},  // four rows of padding
      .tensor_parallel_dim = 0,
      .blocks = {{.name = "table", .offset = {0, 0}, .shape = {4, 2}, .foreign_offset = {0, 0}}}};
  ForeignTensorSet set(model);
  for (const int64_t rank : {0, 1}) {
    const std::string file = "rank" + std::to_string(rank);
    ASSERT_OK(set.AddRange(table, {rank, 2}, kForeignWeight, 0, 8, {file, 0, DType::kBF16}));
    ASSERT_OK(set.AddRange(table, {rank, 2}, kForeignMaster, 0, 8, {file, 100, DType::kF32}));
    ASSERT_OK(set.AddRange(Bias(), {rank, 2}, kForeignExpAvg, 0, 3, {file, 200, DType::kF32}));
    ASSERT_OK(set.AddRange(Bias(), {rank, 2}, kForeignExpAvgSq, 0, 3, {file, 220, DType::kF32}));
    ASSERT_OK(set.AddRange(table, {rank, 2}, kForeignExpAvg, 0, 8, {file, 300, DType::kF32}));
  }
  EXPECT_EQ(set.CheckComplete().message(), "no file has bias, table.exp_avg_sq, bias.master");
  ForeignCheckpoint checkpoint;
  set.DescribeOptimizer("megatron", checkpoint);
  // A moment alone may be another optimizer's.
  EXPECT_THAT(checkpoint.notes,
              ElementsAre("Left out: moments of AdamW without their counterparts: table.exp_avg."));
  const OptimizerState& optimizer = checkpoint.description.optimizer();
  EXPECT_EQ(optimizer.algorithm(), "adamw");
  ASSERT_EQ(optimizer.parameters_size(), 2);
  EXPECT_EQ(optimizer.parameters(0).parameter(), "table");
  EXPECT_EQ(optimizer.parameters(0).group(), 0);
  EXPECT_EQ(optimizer.parameters(0).states().at("master"), "table.master");
  EXPECT_EQ(optimizer.parameters(0).foreign_names().at("megatron"), "word.weight");
  EXPECT_EQ(optimizer.parameters(1).group(), 1);
  EXPECT_EQ(optimizer.parameters(1).states().at("exp_avg"), "bias.exp_avg");

  const std::vector<ForeignTensor> tensors = std::move(set).Finish();
  ASSERT_EQ(tensors.size(), 5);
  EXPECT_EQ(tensors[0].name, "table");
  EXPECT_EQ(tensors[0].dtype, DType::kBF16);
  ASSERT_EQ(tensors[0].pieces.size(), 1);  // rank 1 has padding only
  EXPECT_EQ(tensors[0].pieces[0].file, "rank0");
  EXPECT_EQ(tensors[1].name, "head");
  EXPECT_EQ(tensors[1].alias_of, "table");
  EXPECT_EQ(tensors[2].name, "table.master");
  EXPECT_EQ(tensors[2].role, TensorRole::kMasterWeight);
  EXPECT_EQ(tensors[3].name, "bias.exp_avg");
  EXPECT_EQ(tensors[3].role, TensorRole::kOptimizerState);
  ASSERT_EQ(tensors[3].pieces.size(), 2);
  EXPECT_THAT(tensors[3].pieces[1].box.global_offset, ElementsAre(3));
  EXPECT_EQ(tensors[3].pieces[1].offset_bytes, 200);
}

TEST(ForeignTensorSetTest, RefusesWhatDoesNotFit) {
  const ModelDescription model = TwoParameters();
  ForeignTensorSet set(model);
  const auto message = [&](int64_t size, int64_t begin, int64_t end, DType dtype) {
    return std::string(
        set.AddRange(Bias(), {0, size}, kForeignWeight, begin, end, {"file.pt", 0, dtype})
            .message());
  };
  EXPECT_THAT(message(4, 0, 1, DType::kF32), HasSubstr("linear.bias: 1 parts for each of 4"));
  EXPECT_THAT(message(2, 0, 4, DType::kF32),
              HasSubstr("file.pt: linear.bias: elements [0, 4) of [3]"));
  EXPECT_THAT(message(2, 2, 1, DType::kF32), HasSubstr("elements [2, 1)"));
  EXPECT_EQ(message(2, 0, 1, DType::kF32), "");
  EXPECT_THAT(message(2, 1, 2, DType::kBF16), HasSubstr("BF16, but other parts of bias are F32"));
  EXPECT_THAT(
      set.AddWhole(Bias(), {0, 2}, kForeignWeight, {6}, {"file.pt", 0, DType::kF32}, {1}).message(),
      HasSubstr("shape [6], expected [3]"));
  for (const int64_t extent : {3, 1, 0}) {
    EXPECT_THAT(set.AddBox(Bias(), {0, 2}, kForeignWeight, {{0}, {extent}},
                           {"file.pt", 0, DType::kF32}, {int64_t{1} << 61})
                    .message(),
                HasSubstr("beyond what a file can hold"));
  }
  EXPECT_THAT(
      set.AddBox(Bias(), {0, 2}, kForeignWeight, {{0}, {3}}, {"file.pt", 0, DType::kF32}, {-1})
          .message(),
      HasSubstr("with strides [-1]"));
}

TEST(ForeignTensorSetTest, AModelMustFitItsFiles) {
  EXPECT_OK(CheckModelFits(TwoParameters(), 14));
  EXPECT_FALSE(CheckModelFits(TwoParameters(), 13).ok());
  const ModelDescription huge = {
      .parameters = {{.name = "a", .shape = {int64_t{1} << 40, int64_t{1} << 40}}}};
  EXPECT_THAT(CheckModelFits(huge, UINT64_MAX).message(), HasSubstr("more parameters than"));
}

}  // namespace
}  // namespace tessera::ckpt::convert
