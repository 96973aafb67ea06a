// State dicts of torch and of torch.distributed.checkpoint, in the names of transformers and of
// Meta, as models of this library. What transformers itself stores in its own format is the judge.

#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert/foreign_storage.h"
#include "checkpoint/convert/formats/open_foreign.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/convert/model_rules.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tensors = std::map<std::string, std::vector<float>>;

std::string Fixture(const std::string& name) { return "tests/interop/state_dict/" + name; }
std::string HuggingFace(const std::string& name) { return "tests/fixtures/pytorch/" + name; }

absl::StatusOr<std::unique_ptr<ckpt::convert::ForeignStorage>> Open(
    const std::string& name, const ckpt::ModelConfig* model = nullptr) {
  return ckpt::convert::OpenForeign(name, {.rules = &RegisteredModelRules(), .model = model});
}

ckpt::Manifest ManifestOf(ckpt::Storage& storage) {
  const auto manifest = ckpt::ReadManifest(storage, "");
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return manifest.value_or(ckpt::Manifest());
}

Tensors Load(ckpt::Storage& storage) {
  Tensors tensors;
  const auto checkpoint = ckpt::Checkpoint::Open(storage, "");
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ckpt::Manifest manifest = ManifestOf(storage);
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) {
    const auto elements = ckpt::LoadTensor<float>(*checkpoint, tensor.name());
    EXPECT_TRUE(elements.ok()) << elements.status();
    tensors[tensor.name()] = elements.value_or(std::vector<float>());
  }
  return tensors;
}

Tensors LoadFrom(const std::string& name, const ckpt::ModelConfig* model = nullptr) {
  const auto storage = Open(name, model);
  EXPECT_TRUE(storage.ok()) << storage.status();
  return storage.ok() ? Load(**storage) : Tensors();
}

ckpt::ModelConfig ModelOf(const std::string& name) {
  const auto storage = Open(name);
  EXPECT_TRUE(storage.ok()) << storage.status();
  return ManifestOf(**storage).model();
}

TEST(StateDictTest, TransformersInItsOwnNames) {
  const auto storage = Open(Fixture("gpt2"));
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ((*storage)->format(), "torch");
  const ckpt::Manifest manifest = ManifestOf(**storage);
  EXPECT_EQ(manifest.model().text(), ModelOf(HuggingFace("gpt2.hf")).text());
  EXPECT_FALSE(manifest.has_trainer());
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) {
    EXPECT_TRUE(tensor.has_partition() || !tensor.alias_of().empty()) << tensor.name();
  }
  EXPECT_EQ(Load(**storage), LoadFrom(HuggingFace("gpt2.hf")));
}

TEST(StateDictTest, WrappersAroundTheModel) {
  const ckpt::ModelConfig model = ModelOf(HuggingFace("gpt2.hf"));
  const auto storage = Open(Fixture("gpt2_wrapped.pt"), &model);
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ(Load(**storage), LoadFrom(HuggingFace("gpt2.hf")));
  EXPECT_THAT((*storage)->notes(),
              ElementsAre("Left out: tensors that are not the model's: rng_state."));
  // Without a model, names are those of the file.
  const auto unknown = Open(Fixture("gpt2_wrapped.pt"));
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  const ckpt::Manifest manifest = ManifestOf(**unknown);
  std::vector<std::string> names;
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) names.push_back(tensor.name());
  EXPECT_THAT(names, Contains("model.module._orig_mod.transformer.wte.weight"));
}

TEST(StateDictTest, TwoModelsInOneFileAreRefused) {
  const ckpt::ModelConfig model = ModelOf(HuggingFace("gpt2.hf"));
  const absl::Status status = Open(Fixture("gpt2_twice.pt"), &model).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the tensors below \"ema.\" and those below \"model.\" are a whole model"));
}

TEST(StateDictTest, AnotherModelKeepsTheNamesOfTheFile) {
  const ckpt::ModelConfig llama = ModelOf(HuggingFace("llama3_untied.hf"));
  const auto storage = Open(Fixture("gpt2_wrapped.pt"), &llama);
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_FALSE(ManifestOf(**storage).has_model());
  ASSERT_FALSE((*storage)->notes().empty());
  EXPECT_EQ((*storage)->notes().back(),
            "Names are those of the files: the model's model.embed_tokens.weight is not among "
            "them.");
}

TEST(StateDictTest, MetasNamesAndRotaryRows) {
  const auto storage = Open(Fixture("llama_meta"));
  ASSERT_TRUE(storage.ok()) << storage.status();
  const ckpt::Manifest manifest = ManifestOf(**storage);
  for (const char* field : {"num_query_groups: 2", "ffn_hidden_size: 56", "vocab_size: 61"}) {
    EXPECT_THAT(manifest.model().text(), HasSubstr(field));
  }
  EXPECT_EQ(Load(**storage), LoadFrom(HuggingFace("llama3_untied.hf")));
}

// The names and the optimizer's states of torchtitan.
TEST(StateDictTest, MomentsByTheNamesOfTheirParameters) {
  const ckpt::ModelConfig model = ModelOf(HuggingFace("llama3_untied.hf"));
  const auto storage = Open(Fixture("titan"), &model);
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ((*storage)->format(), "dcp");
  const ckpt::Manifest manifest = ManifestOf(**storage);
  EXPECT_EQ(manifest.trainer().step(), 3);
  EXPECT_FALSE(manifest.trainer().has_data());
  EXPECT_EQ(manifest.optimizer().parameters_size(), 21);

  std::ifstream file(Fixture("titan.logical.safetensors"), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto header = ckpt::ParseSafetensorsHeader(bytes, bytes.size());
  ASSERT_TRUE(header.ok()) << header.status();
  Tensors expected;
  for (const ckpt::SafetensorsEntry& entry : header->entries) {
    std::vector<float>& elements = expected[entry.key];
    elements.resize(entry.length_bytes / sizeof(float));
    bytes.copy(reinterpret_cast<char*>(elements.data()), entry.length_bytes, entry.file_offset);
  }
  EXPECT_EQ(expected.size(), 3 * 21);
  EXPECT_EQ(Load(**storage), expected);
}

}  // namespace
}  // namespace tessera
