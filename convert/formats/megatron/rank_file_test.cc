#include "convert/formats/megatron/rank_file.h"

#include <functional>

#include "base/testing.h"
#include "convert/formats/dcp/metadata.h"
#include "convert/pickle/write.h"
#include "convert/testing/string_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What ReadRankChunks() makes of a file with these entries.
absl::StatusOr<std::vector<RankChunk>> Read(const std::function<void(pickle::Writer&)>& entries) {
  pickle::Writer writer;
  writer.BeginDict();
  entries(writer);
  writer.EndDict();
  const StringFile file(TorchObjectFile("model_optim_rng.pt", std::move(writer).Finish()).header);
  const auto archive = ReadTorchArchive(file, {0, file.size_bytes()});
  EXPECT_OK(archive);
  return ReadRankChunks(*archive);
}

// Writes a chunk of the model with entries of these names, whose values are not tensors.
void WriteChunk(const std::string& key, const std::vector<std::string>& names, bool are_none,
                pickle::Writer& writer) {
  writer.Text(key);
  writer.BeginDict();
  for (const std::string& name : names) {
    writer.Text(name);
    if (are_none) {
      writer.None();
    } else {
      writer.Text("state");
    }
  }
  writer.EndDict();
}

TEST(RankFileTest, StatesOfModulesAreNamedAndLeftOut) {
  ASSERT_OK_AND_ASSIGN(
      const auto chunks, Read([](pickle::Writer& writer) {
        WriteChunk("model0", {"decoder.layers.0.mlp.linear_fc1._extra_state"}, false, writer);
        WriteChunk("model1", {"decoder.layers.0.mlp.linear_fc1._extra_state"}, true, writer);
      }));
  ASSERT_EQ(chunks.size(), 2);
  EXPECT_THAT(chunks[0].left_out, ElementsAre("decoder.layers.0.mlp.linear_fc1._extra_state"));
  EXPECT_TRUE(chunks[0].tensors.empty());
  EXPECT_TRUE(chunks[1].left_out.empty());
}

TEST(RankFileTest, RefusesWhatIsNoModelOfMegatronCore) {
  EXPECT_THAT(
      Read([](pickle::Writer& writer) { WriteChunk("model", {"language_model"}, false, writer); })
          .status()
          .message(),
      HasSubstr("before Megatron-Core"));
  EXPECT_THAT(Read([](pickle::Writer& writer) { WriteChunk("weights", {"a"}, false, writer); })
                  .status()
                  .message(),
              HasSubstr("neither \"model\" nor \"model0\""));
  EXPECT_THAT(Read([](pickle::Writer& writer) { WriteChunk("model", {"a"}, false, writer); })
                  .status()
                  .message(),
              HasSubstr("tensor a: no tensor"));
}

using Found = std::optional<std::pair<size_t, size_t>>;

Found Find(const std::vector<int64_t>& ranks, const RankGrid& grid) {
  const auto found = FindMisplacedFile(ranks, grid);
  return found ? Found({found->file, found->place}) : std::nullopt;
}

TEST(RankOrderTest, FilesInTheirPlaces) {
  EXPECT_EQ(Find({0}, {}), std::nullopt);
  EXPECT_EQ(Find({0, 1, 2, 3}, {.tensor_ranks = 2}), std::nullopt);
  // Stages are the outermost axis, or data-parallel ranks are.
  EXPECT_EQ(Find({0, 1, 6, 7}, {.tensor_ranks = 2, .data_ranks = 3}), std::nullopt);
  EXPECT_EQ(Find({0, 1, 2, 3}, {.tensor_ranks = 2, .data_ranks = 3}), std::nullopt);
  EXPECT_EQ(Find({0, 1, 24, 25}, {.tensor_ranks = 2, .context_ranks = 4, .data_ranks = 3}),
            std::nullopt);
  // Sizes that the arguments do not tell.
  EXPECT_EQ(Find({0, 1, 24, 25}, {.tensor_ranks = 2}), std::nullopt);
}

TEST(RankOrderTest, FilesThatWereExchanged) {
  EXPECT_EQ(Find({1, 0}, {.tensor_ranks = 2}), Found({0, 1}));
  EXPECT_EQ(Find({0, 3, 2, 1}, {.tensor_ranks = 2}), Found({1, 3}));
  EXPECT_EQ(Find({24, 1, 0, 25}, {.tensor_ranks = 2}), Found({0, 2}));
  EXPECT_EQ(Find({4, 0}, {.data_ranks = 4}), Found({0, 1}));
}

TEST(RankOrderTest, ACopyInAnotherPlace) {
  EXPECT_EQ(Find({0, 0, 2, 3}, {.tensor_ranks = 2}), Found({1, 0}));
  EXPECT_EQ(Find({0, 4, 4}, {.data_ranks = 4}), Found({2, 1}));
}

TEST(RankOrderTest, ProgramsThatWriteSeveralFilesTellNothing) {
  EXPECT_EQ(Find({0, 0, 0, 0}, {.tensor_ranks = 2}), std::nullopt);
  EXPECT_EQ(Find({5, 5}, {.tensor_ranks = 2}), std::nullopt);
  EXPECT_EQ(Find({0, 0, 1, 1}, {.tensor_ranks = 2}), std::nullopt);
}

TEST(RankOrderTest, HostileNumbers) {
  const RankGrid grid = {
      .tensor_ranks = INT64_MAX, .context_ranks = INT64_MAX, .data_ranks = INT64_MIN};
  EXPECT_EQ(Find({INT64_MIN, 0, INT64_MAX}, grid), std::nullopt);
  EXPECT_EQ(Find({}, grid), std::nullopt);
}

}  // namespace
}  // namespace tessera::ckpt::convert
