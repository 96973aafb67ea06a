#include "convert/megatron/rank_file.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/dcp/folder_layout.h"
#include "convert/pickle/write.h"
#include "convert/testing/string_file.h"
#include "convert/torch/archive.h"
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
  EXPECT_TRUE(archive.ok()) << archive.status();
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
  const auto chunks = Read([](pickle::Writer& writer) {
    WriteChunk("model0", {"decoder.layers.0.mlp.linear_fc1._extra_state"}, false, writer);
    WriteChunk("model1", {"decoder.layers.0.mlp.linear_fc1._extra_state"}, true, writer);
  });
  ASSERT_TRUE(chunks.ok()) << chunks.status();
  ASSERT_EQ(chunks->size(), 2);
  EXPECT_THAT((*chunks)[0].left_out, ElementsAre("decoder.layers.0.mlp.linear_fc1._extra_state"));
  EXPECT_TRUE((*chunks)[0].tensors.empty());
  EXPECT_TRUE((*chunks)[1].left_out.empty());
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

}  // namespace
}  // namespace tessera::ckpt::convert
