#include "convert/core/models.h"

#include "absl/status/status.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

using ::testing::HasSubstr;

constexpr char kSizes[] =
    "num_layers: 2 hidden_size: 8 num_attention_heads: 2 max_position_embeddings: 16 "
    "vocab_size: 32 ffn_hidden_size: 32 ";
constexpr char kGpt2[] = "architecture: GPT2 ";
constexpr char kLlama[] = "architecture: LLAMA3 use_rope_scaling: false ";
constexpr char kScaled[] = "architecture: LLAMA3 ";

ModelProto SizedModel(const std::string& text) {
  ModelProto model;
  model.set_text(kSizes + text);
  return model;
}

// Fields of a framework's configuration that make another model of it.
struct OtherModel {
  std::string framework, model;
  nlohmann::json fields;
  std::string said;  // empty: it is the same model
};

TEST(ModelsTest, SettingsThatChangeWhatAModelComputesAreRefusedByName) {
  const nlohmann::json list = nlohmann::json::array();
  const std::vector<OtherModel> others = {
      {kMegatron, kGpt2, {{"qk_l2_norm", true}}, "qk_l2_norm is true, only false is supported"},
      {kMegatron, kGpt2, {{"use_mup", true}}, "use_mup is true, only false"},
      {kMegatron, kLlama, {{"softmax_type", "off-by-one"}}, "only \"vanilla\" is supported"},
      {kMegatron, kLlama, {{"glu_linear_offset", 1.0}}, "glu_linear_offset is 1.0, only 0"},
      {kMegatron, kLlama, {{"softmax_scale", 0.5}}, "softmax_scale is set, which is not supported"},
      {kMegatron, kLlama, {{"window_size", list}}, "window_size is set"},
      {kMegatron, kLlama, {{"no_rope_freq", 4}}, "no_rope_freq is set"},
      {kMegatron, kLlama, {{"no_rope_freq", list}}, "no_rope_freq is set"},
      {kMegatron, kLlama, {{"rotary_base_per_layer", list}}, "rotary_base_per_layer is set"},
      {kMegatron, kLlama, {{"activation_func_clamp_value", 7.0}}, "clamp_value is set"},
      {kMegatron,
       kLlama,
       {{"softmax_type", "vanilla"}, {"glu_linear_offset", 0.0}, {"window_size", nullptr}},
       ""},
      {kPaddle,
       std::string(kLlama) + "untie_embeddings_and_output_weights: true",
       {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}},
       "rope_scaling is set, which is not supported"},
      {kPaddle,
       std::string(kLlama) + "untie_embeddings_and_output_weights: true",
       {{"use_long_sequence_strategies", true}},
       "use_long_sequence_strategies is true"},
      {kPaddle,
       std::string(kLlama) + "untie_embeddings_and_output_weights: true",
       {{"rope_scaling", nullptr}, {"use_long_sequence_strategies", false}},
       ""},
  };
  for (const OtherModel& other : others) {
    SCOPED_TRACE(other.fields.dump());
    ASSERT_OK_AND_ASSIGN(const auto text,
                         WriteForeignConfig(other.framework, SizedModel(other.model)));
    nlohmann::json json = nlohmann::json::parse(text);
    json.update(other.fields);
    const absl::Status status = ReadForeignConfig(other.framework, json.dump(), 99).status();
    EXPECT_EQ(status.ok(), other.said.empty()) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(other.said));
  }
}

struct NotHeld {
  std::string framework, model, said;
};

TEST(ModelsTest, ModelsThatAFormatCannotStateAreNotWritten) {
  const std::string scaled = kScaled, name = "rope_scaling_";
  const std::vector<NotHeld> all = {
      {kMegatron, scaled + "rope_scaling_factor: 32", ""},
      {kMegatron, kLlama + std::string("rope_scaling_low_freq_factor: 2"), ""},
      {kMegatron, scaled + "rope_scaling_low_freq_factor: 2", name + "low_freq_factor is 2"},
      {kMegatron, scaled + "rope_scaling_high_freq_factor: 8", name + "high_freq_factor is 8"},
      {kMegatron, scaled + "rope_scaling_original_max_position_embeddings: 4096",
       name + "original_max_position_embeddings is 4096"},
  };
  for (const NotHeld& model : all) {
    SCOPED_TRACE(model.model);
    const absl::Status status =
        WriteForeignConfig(model.framework, SizedModel(model.model)).status();
    EXPECT_EQ(status.ok(), model.said.empty()) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(model.said));
  }
}

}  // namespace
}  // namespace tessera::ckpt::convert
