#include "models/model_config.h"

#include <functional>

#include "absl/strings/str_join.h"
#include "base/testing.h"
#include "compute/kernels/reference/reference_backend.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "models/config/config_checks.h"
#include "models/layers/attention.h"
#include "models/layers/decoder_family.h"
#include "models/layers/model.h"
#include "models/registry.h"
#include "models/testing/profiling_backend.h"
#include "models/testing/test_model.h"

namespace tessera {
namespace {

using google::protobuf::util::MessageDifferencer;

ModelConfig Named(const std::string& size) {
  ModelConfig config;
  config.set_size(size);
  return config;
}

// GPT-2 124M's head costs as much as five layers.
TEST(ModelConfigTest, TheHeadCountsAsLayers) {
  ASSERT_OK_AND_ASSIGN(const auto gpt2, ResolveModelConfig(Named("gpt2-124m")));
  EXPECT_EQ(HeadInLayers(gpt2), 5);
}

// The counts that Hugging Face's models report.
TEST(ModelConfigTest, NamedSizesHaveTheirPublishedParameterCounts) {
  const struct {
    std::string size;
    int64_t parameters;
    int64_t ffn_hidden_size;
  } sizes[] = {{"gpt2-124m", 124439808, 3072},  {"gpt2-350m", 354823168, 4096},
               {"gpt2-774m", 774030080, 5120},  {"gpt2-1558m", 1557611200, 6400},
               {"llama3-1b", 1235814400, 8192}, {"llama3-3b", 3212749824, 8192},
               {"llama3-8b", 8030261248, 14336}};
  for (const auto& expected : sizes) {
    ASSERT_OK_AND_ASSIGN(const auto config, ResolveModelConfig(Named(expected.size)));
    EXPECT_EQ(ParameterCount(config), expected.parameters) << expected.size;
    EXPECT_EQ(config.ffn_hidden_size(), expected.ffn_hidden_size) << expected.size;
  }
}

TEST(ModelConfigTest, CountsWhatModelsHave) {
  const auto backend = MakeReferenceBackend();
  for (const std::string size : {"gpt2-tiny", "llama3-tiny"}) {
    for (const bool untied : {false, true}) {
      if (untied && size == "gpt2-tiny") continue;
      ModelConfig config = Named(size);
      config.set_vocab_size(250);
      config.set_untie_embeddings_and_output_weights(untied);
      const auto model = testing::MakeTestModel(config, {.compute_dtype = DType::kF32}, *backend);
      ASSERT_OK_AND_ASSIGN(const auto resolved, ResolveModelConfig(config));
      EXPECT_EQ(PaddedVocabSize(resolved), 256);
      EXPECT_EQ(model->parameters().logical_elements(), ParameterCount(resolved));
    }
  }
}

TEST(ModelConfigTest, EveryNamedSizeResolvesAndResolvingTwiceChangesNothing) {
  EXPECT_EQ(ModelSizeNames().size(), 9u);
  for (const std::string& size : ModelSizeNames()) {
    ASSERT_OK_AND_ASSIGN(const auto once, ResolveModelConfig(Named(std::string(size))));
    ASSERT_OK_AND_ASSIGN(const auto twice, ResolveModelConfig(once));
    EXPECT_TRUE(MessageDifferencer::Equals(once, twice)) << size;
  }
}

TEST(ModelConfigTest, FieldsOverrideTheNamedSize) {
  ModelConfig config = Named("gpt2-124m");
  config.set_num_layers(3);
  config.set_hidden_dropout(0.1);
  ASSERT_OK_AND_ASSIGN(const auto resolved, ResolveModelConfig(config));
  EXPECT_EQ(resolved.num_layers(), 3);
  EXPECT_EQ(resolved.hidden_size(), 768);
  EXPECT_EQ(resolved.hidden_dropout(), 0.1);
}

// 6 per weight of a matrix product: 12 C^2 per layer and the head; attention: 6 C (T + 1) per
// layer.
TEST(ModelConfigTest, FlopsPerToken) {
  const auto backend = MakeReferenceBackend();
  ModelConfig config = Named("gpt2-tiny");
  const auto gpt2 = testing::MakeTestModel(config, {.compute_dtype = DType::kF32}, *backend);
  EXPECT_EQ(gpt2->FlopsPerToken(31), 6.0 * (2 * 12 * 64 * 64 + 256 * 64) + 2 * 6.0 * 64 * 32);
  const auto llama =
      testing::MakeTestModel(Named("llama3-tiny"), {.compute_dtype = DType::kF32}, *backend);
  const double weights = 2 * (64 * 64 * 2 + 2 * 32 * 64 + 3 * 64 * 192) + 256 * 64;
  EXPECT_EQ(llama->FlopsPerToken(31), 6.0 * weights + 2 * 6.0 * 64 * 32);
}

// The count equals that of the products in a step, forward and backward.
TEST(ModelConfigTest, FlopsPerTokenAreThoseOfTheProductsRun) {
  constexpr int64_t kBatch = 2, kSequence = 24;
  for (const std::string size : {"gpt2-tiny", "llama3-tiny"}) {
    const auto reference = MakeReferenceBackend();
    testing::ProfilingBackend backend(*reference);
    const auto model = testing::MakeTestModel(Named(size), {.compute_dtype = DType::kF32}, backend);
    model->parameters().Initialize(1);
    const auto activations = model->NewActivations(kBatch, kSequence, ActivationUse::kTraining);
    const testing::TestBatch data = testing::MakeTestBatch(kBatch, kSequence, 256, 1);
    backend.Take();
    ASSERT_OK(model->Forward(data.batch, *activations, {}, {}));
    ASSERT_OK(model->Backward(data.batch, *activations, 1e-3, false, {}, {}, nullptr));
    double flops = 0;
    for (const auto& [name, total] : backend.Take()) flops += total.flops;
    EXPECT_EQ(flops, model->FlopsPerToken(kSequence) * kBatch * kSequence) << size;
  }
}

struct WrongField {
  std::string size;
  std::function<void(ModelConfig&)> change;
  std::string message;
};

TEST(ModelConfigTest, AWrongFieldIsNamedWithItsValue) {
  const std::vector<WrongField> wrong = {
      {"gpt3", [](ModelConfig&) {}, "size is \"gpt3\": it must be one of gpt2-tiny, "},
      {"", [](ModelConfig&) {},
       "architecture is missing: give --size, or --architecture with gpt2 or llama3; see --help"},
      {"", [](ModelConfig& c) { c.set_architecture(ModelConfig::GPT2); }, "num_layers is missing"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_architecture(ModelConfig::LLAMA3); },
       "architecture is LLAMA3, but size \"gpt2-tiny\" is GPT2"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_num_layers(0); }, "num_layers is 0"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_hidden_size(int64_t{1} << 62); }, "is 46116860"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_num_attention_heads(5); },
       "hidden_size is 64: num_attention_heads (5) must divide it"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_num_query_groups(2); }, "num_query_groups is 2"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_untie_embeddings_and_output_weights(true); },
       "untie_embeddings_and_output_weights is true"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_rotary_base(1e4); }, "rotary_base is set"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_hidden_dropout(1); }, "hidden_dropout is 1"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_attention_dropout(-0.5); },
       "attention_dropout is -0.5"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_norm_epsilon(0); }, "norm_epsilon is 0"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_init_method_std(-1); }, "init_method_std is -1"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_vocab_size(-4); }, "vocab_size is -4"},
      {"llama3-tiny", [](ModelConfig& c) { c.set_num_query_groups(3); },
       "num_attention_heads is 4: num_query_groups (3) must divide it"},
      {"llama3-tiny", [](ModelConfig& c) { c.set_ffn_multiplier(-2); }, "ffn_multiplier is -2"},
      {"llama3-tiny", [](ModelConfig& c) { c.set_ffn_multiple_of(0); }, "ffn_multiple_of is 0"},
      {"llama3-tiny",
       [](ModelConfig& c) { c.set_num_attention_heads(64), c.set_num_query_groups(2); },
       "hidden_size / num_attention_heads is 1"},
      {"llama3-tiny", [](ModelConfig& c) { c.set_rope_scaling_high_freq_factor(0.5); },
       "rope_scaling_high_freq_factor is 0.5: it must exceed"},
      {"llama3-tiny", [](ModelConfig& c) { c.set_rotary_base(-1); }, "rotary_base is -1"},
      {"llama3-tiny", [](ModelConfig& c) { c.set_rope_scaling_high_freq_factor(1.00000001); },
       "rope_scaling_high_freq_factor is 1: it must exceed"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_norm_epsilon(1e-39); }, "norm_epsilon is 1e-39"},
  };
  for (const WrongField& field : wrong) {
    ModelConfig config = Named(field.size);
    field.change(config);
    const auto resolved = ResolveModelConfig(config);
    EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument) << field.message;
    const std::string message(resolved.status().message());
    EXPECT_NE(message.find(field.message), std::string::npos)
        << message << "\nexpected: " << field.message;
  }
}

