#include "convert/formats/paddle/distributed_files.h"

#include "absl/strings/str_replace.h"
#include "base/testing.h"
#include "convert/testing/string_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::HasSubstr;

TEST(DistributedFilesTest, KeysOfEveryForm) {
  struct Case {
    const char *key, *name;
    std::optional<PaddleState> state;
  };
  for (const Case& expected : std::vector<Case>{
           {"model.llama.norm.weight", "llama.norm.weight", std::nullopt},
           {"lm_head.weight", "lm_head.weight", std::nullopt},
           {"optimizer.linear_0.w_0.dist_moment1_0", "linear_0.w_0.dist", PaddleState::kMoment1},
           {"optimizer.linear_0.w_0_fp32_master_0_moment2_0", "linear_0.w_0",
            PaddleState::kMoment2},
           {"optimizer.linear_0.b_0_beta1_pow_acc_0", "linear_0.b_0", PaddleState::kBeta1Power},
           {"optimizer.master_weights.linear_0.w_0", "linear_0.w_0", PaddleState::kMasterWeight},
           {"optimizer.linear_0.w_0_fp32_master_0", "linear_0.w_0", PaddleState::kMasterWeight},
           {"llama.norm.weight.moment1_0", "llama.norm.weight", PaddleState::kMoment1},
           {"gpt.decoder.norm.bias.beta2_pow_acc_0", "gpt.decoder.norm.bias",
            PaddleState::kBeta2Power},
           {"llama.norm.weight.w_0", "llama.norm.weight", PaddleState::kMasterWeight}}) {
    const PaddleShardKey found = ParsePaddleShardKey(expected.key);
    EXPECT_EQ(found.name, expected.name) << expected.key;
    EXPECT_EQ(found.state, expected.state) << expected.key;
  }
}

const std::vector<PaddleShard>& TwoShards() {
  static const auto& shards = *new std::vector<PaddleShard>{
      {"model.a", WholeBox({4, 2}), DType::kBF16, "0_0.distcp"},
      {"optimizer.master_weights.a_0", WholeBox({}), DType::kF32, "12_0.distcp"}};
  return shards;
}

TEST(DistributedFilesTest, MetadataIsReadAsItWasWritten) {
  ASSERT_OK_AND_ASSIGN(const auto read,
                       ReadPaddleMetadata(StringFile(PaddleMetadataPickle(TwoShards()))));
  ASSERT_EQ(read.size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read[i].key, TwoShards()[i].key);
    EXPECT_EQ(read[i].box, TwoShards()[i].box);
    EXPECT_EQ(read[i].dtype, TwoShards()[i].dtype);
    EXPECT_EQ(read[i].file, TwoShards()[i].file);
  }
}

// Each replaces a text of the pickle by another of the same length.
TEST(DistributedFilesTest, MalformedMetadataIsRefused) {
  struct Case {
    std::string from, to, said;
  };
  for (const Case& refused : std::vector<Case>{
           {"LocalTensorMetadata", "LocalTensorMetadatA", "model.a: no list of shards"},
           {"metadata\nMetadata", "metadata\nMetaData", "not written by Paddle"},
           {"storage_metadata", "storage_metaDATA", "model.a: no file has the shard at [0,0]"},
           {"tensor_key", "tensor_KEY", "a tensor's key is empty"},
           {"optimizer.master_weights.a_0", std::string(28, '\xff'), "not valid UTF-8"},
           {"global_offset", "global_OFFSET", "the place of a shard is malformed"},
           {"bfloat16", "bfloat32", "model.a: the dtype bfloat32"},
           {"12_0.distcp", "../a.distcp", "is not a file name"}}) {
    const std::string pickle =
        absl::StrReplaceAll(PaddleMetadataPickle(TwoShards()), {{refused.from, refused.to}});
    const absl::Status status = ReadPaddleMetadata(StringFile(pickle)).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(refused.said));
  }
  std::vector<PaddleShard> twice = TwoShards();
  twice[1] = twice[0];
  EXPECT_THAT(
      std::string(ReadPaddleMetadata(StringFile(PaddleMetadataPickle(twice))).status().message()),
      HasSubstr("model.a: two shards begin at the same place"));
  std::string flat = PaddleMetadataPickle(TwoShards());
  const std::string field = "is_flattened";
  flat[flat.find(field) + field.size()] = '\x88';  // True
  EXPECT_THAT(std::string(ReadPaddleMetadata(StringFile(flat)).status().message()),
              HasSubstr("model.a: a shard that is a flat range"));
}

}  // namespace
}  // namespace tessera::ckpt::convert
