#include "models/layers/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "compute/kernels/reference/reference_backend.h"
#include "compute/parallel/tensor_parallel.h"
#include "models/layers/model.h"
#include "models/testing/test_model.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

std::vector<std::string> Names(const std::vector<NamedParameter>& parameters) {
  std::vector<std::string> names;
  for (const NamedParameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

class ModuleTest : public ::testing::Test {
 protected:
  std::unique_ptr<Model> Make(const ModelConfig& config, const ModelOptions& options = {}) {
    return testing::MakeTestModel(config, options, *backend_);
  }

  // Returns the names with `of_layer` in place of "LAYER", for each of two layers.
  static std::vector<std::string> Layers(const std::string& layers,
                                         const std::vector<std::string>& of_layer) {
    std::vector<std::string> names;
    for (const std::string layer : {"0.", "1."}) {
      for (const std::string& name : of_layer) names.push_back(layers + layer + name);
    }
    return names;
  }

  const std::unique_ptr<Backend> backend_ = MakeReferenceBackend();
};

// The order of named_parameters() of transformers' GPT2LMHeadModel and LlamaForCausalLM.
TEST_F(ModuleTest, Gpt2HasTorchsNamesAndOrder) {
  std::vector<std::string> names =
      Layers("transformer.h.",
             {"ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
              "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
              "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"});
  names.insert(names.begin(), {"transformer.wte.weight", "transformer.wpe.weight"});
  names.insert(names.end(), {"transformer.ln_f.weight", "transformer.ln_f.bias"});
  EXPECT_THAT(Names(Make(testing::SmallGpt2())->module().NamedParameters()),
              ElementsAreArray(names));
}

TEST_F(ModuleTest, Llama3HasTorchsNamesAndOrder) {
  for (const bool tied : {false, true}) {
    std::vector<std::string> names = Layers(
        "model.layers.",
        {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
         "self_attn.o_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
         "mlp.down_proj.weight", "input_layernorm.weight", "post_attention_layernorm.weight"});
    names.insert(names.begin(), "model.embed_tokens.weight");
    names.emplace_back("model.norm.weight");
    if (!tied) names.emplace_back("lm_head.weight");
    EXPECT_THAT(Names(Make(testing::SmallLlama3(tied))->module().NamedParameters()),
                ElementsAreArray(names));
  }
}

TEST_F(ModuleTest, NamesAreRelativeAndFollowThePrefix) {
  const std::unique_ptr<Model> model = Make(testing::SmallGpt2());
  const Module attention = model->module().Submodule("transformer.h.1.attn");
  EXPECT_THAT(Names(attention.NamedParameters()),
              ElementsAre("c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias"));
  EXPECT_THAT(
      Names(attention.NamedParameters("a.b")),
      ElementsAre("a.b.c_attn.weight", "a.b.c_attn.bias", "a.b.c_proj.weight", "a.b.c_proj.bias"));
  EXPECT_EQ(Names(model->module().Submodule("").NamedParameters("m"))[0],
            "m.transformer.wte.weight");
  // A name's beginning is not a module.
  EXPECT_THAT(model->module().Submodule("transformer.h.1.att").NamedParameters(), IsEmpty());
}

TEST_F(ModuleTest, WithoutRecursionAModuleHasItsOwnAlone) {
  const std::unique_ptr<Model> model = Make(testing::SmallGpt2());
  const Module root = model->module();
  EXPECT_THAT(root.NamedParameters("", /*recurse=*/false), IsEmpty());
  EXPECT_THAT(root.Submodule("transformer").NamedParameters("", false), IsEmpty());
  EXPECT_THAT(Names(root.Submodule("transformer.h.0.ln_1").NamedParameters("x", false)),
              ElementsAre("x.weight", "x.bias"));
}

// Llama's q, k and v are in one buffer; each virtual shard has its own.
TEST_F(ModuleTest, PartsAreThePiecesOfThisRank) {
  const TensorParallel two_shards(nullptr, 2, /*sequence_parallel=*/false);
  const std::unique_ptr<Model> model =
      Make(testing::SmallLlama3(/*tied=*/true), {.tensor_parallel = &two_shards});
  const std::vector<NamedParameter> parameters =
      model->module().Submodule("model.layers.0.self_attn").NamedParameters();
  ASSERT_EQ(parameters.size(), 4u);
  for (const NamedParameter& parameter : parameters) {
    ASSERT_EQ(parameter.parts.size(), 2u) << parameter.name;
    for (const NamedParameter::Part& part : parameter.parts) {
      EXPECT_EQ(part.piece->name, "model.layers.0.self_attn." + parameter.name);
    }
  }
  EXPECT_EQ(parameters[0].parts[1].parameter, parameters[2].parts[1].parameter);
  EXPECT_NE(parameters[0].parts[0].parameter, parameters[0].parts[1].parameter);
}

}  // namespace
}  // namespace tessera
