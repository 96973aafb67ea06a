#include "convert/formats/llmc/llmc.h"

#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/files.h"
#include "base/testing.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_storage.h"
#include "convert/testing/packed_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::HasSubstr;

constexpr char kFile[] = "model.bin";

std::string Fixture(const std::string& name) {
  return OrFail(ReadWholeFile("tests/interop/pytorch/" + name + ".model.bin"));
}

std::string WithField(std::string file, int field, int32_t value) {
  std::memcpy(file.data() + 4 * field, &value, sizeof(value));
  return file;
}

std::shared_ptr<Storage> StorageOf(const std::string& file) { return FolderOf({{kFile, file}}); }

absl::StatusOr<ForeignCheckpoint> Read(const std::string& file, const ModelProto* model = nullptr) {
  return ReadLlmc(*StorageOf(file), kFile, model);
}

void ExpectDataLoss(const std::string& file, const std::string& message) {
  const absl::Status status = Read(file).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(LlmcTest, WrongLengthMagicAndVersionSayWhatWasExpected) {
  const std::string file = Fixture("gpt2");
  for (const size_t size :
       {size_t{0}, size_t{1023}, size_t{1024}, size_t{1025}, file.size() / 2, file.size() - 1}) {
    ExpectDataLoss(file.substr(0, size), "truncated: expected ");
  }
  ExpectDataLoss(file + "x", "trailing bytes: expected 36416 bytes, found 36417");
  ExpectDataLoss(WithField(file, 0, 20240520),
                 "expected 20240326 (GPT-2) or 20240803 (Llama-3), found 20240520");
  ExpectDataLoss(WithField(file, 1, 4), "expected 3 (fp32) or 5 (bf16), found 4");
}

TEST(LlmcTest, AStateWithoutTheFileOfTheFirstRankIsRefused) {
  const std::string model = "model_00000003.bin";
  const auto read = [&](const std::string& state, bool of_folder) {
    return ReadLlmc(*FolderOf({{model, Fixture("gpt2")}, {state, ""}}), model, nullptr, of_folder);
  };
  const std::string other = "state_00000003_00001.bin";
  const absl::Status lost = read(other, true).status();
  EXPECT_TRUE(absl::IsNotFound(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("state_00000003_00000.bin"));
  for (const auto& [state, of_folder] : {std::pair<std::string, bool>(other, false),
                                         {"state_00000004_00000.bin", true},
                                         {other + ".aria2", true},
                                         {"state_00000003_1.bin", true}}) {
    ASSERT_OK_AND_ASSIGN(const auto weights, read(state, of_folder));
    EXPECT_THAT(weights.notes, ::testing::ElementsAre(HasSubstr("no optimizer state")));
  }
}

// No header crashes the reader or makes it allocate; every field that the model depends on is
// checked.
TEST(LlmcTest, HostileHeaderFieldsAreDataLoss) {
  for (const std::string name : {"gpt2", "llama3_untied"}) {
    const std::string file = Fixture(name);
    constexpr int kLastSizeField = 7;
    for (int field = 2; field <= 15; ++field) {
      for (const int32_t value : {INT32_MIN, -1, 0, 1 << 30, INT32_MAX, 0x7fc00000}) {
        const absl::Status status = Read(WithField(file, field, value)).status();
        const bool is_needed = field <= kLastSizeField && !(name == "llama3_untied" && field == 2);
        if (is_needed || !status.ok()) {
          EXPECT_TRUE(absl::IsDataLoss(status)) << name << " " << field << " = " << value;
        }
      }
    }
  }
}

// llm.c truncates 1.3, 1e-5 and 50.0 to 1, 0 and 50; other programs store the bits of the fp32.
TEST(LlmcTest, RealsAreReadAsTheDecimalsThatWereMeant) {
  const std::string bits = Fixture("llama3_untied");
  for (const std::string& file :
       {bits, WithField(WithField(WithField(bits, 8, 1), 10, 0), 11, 50)}) {
    ASSERT_OK_AND_ASSIGN(const auto read, Read(file));
    ASSERT_OK_AND_ASSIGN(const auto config, ConfigOf(read.description.model()));
    EXPECT_EQ(config.ffn_multiplier(), 1.3);
    EXPECT_EQ(config.ffn_hidden_size(), 56);
    EXPECT_EQ(config.norm_epsilon(), 1e-5);
    EXPECT_EQ(config.rotary_base(), 50);
    EXPECT_EQ(config.num_query_groups(), 2);
  }
}

// A header has no field for these: llm.c has one value for each.
TEST(LlmcTest, SettingsThatAHeaderCannotStateAreNotWritten) {
  const std::string sizes =
      "num_layers: 1 hidden_size: 8 num_attention_heads: 2 max_position_embeddings: 8 "
      "vocab_size: 16 ";
  const std::string gpt2 = "architecture: GPT2 ", llama = "architecture: LLAMA3 ";
  const std::pair<std::string, std::string> models[] = {
      {gpt2, ""},
      {gpt2 + "norm_epsilon: 1e-6", "norm_epsilon is 1e-06"},
      {llama, ""},
      {llama + "norm_epsilon: 1e-6", ""},
      {llama + "use_rope_scaling: false rope_scaling_factor: 32", ""},
      {llama + "rope_scaling_factor: 32", "rope_scaling_factor is 32"},
      {llama + "rope_scaling_low_freq_factor: 2", "rope_scaling_low_freq_factor is 2"},
      {llama + "rope_scaling_high_freq_factor: 8", "rope_scaling_high_freq_factor is 8"},
      {llama + "rope_scaling_original_max_position_embeddings: 4096", "_embeddings is 4096"}};
  for (const auto& [text, said] : models) {
    SCOPED_TRACE(text);
    ModelProto model;
    model.set_text(sizes + text);
    const absl::Status status = WriteLlmcHeader(model, DType::kF32).status();
    EXPECT_EQ(status.ok(), said.empty()) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  }
}

// Frozen parameters have no moments.
TEST(LlmcTest, WeightsAloneAreWrittenWhereOnlySomeParametersHaveMoments) {
  ASSERT_OK_AND_ASSIGN(const auto read, Read(Fixture("gpt2")));
  Manifest manifest = read.description;
  for (const ForeignTensor& tensor : read.tensors) {
    LogicalTensor& weight = *manifest.add_tensors();
    weight.set_name(tensor.name);
    weight.set_alias_of(tensor.alias_of);
    weight.set_role(ToProto(tensor.role));
    weight.set_dtype(ToProto(tensor.dtype));
    weight.mutable_global_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  }
  const auto add = [&](const std::string& state) {
    LogicalTensor& tensor = *manifest.add_tensors();
    tensor = manifest.tensors(0);
    tensor.set_name(tensor.name() + "." + state);
    tensor.set_role(ToProto(TensorRole::kOptimizerState));
  };
  // A master weight alone makes no state.
  add("master");
  EXPECT_OK(PlanLlmc(manifest, {}).status());
  add("exp_avg");
  const absl::Status refused = PlanLlmc(manifest, {}).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--weights-only leaves"));
  EXPECT_OK(PlanLlmc(manifest, {.weights_only = true}).status());
}

TEST(LlmcTest, ATiedModelRefusesAHeadOfItsOwn) {
  for (const bool is_tied : {true, false}) {
    const std::string file = Fixture(is_tied ? "llama3_tied" : "llama3_untied");
    auto model = Read(file)->description.model();
    auto config = *ConfigOf(model);
    config.set_untie_embeddings_and_output_weights(false);
    model = DescribeModel(config).config;
    ASSERT_OK_AND_ASSIGN(auto read, Read(file, &model));
    const auto storage = ForeignStorage::Create(StorageOf(file), std::move(read));
    EXPECT_EQ(storage.ok(), is_tied) << storage.status();
  }
}

}  // namespace
}  // namespace tessera::ckpt::convert