// What changes the function, and what is of training or of files alone.
TEST(ModelConfigTest, FieldsByWhichTwoModelsComputeDifferentFunctionsAreNamed) {
  const std::vector<WrongField> changes = {
      {"gpt2-tiny", [](ModelConfig& c) { c.set_norm_epsilon(1e-6); },
       "norm_epsilon is 1e-06, not 1e-05"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_norm_epsilon(1.00000001e-5); }, ""},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_use_biases(false); },
       "use_biases is false, not unset"},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_hidden_dropout(0.1); }, ""},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_attention_dropout(0.1); }, ""},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_make_vocab_size_divisible_by(2); }, ""},
      {"gpt2-tiny", [](ModelConfig& c) { c.set_init_method_std(0.1); }, ""},
      {"llama3-tiny", [](ModelConfig& c) { c.set_rope_scaling_factor(32); },
       "rope_scaling_factor is 32, not 8"},
      {"llama3-tiny", [](ModelConfig& c) { c.set_use_rope_scaling(false); },
       "use_rope_scaling is false, not true"},
      {"llama3-tiny", [](ModelConfig& c) { c.set_num_query_groups(4); },
       "num_query_groups is 4, not 2"},
      {"llama3-tiny", [](ModelConfig& c) { c.set_untie_embeddings_and_output_weights(true); }, ""},
      {"llama3-tiny",
       [](ModelConfig& c) {
         c.set_norm_epsilon(1);
         c.set_rotary_base(1);
       },
       "norm_epsilon is 1, not 1e-05; rotary_base is 1, not 500000"},
  };
  const auto describe = [](const std::vector<FieldDifference>& differences) {
    std::vector<std::string> texts;
    for (const FieldDifference& field : differences) texts.push_back(Describe(field));
    return absl::StrJoin(texts, "; ");
  };
  for (const WrongField& changed : changes) {
    ModelConfig config = Named(changed.size);
    ASSERT_OK_AND_ASSIGN(const auto original, ResolveModelConfig(config));
    changed.change(config);
    ASSERT_OK_AND_ASSIGN(const auto resolved, ResolveModelConfig(config));
    EXPECT_EQ(describe(FunctionDifferences(resolved, original)), changed.message);
    EXPECT_EQ(describe(ModelDifferences(original, original)), "");
  }
  ModelConfig plain = Named("llama3-tiny");
  plain.set_use_rope_scaling(false);
  ModelConfig other = plain;
  other.set_rope_scaling_factor(32);
  EXPECT_EQ(describe(ModelDifferences(*ResolveModelConfig(plain), *ResolveModelConfig(other))), "");
  other.set_untie_embeddings_and_output_weights(true);
  EXPECT_EQ(describe(ModelDifferences(*ResolveModelConfig(plain), *ResolveModelConfig(other))),
            "untie_embeddings_and_output_weights is false, not true");
}

TEST(ModelConfigTest, RotaryEmbeddingsThatAreTheSameInFp32TurnByTheSameAngles) {
  ASSERT_OK_AND_ASSIGN(const auto original, ResolveModelConfig(Named("llama3-tiny")));
  ModelConfig config = original;
  config.set_rotary_base(500000.015);
  config.set_rope_scaling_factor(8.0000001);
  config.set_rope_scaling_low_freq_factor(1.00000001);
  config.set_rope_scaling_high_freq_factor(4.0000001);
  EXPECT_TRUE(ModelDifferences(config, original).empty());
  EXPECT_EQ(MakeRope(config, true)->frequencies(), MakeRope(original, true)->frequencies());
}

TEST(ModelConfigTest, AWrongLayerRangeIsNamed) {
  const auto backend = MakeReferenceBackend();
  ModelOptions options;
  options.stage = {.first = 1, .last = 3, .has_embedding = true, .has_head = true};
  const auto model = MakeModel(Named("gpt2-tiny"), options, *backend);
  EXPECT_EQ(model.status().message(), "layers [1, 3) of a stage: num_layers is 2");
}

}  // namespace
}  // namespace tessera
