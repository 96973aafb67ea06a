#include "convert/write_foreign.h"

#include <filesystem>
#include <utility>

#include "base/testing.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/models.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/box.h"
#include "models/registry.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Architecture& Gpt2() { return *Architectures().front(); }

// Hugging Face's GPT-2, whose config.json does not have the norms' epsilon.
const HuggingFaceFormat& ForgetfulFormat() {
  static const auto& format = *new HuggingFaceFormat([] {
    HuggingFaceFormat forgetful = *Gpt2().hugging_face;
    forgetful.model_type = "forgetful";
    forgetful.write_config = [](const ModelConfig& config, nlohmann::ordered_json& json) {
      Gpt2().hugging_face->write_config(config, json);
      json.erase("layer_norm_epsilon");
    };
    return forgetful;
  }());
  return format;
}

// A writer that forgets a setting of the model is found out when its files are read back.
TEST(WriteForeignTest, AModelThatReadsBackAsAnotherIsRefused) {
  static Architecture architecture = Gpt2();
  architecture.name = "forgetful";
  architecture.value = ModelConfig::OTHER;
  architecture.hugging_face = &ForgetfulFormat();
  RegisterArchitecture(architecture);
  for (const bool is_default : {true, false}) {
    ModelProto model;
    model.set_text(
        "architecture: OTHER other_architecture: \"forgetful\" num_layers: 1 hidden_size: 4 "
        "num_attention_heads: 1 max_position_embeddings: 4 vocab_size: 8 norm_epsilon: " +
        std::string(is_default ? "1e-5" : "0.001"));
    ASSERT_OK_AND_ASSIGN(const ModelConfig config, ConfigOf(model));
    std::vector<float> zeros(64);
    StateDict state;
    for (const LogicalParameter& parameter : LogicalParameters(config)) {
      state.tensors.push_back(
          {.name = parameter.name, .dtype = DType::kF32, .global_shape = parameter.shape});
      state.tensors.back().shards = {
          Shard::Untyped(zeros.data(), DType::kF32, WholeBox(parameter.shape))};
    }
    Manifest described;
    *described.mutable_model() = DescribeModel(config).config;
    // The trainer's entry of this name is beside the message.
    described.mutable_trainer()->mutable_numerics()->set_library("none");
    (*described.mutable_trainer()->mutable_extra())["numerics"] = "FAST";
    const TestFolder folder;
    ASSERT_OK_AND_ASSIGN(const auto saved,
                         CheckpointFolder::Open(folder.File("ours"), {.create_root = true}));
    ASSERT_OK(saved.Save({.step = 1, .metadata = ToMetadata(std::move(described))}, state));
    ASSERT_OK_AND_ASSIGN(const Checkpoint source, saved.Latest());
    const std::string hf = folder.File("hf");
    const absl::StatusOr<WriteForeignReport> written = WriteForeign(source, hf, {.format = "hf"});
    EXPECT_EQ(std::filesystem::exists(hf), is_default);
    if (is_default) {
      ASSERT_OK(written);
      EXPECT_THAT(written->left_out.trainer, ElementsAre("step", "numerics"));
      continue;
    }
    EXPECT_TRUE(absl::IsInvalidArgument(written.status())) << written.status();
    EXPECT_THAT(std::string(written.status().message()),
                HasSubstr("the format does not keep the model: norm_epsilon is 1e-05, not 0.001"));
  }
}

}  // namespace
}  // namespace tessera::ckpt::convert
