// What readers of other frameworks' checkpoints make of files that lack something, have it in
// another way, or say more than tensors. layouts_test continues runs from them.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_storage.h"
#include "convert/open_foreign.h"
#include "convert/testing/string_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/box.h"
#include "nlohmann/json.hpp"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"
#include "tools/ckpt/commands.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LogicalState;
using ::testing::Not;

std::string Fixture(const std::string& name) { return "tests/interop/" + name; }

class ReadersTest : public testing::ForeignTest {
 protected:
  // Opens a checkpoint; its description is in manifest_.
  void Open(const std::string& folder, const ckpt::convert::OpenForeignOptions& options = {}) {
    ASSERT_OK_AND_ASSIGN(storage_, ckpt::convert::OpenForeign(folder, options));
    ASSERT_OK_AND_ASSIGN(manifest_, ckpt::ReadManifest(*storage_, ""));
  }

  // A name of the parameter in the format's own files.
  std::string ForeignName(const std::string& parameter, const std::string& key) const {
    for (const ckpt::OptimizerParameter& found : manifest_.optimizer().parameters()) {
      if (found.parameter() == parameter) return found.foreign_names().at(key);
    }
    return "";
  }

  std::vector<std::string> TensorNames() const {
    std::vector<std::string> names;
    for (const ckpt::LogicalTensor& tensor : manifest_.tensors()) names.push_back(tensor.name());
    return names;
  }

  // Replaces texts in all files whose names begin like this. Texts of files with tensors keep their
  // length.
  static void Edit(const std::string& folder, const std::string& start,
                   const std::vector<std::pair<std::string, std::string>>& texts) {
    int edited = 0;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (!entry.path().filename().string().starts_with(start)) continue;
      const std::string before = ReadFile(entry.path());
      const std::string after = absl::StrReplaceAll(before, texts);
      edited += after != before;
      std::ofstream(entry.path(), std::ios::binary) << ckpt::convert::WithoutChecksums(after);
    }
    EXPECT_GT(edited, 0) << start;
  }

  static void Remove(const std::string& folder, const std::string& part) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().filename().string().find(part) != std::string::npos)
        fs::remove(entry.path());
    }
  }

  // That a run in fp32 begins with the state of a safetensors file.
  void ExpectHolds(const std::string& folder, const std::string& oracle) const {
    ASSERT_OK_AND_ASSIGN(const auto loaded, Load(folder, "single", /*bf16=*/false));
    ASSERT_OK_AND_ASSIGN(const auto expected, testing::ReadFp32State(Fixture(oracle)));
    EXPECT_EQ(FirstStateDifference(loaded.state, expected), "");
  }

  std::unique_ptr<ckpt::convert::ForeignStorage> storage_;
  ckpt::Manifest manifest_;
};

// Names of other models: everything but what needs the model.
TEST_F(ReadersTest, DeepSpeedsNamesWithoutAConfig) {
  for (const char* layout : {"zero1", "universal"}) {
    const std::string original = Fixture(std::string("deepspeed/") + layout);
    Open(original);
    const auto named = TensorNames();
    const std::string copy = CopyOf(original);
    fs::remove(copy + "/config.json");
    Open(copy);
    EXPECT_TRUE(manifest_.model().architecture().empty());
    EXPECT_EQ(TensorNames().size(), named.size());
    EXPECT_EQ(Run({"diff", original, copy}), ckpt::kExitOk) << out_ << err_;
  }
}

// One parameter of the model was frozen.
TEST_F(ReadersTest, DeepSpeedsFrozenParametersHaveNoMoments) {
  Open(Fixture("deepspeed/zero3_bf16"));
  ASSERT_OK_AND_ASSIGN(
      auto expected, testing::ReadFp32State(Fixture("deepspeed/zero3_bf16/expected.safetensors")));
  EXPECT_FALSE(expected.contains("model.norm.weight.exp_avg"));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, ckpt::Checkpoint::Open(*storage_, ""));
  for (const ckpt::TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.dtype != DType::kF32 || !tensor.alias_of.empty()) continue;
    const std::string name = absl::StrReplaceAll(tensor.name, {{".master", ""}});
    ASSERT_OK_AND_ASSIGN(const auto found, checkpoint.LoadTensor<float>(tensor.name));
    ASSERT_TRUE(expected.contains(name)) << name;
    const auto& bytes = expected.at(name).bytes;
    ASSERT_EQ(found.size() * sizeof(float), bytes.size()) << name;
    EXPECT_EQ(std::memcmp(found.data(), bytes.data(), bytes.size()), 0) << name;
    expected.erase(name);
  }
  EXPECT_EQ(expected.size(), 0);
}

// Transformer Engine keeps them, and modules of Megatron-Core's own have them for its sake.
TEST_F(ReadersTest, MegatronsStatesOfModulesAreNamedAndLeftOut) {
  Open(Fixture("megatron/llama3_bf16_pp2_vpp2"));
  EXPECT_THAT(storage_->notes(), Contains(HasSubstr("linear_proj._extra_state")));
}

// The order of a buffer's parameters is the one that its contents show, whatever the arguments say.
TEST_F(ReadersTest, TheOrderOfMegatronsBucketsIsFoundInTheFiles) {
  for (const char* name :
       {"buckets_llama3_untied_dp2_tp2_pp2", "gathered_llama3_bf16_dp2_tp2_pp2"}) {
    const std::string original = Fixture(std::string("megatron/") + name), copy = CopyOf(original);
    std::string common = ReadFile(copy + "/common.pt");
    common.replace(common.find("local", common.find("transformer_impl")), 5, "other");
    std::ofstream(copy + "/common.pt", std::ios::binary)
        << ckpt::convert::WithoutChecksums(std::move(common));
    EXPECT_EQ(Run({"diff", original, copy}), ckpt::kExitOk) << out_ << err_;
  }
}

// Through a sharded checkpoint into Megatron's own files, in several of them, and in bf16.
TEST_F(ReadersTest, MegatronsCheckpointsAreWrittenAsTheyWereRead) {
  for (const char* name : {"gpt2_tp2_pp2", "llama3_bf16_pp2_vpp2", "legacy_llama3_tied_pp2_vpp2"}) {
    SCOPED_TRACE(name);
    const std::string original = Fixture(std::string("megatron/") + name), ours = In("ours"),
                      theirs = In("theirs"), weights = In("weights");
    for (const std::string& folder : {ours, theirs, weights}) fs::remove_all(folder);
    ASSERT_EQ(Run({"convert", original, ours, "--to=tessera", "--topology=tp2_pp2"}), 0) << err_;
    ASSERT_EQ(Run({"convert", ours, theirs, "--to=megatron", "--max-file-size=20000"}), 0) << err_;
    EXPECT_TRUE(fs::exists(theirs + "/__0_3.distcp"));
    EXPECT_EQ(Run({"diff", original, theirs}), ckpt::kExitOk) << out_ << err_;
    ASSERT_EQ(Run({"convert", theirs, weights, "--to=megatron", "--weights-only", "--dtype=bf16"}),
              0)
        << err_;
    Open(weights);
    for (const ckpt::LogicalTensor& tensor : manifest_.tensors()) {
      EXPECT_EQ(ckpt::FromProto(tensor.dtype()), DType::kBF16) << tensor.name();
    }
    EXPECT_FALSE(manifest_.has_optimizer());
  }
}

TEST_F(ReadersTest, InfiniTrainsNamesWithoutAModel) {
  Open(Fixture("infinitrain/llama3/checkpoint_step_000003"));
  EXPECT_FALSE(manifest_.has_model());
  EXPECT_EQ(manifest_.trainer().step(), 3);
  EXPECT_THAT(TensorNames(), Contains("transformer.h.1.mlp.c_fc2.weight"));
  EXPECT_THAT(TensorNames(), Contains("state.transformer.wte.weight.exp_avg"));
}

// Files that the program wrote. trainer_state.json lacks a comma, and has the sizes of another
// model.
class RealInfiniTrainTest : public ReadersTest {
 protected:
  // Returns a copy with the config of its model.
  std::string Copy(const std::string& name) const {
    const std::string copy = CopyOf(Fixture("infinitrain/" + name));
    std::ofstream(copy + "/config.json") << R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 48,
        "n_head": 12, "vocab_size": 512, "n_positions": 32})";
    return copy;
  }
};

TEST_F(RealInfiniTrainTest, NumbersOfMomentsFollowTheOrderOfTheModelsFile) {
  const std::string copy = Copy("gpt2_adam");
  Open(copy);
  EXPECT_THAT(storage_->notes(),
              ElementsAre(AllOf(HasSubstr("trainer_state.json: n_embd is 768, but the model's is "
                                          "48, n_layer is 12, but the model's is 2"),
                                HasSubstr("the shapes of the tensors decide"))));
  EXPECT_EQ(manifest_.trainer().step(), 6);
  EXPECT_EQ(manifest_.optimizer().parameters_size(), 28);
  EXPECT_THAT(TensorNames(), Contains("transformer.h.0.ln_1.weight.exp_avg_sq"));
  // Two tensors at each other's places: the tables are not known ones.
  const std::string one = "h.0.ln_2.bias", other = "h.1.ln_2.bias";
  Edit(copy, "model.ckpt", {{one, other}, {other, one}});
  Open(copy);
  EXPECT_THAT(storage_->notes(), Contains(HasSubstr("Left out: moments by number (adam.m.3)")));
  EXPECT_THAT(TensorNames(), Not(Contains(HasSubstr("exp_avg"))));
  EXPECT_EQ(manifest_.tensors_size(), 29);
}

TEST_F(RealInfiniTrainTest, WrongSizes) {
  const std::string copy = Copy("gpt2_adam");
  // Sizes that the shapes do not contradict are true.
  Edit(copy, "trainer_state",
       {{"\"n_layer\": 12", "\"n_layer\": 2"},
        {"\"n_embd\": 768", "\"n_embd\": 48"},
        {"\"n_head\": 12", "\"n_head\": 6"}});
  EXPECT_THAT(ckpt::convert::OpenForeign(copy, {}).status().message(),
              HasSubstr("trainer_state.json: n_head is 6, but the model's is 12"));
  Edit(copy, "config.json", {{"\"n_embd\": 48", "\"n_embd\": 24"}});
  EXPECT_THAT(ckpt::convert::OpenForeign(copy, {}).status().message(),
              HasSubstr("expected [512,24], found [512,48]"));
}

TEST_F(RealInfiniTrainTest, ASgdHasAnOptimizerWithoutState) {
  Open(Copy("gpt2_sgd"));
  EXPECT_EQ(manifest_.trainer().step(), 6);
  EXPECT_TRUE(manifest_.has_optimizer());
  EXPECT_THAT(TensorNames(), Not(Contains(HasSubstr("exp_avg"))));
}

TEST_F(ReadersTest, InfiniTrainsStepIsUnknownWhereFilesContradictEachOther) {
  const std::string copy = CopyOf(Fixture("infinitrain/llama3/checkpoint_step_000003"));
  Edit(copy, "trainer_state", {{"\"global_step\": 3", "\"global_step\": 4"}});
  Open(copy);
  EXPECT_FALSE(manifest_.has_trainer());
  EXPECT_THAT(storage_->notes(), Contains(HasSubstr("global_step is 4, but Adam has counted 3")));
  // One of the two is enough.
  fs::remove(copy + "/trainer_state.json");
  Open(copy);
  EXPECT_EQ(manifest_.trainer().step(), 3);
  fs::remove(copy + "/optimizer.ckpt");
  Open(copy);
  EXPECT_FALSE(manifest_.has_trainer());
  // One of the ranks that have the whole model is enough, too.
  const std::string ranks = CopyOf(Fixture("infinitrain/gpt2_dp2/checkpoint_step_000002"));
  fs::remove_all(ranks + "/rank_000001");
  Open(ranks);
}

TEST_F(ReadersTest, InternEvoKeepsItsNamesAndSaysWhatItDoesNotKnow) {
  Open(Fixture("internevo/tp1"));
  EXPECT_THAT(
      storage_->notes(),
      ElementsAre(HasSubstr("The run has consumed 288 tokens, which are 12 samples of 24")));
  EXPECT_EQ(manifest_.producer().program(), "InternEvo");
  EXPECT_EQ(ForeignName("model.layers.1.mlp.down_proj.weight", "internevo"),
            "layers.1.feed_forward.w2.weight");
}

TEST_F(ReadersTest, WithoutTheOptimizersFilesThereAreWeights) {
  for (const std::string name : {"internevo/pp2", "paddle/testdata/mp2"}) {
    const std::string copy = CopyOf(Fixture(name));
    Remove(copy, "optimizer");
    Remove(copy, "context.pt");
    Open(copy);
    EXPECT_FALSE(manifest_.has_optimizer());
    EXPECT_EQ(manifest_.tensors_size(), 39);
  }
  EXPECT_THAT(storage_->notes(), Contains(HasSubstr("no optimizer state")));
}

// Two data-parallel ranks have begun the second epoch of 16 samples.
TEST_F(ReadersTest, InternEvosSamplerAndSchedulerTellThePosition) {
  Open(Fixture("internevo/zo2"));
  EXPECT_EQ(manifest_.trainer().step(), 3);
  EXPECT_EQ(manifest_.trainer().data().consumed_samples(), 24);
  EXPECT_EQ(manifest_.trainer().data().sequence_length(), 24);
  // The sampler's file leaves nothing but the position open.
  const std::string copy = CopyOf(Fixture("internevo/zo2"));
  Remove(copy, "sampler.pt");
  Open(copy);
  EXPECT_EQ(manifest_.trainer().step(), 3);
  EXPECT_FALSE(manifest_.trainer().has_data());
  // The scheduler's alone has the step.
  Remove(copy, "context.pt");
  Open(copy);
  EXPECT_EQ(manifest_.trainer().step(), 3);
  Remove(copy, "schedulder.pt");
  Open(copy);
  EXPECT_FALSE(manifest_.has_trainer());
}

// Releases before 0.3 call the matrix that leads out of the layer w3.
TEST_F(ReadersTest, EarlyReleasesOfInternEvoNameTheFeedForwardLayersOtherwise) {
  for (const std::string layout : {"tp1", "tp2_pp2_zo2"}) {
    const std::string copy = CopyOf(Fixture("internevo/" + layout));
    const std::string w2 = "feed_forward.w2.weight", w3 = "feed_forward.w3.weight";
    Edit(copy, "model_t", {{w2, w3}, {w3, w2}});
    ExpectHolds(copy, "internevo/state.safetensors");
  }
}

// A plan that is in a file of its own only, as releases that save it first write it.
TEST_F(ReadersTest, InternEvosPlanMayBeInAFileOfItsOwn) {
  const std::string copy = CopyOf(Fixture("internevo/zo2"));
  Edit(copy, "optimizer_", {{"zero_devide_optim_plan", "zero_divide_optim_plan"}});
  ExpectHolds(copy, "internevo/state.safetensors");
}

TEST_F(ReadersTest, PaddleKeepsItsNamesAndTheSettingsOfAdam) {
  Open(Fixture("paddle/testdata/mp2"));
  EXPECT_THAT(storage_->notes(), IsEmpty());
  EXPECT_NEAR(manifest_.optimizer().groups(0).options().at("beta1"), 0.9, 1e-6);
  EXPECT_NEAR(manifest_.optimizer().groups(0).options().at("beta2"), 0.95, 1e-6);
  const std::string parameter = "model.layers.3.mlp.down_proj.weight";
  EXPECT_EQ(ForeignName(parameter, "paddle"), "llama.layers.3.mlp.down_proj.weight");
  EXPECT_THAT(ForeignName(parameter, "paddle.tensor"), HasSubstr("row_parallel_linear_"));
}

// By rank, the parameters that model_meta.json names.
std::map<std::string, std::map<std::string, std::string>> NamesByRank(const std::string& folder) {
  const nlohmann::json json = nlohmann::json::parse(ReadFile(folder + "/model_meta.json"));
  std::map<std::string, std::map<std::string, std::string>> names;
  for (const auto& [rank, meta] : json["sharding_metas"].items()) {
    for (const auto& [structured, name] : meta["structure_name_mapping"].items()) {
      names[rank][name.get<std::string>()] = structured;
    }
  }
  return names;
}

// The optimizer's names alone, and a map that the caller has.
TEST_F(ReadersTest, PaddlesNamesMayBeGiven) {
  const std::string copy = CopyOf(Fixture("paddle/testdata/sharding2_v2_meta"));
  const auto names = NamesByRank(copy);
  fs::remove(copy + "/model_meta.json");
  Open(copy, {.parameter_names = names.at("tp00_pp00")});
}

// Paddle gives one name to different parameters of two pipeline stages. What is left of the grid's
// files is the optimizer's alone: weights come from the master weights.
TEST_F(ReadersTest, PaddlesNamesMayBeInAFile) {
  const std::string whole = CopyOf(Fixture("paddle/testdata/sharding2_v2_meta"));
  const auto names_of_whole = NamesByRank(whole).at("tp00_pp00");
  std::ofstream(In("whole.json")) << nlohmann::json(names_of_whole);
  const std::string grid = CopyOf(Fixture("paddle/testdata/mp2_pp2_sharding2_v1_meta"));
  std::ofstream(In("grid.json")) << nlohmann::json(NamesByRank(grid));
  for (const auto& [folder, names] : {std::pair(whole, "whole.json"), {grid, "grid.json"}}) {
    SCOPED_TRACE(names);
    fs::remove(folder + "/model_meta.json");
    Remove(folder, ".pdparams");
    const std::string flag = "--parameter-to-structured-name=" + In(names);
    const std::string converted = In(std::string("converted_") + names);
    EXPECT_EQ(Run({"convert", folder, converted, "--to=tessera"}), ckpt::kExitUsage);
    EXPECT_THAT(err_, HasSubstr("--parameter-to-structured-name, would settle it"));
    ASSERT_EQ(Run({"convert", folder, converted, "--to=tessera", flag}), ckpt::kExitOk) << err_;
    const auto opened = ckpt::convert::OpenForeign(folder, {.parameter_names_file = In(names)});
    ASSERT_OK(opened);
    // The state that a run begins with is the truth's, in both precisions.
    ASSERT_OK_AND_ASSIGN(const auto oracle,
                         testing::ReadFp32State(Fixture("paddle/testdata/state.safetensors")));
    for (const bool bf16 : {false, true}) {
      ASSERT_OK_AND_ASSIGN(
          const auto loaded,
          Load(*testing::OpenForeignRun(folder, nullptr, In(names)), "dp2_zero2_tp2_pp2", bf16));
      EXPECT_EQ(FirstStateDifference(loaded.state, bf16 ? testing::AsBf16Run(oracle) : oracle), "");
    }
    EXPECT_EQ(Run({"verify", folder, flag, "--from=hf"}), ckpt::kExitUsage);
    EXPECT_THAT(err_, HasSubstr("is for the format paddle, and the format hf was stated"));
  }
  const std::pair<const char*, const char*> wrong[] = {
      {"[]", "no JSON object of names"},
      {R"({"linear_0.w_0": 3})", "linear_0.w_0: expected the name of a parameter"},
      {R"({"tp00_pp00": {"linear_0.w_0": 3}})", "tp00_pp00: linear_0.w_0: expected the name"},
      {R"({"embedding_0.w_0": "llama.none.weight"})",
       "embedding_0.w_0 was said to be llama.none.weight, which is no parameter"}};
  for (const auto& [text, said] : wrong) {
    std::ofstream(In("wrong.json")) << text;
    EXPECT_EQ(Run({"inspect", whole, "--parameter-to-structured-name=" + In("wrong.json")}),
              ckpt::kExitUsage);
    EXPECT_THAT(err_, HasSubstr(said));
  }
  EXPECT_EQ(Run({"inspect", whole, "--parameter-to-structured-name=" + In("absent.json")}),
            ckpt::kExitUsage);
  EXPECT_THAT(err_,
              HasSubstr("parameter_to_structured_name=" + In("absent.json") + ": cannot open "));
  EXPECT_EQ(Run({"inspect", whole, "--parameter-to-structured-name=/dev/zero"}), ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("/dev/zero: not a regular file"));
}

// The flow that PaddleNLP's convertor explains: mp2, pp2, sharding 2 of stage 1 v2, whose weights
// are in the master weights alone. PaddleNLP leaves files of empty dicts, or none.
TEST_F(ReadersTest, PaddlesWeightsAreCastFromMasterWeights) {
  ASSERT_OK_AND_ASSIGN(const auto oracle,
                       testing::ReadFp32State(Fixture("paddle/testdata/state.safetensors")));
  const LogicalState expected = testing::AsBf16Run(oracle);
  const std::string copy = CopyOf(Fixture("paddle/testdata/mp2_pp2_sharding2_v2_master"));
  for (const bool has_model_files : {true, false}) {
    if (!has_model_files) Remove(copy, ".pdparams");
    ASSERT_OK_AND_ASSIGN(const auto saved, testing::OpenForeignRun(copy));
    EXPECT_EQ(saved.manifest().trainer().step(), 3);
    for (const std::string topology : testing::kTopologies) {
      SCOPED_TRACE(topology);
      ASSERT_OK_AND_ASSIGN(const auto loaded, Load(saved, topology, /*bf16=*/true));
      ASSERT_EQ(loaded.state.size(), expected.size());
      for (const auto& [name, tensor] : loaded.state) {
        EXPECT_TRUE(tensor == expected.at(name)) << name;
      }
    }
  }
  for (const std::string format : {"hf", "paddle"}) {
    ASSERT_EQ(Run({"convert", copy, In(format), "--to=" + format, "--dtype=bf16"}), ckpt::kExitOk)
        << err_;
  }
  ASSERT_OK_AND_ASSIGN(const auto written, Load(In("paddle"), "single", /*bf16=*/true));
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(written.state.at(name) == tensor) << name;
  }
}

TEST_F(ReadersTest, ConvertedWeightsComeFromMasterWeights) {
  const std::string paddle = Fixture("paddle/testdata/mp2_pp2_sharding2_v2_master");
  for (const char* format : {"hf", "torch", "dcp", "gguf", "megatron"}) {
    SCOPED_TRACE(format);
    const std::string written = In(std::string(format) + ".gguf");
    ASSERT_EQ(Run({"convert", paddle, written, std::string("--to=") + format}), ckpt::kExitOk)
        << err_;
    EXPECT_THAT(out_, HasSubstr("From the master weights, since the weights were not saved: "
                                "lm_head.weight, "));
    Open(written);
    EXPECT_THAT(TensorNames(), Contains(HasSubstr("embed_tokens.weight")));
  }
}

// Errors name the one file of a checkpoint, not its folder.
TEST_F(ReadersTest, OneFileIsCalledByItsName) {
  const std::string file = CopyOf(Fixture("state_dict/gpt2_wrapped.pt"));
  ckpt::ModelProto model;
  ASSERT_OK_AND_ASSIGN(const auto described, testing::OpenForeignRun(Fixture("pytorch/gpt2.hf")));
  model = described.manifest().model();
  model.set_text(absl::StrReplaceAll(model.text(), {{"vocab_size: 61", "vocab_size: 62"}}));
  EXPECT_THAT(std::string(ckpt::convert::OpenForeign(file, {.model = &model}).status().message()),
              HasSubstr("gpt2_wrapped.pt: tensor "));
}

// What torch's HuggingFaceStorageWriter writes with save_distributed=True: each rank's rows.
class SafetensorsOfDcpTest : public ReadersTest {
 protected:
  void SetUp() override {
    ReadersTest::SetUp();
    fs::create_directory(In("shards"));
    ASSERT_OK_AND_ASSIGN(const LogicalState state, testing::ReadFp32State(kWhole));
    for (int rank = 0; rank < 2; ++rank) WriteShard(state, rank);
  }
  static std::string ShardName(int rank) {
    return "shard-0000" + std::to_string(rank + 1) + "-model-00001-of-00001.safetensors";
  }
  void WriteShard(const LogicalState& state, int rank) const {
    nlohmann::json header, info;
    std::string elements;
    for (const auto& [name, tensor] : state) {
      const int64_t rows = tensor.shape[0], first = rank == 0 ? 0 : rows / 2;
      Shape shape = tensor.shape, offset(shape.size(), 0);
      shape[0] = rank == 0 ? rows / 2 : rows - first;
      offset[0] = first;
      const size_t row_bytes = tensor.bytes.size() / rows, begin = elements.size();
      elements.append(reinterpret_cast<const char*>(tensor.bytes.data()) + first * row_bytes,
                      shape[0] * row_bytes);
      header[name] = {
          {"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, elements.size()}}};
      info[name]["saved_offsets"] = offset;
    }
    header["__metadata__"] = {
        {"DCP_SHARDING_INFO", info.dump()}, {"DCP_VERSION", "1.0"}, {"format", "pt"}};
    const std::string text = header.dump();
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
    std::ofstream(In("shards/" + ShardName(rank)), std::ios::binary) << length << text << elements;
  }
  std::string Refused() const {
    return std::string(ckpt::convert::OpenForeign(In("shards"), {}).status().message());
  }

  const std::string kWhole = Fixture("pytorch/llama3_untied.hf");
};

TEST_F(SafetensorsOfDcpTest, PartsOfRanksAreJoined) {
  Open(In("shards"));
  EXPECT_EQ(storage_->format(), "dcp");
  EXPECT_FALSE(manifest_.has_model());
  fs::copy(kWhole + "/config.json", In("shards/config.json"));
  EXPECT_EQ(Run({"diff", kWhole, In("shards")}), ckpt::kExitOk) << out_ << err_;
}

// Its consolidated files have an index, and no config.json.
TEST_F(SafetensorsOfDcpTest, ConsolidatedFiles) {
  const std::string copy = CopyOf(kWhole);
  fs::remove(copy + "/config.json");
  Open(copy);
  EXPECT_EQ(storage_->format(), "dcp");
  ASSERT_OK_AND_ASSIGN(const auto described, testing::OpenForeignRun(kWhole));
  Open(copy, {.model = &described.manifest().model()});
  EXPECT_TRUE(manifest_.has_model());
}

TEST_F(SafetensorsOfDcpTest, DamagedOnes) {
  fs::copy(kWhole + "/config.json", In("shards/config.json"));
  const std::string first = ReadFile(In("shards/" + ShardName(0)));
  Edit(In("shards"), ShardName(0), {{"DCP_SHARDING_INFO", "DCP_SHARDING_INFI"}});
  EXPECT_THAT(Refused(), HasSubstr(ShardName(0) + ": tensor "));
  EXPECT_THAT(Refused(), HasSubstr("no saved_offsets in the header's DCP_SHARDING_INFO"));
  fs::remove(In("shards/" + ShardName(0)));
  EXPECT_THAT(Refused(), HasSubstr("] is in no file"));
  // The last rows are missing.
  std::ofstream(In("shards/" + ShardName(0)), std::ios::binary) << first;
  fs::remove(In("shards/" + ShardName(1)));
  EXPECT_THAT(Refused(), HasSubstr("expected [61,16], found [30,16]"));
}

// The settings with which PaddleNLP itself took the next two steps.
class PaddleLossesTest : public ReadersTest {
 protected:
  absl::StatusOr<TrainConfig> Config(const testing::RunSettings& settings) const override {
    testing::RunSettings own = settings;
    own.seq_length = length_;
    TESSERA_ASSIGN_OR_RETURN(TrainConfig config, testing::MakeConfig(own));
    OptimizerConfig& optimizer = *config.mutable_optimizer();
    optimizer.set_lr(1e-3);
    optimizer.set_lr_decay_style(LrDecayStyle::CONSTANT);
    optimizer.set_lr_warmup_iters(0);
    optimizer.set_weight_decay(0.01);
    optimizer.set_clip_grad(0);
    optimizer.set_adam_beta2(0.95);
    return ResolveConfig(config);
  }

  // Sets the tokens of a run of PaddleNLP, and returns its losses.
  std::vector<double> TakeRun(const std::string& file) {
    const nlohmann::json json = nlohmann::json::parse(ReadFile(Fixture("paddle/testdata/" + file)));
    // Every sample is the same: the order does not matter.
    const auto period = json["tokens"].get<std::vector<int32_t>>();
    length_ = static_cast<int64_t>(period.size());
    std::vector<int32_t> tokens;
    for (int i = 0; i < 400; ++i) tokens.insert(tokens.end(), period.begin(), period.end());
    SetTokens(tokens);
    return json["losses"].get<std::vector<double>>();
  }

  int64_t length_ = 0;
};

// Returns the file of the losses after the state that a layout holds.
std::string LossesOf(const fs::path& layout) {
  const nlohmann::json config = nlohmann::json::parse(ReadFile(layout / "config.json"));
  if (config["model_type"] == "gpt") return "gpt_losses.json";
  const int channels = config["hidden_size"];
  return channels == 8    ? "losses.json"
         : channels == 12 ? "degree3_losses.json"
                          : "degree4_losses.json";
}

// Paddle's own processes wrote these. Others were cut by make_fixtures.py.
bool IsPaddles(const std::string& layout) {
  const bool is_single = layout.ends_with("dp") || layout.starts_with("degree");
  return is_single || layout.ends_with("_stage2") || layout.starts_with("auto_");
}

TEST_F(PaddleLossesTest, TheNextStepsHaveTheLossesOfPaddleNlpFromEveryLayout) {
  std::map<std::string, std::map<std::string, fs::path>> layouts;  // by file of losses, name
  for (const fs::directory_entry& entry : fs::directory_iterator(Fixture("paddle/testdata"))) {
    if (!entry.is_directory()) continue;
    layouts[LossesOf(entry.path())][entry.path().filename()] = entry.path();
  }
  EXPECT_EQ(layouts.size(), 4);
  const std::string guide = ReadFile("docs/convert.md");
  for (const auto& [file, of_state] : layouts) {
    const std::vector<double> paddles = TakeRun(file);
    std::vector<double> first;
    std::vector<std::string> written_by_paddle, imitated;
    for (const auto& [name, path] : of_state) {
      (IsPaddles(name) ? written_by_paddle : imitated).push_back(absl::StrCat("`", name, "`"));
      SCOPED_TRACE(name);
      ASSERT_OK_AND_ASSIGN(const auto run, Load(path.string(), "single", /*bf16=*/false));
      if (first.empty()) first = run.losses;
      EXPECT_EQ(run.losses, first);
      ASSERT_EQ(run.losses.size(), 2);
      ASSERT_EQ(paddles.size(), 2);
      for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(run.losses[i], paddles[i], 5e-5);
    }
    const std::string row = absl::StrFormat(
        "| %s | %s | %.6f, %.6f | %.6f, %.6f |", absl::StrJoin(written_by_paddle, ", "),
        absl::StrJoin(imitated, ", "), first[0], first[1], paddles[0], paddles[1]);
    std::cout << row << "\n";
    EXPECT_THAT(guide, HasSubstr(row));
    const std::string written = In(file + ".written");
    ASSERT_EQ(Run({"convert", of_state.begin()->second.string(), written, "--to=paddle"}),
              ckpt::kExitOk)
        << err_;
    ASSERT_OK_AND_ASSIGN(const auto run, Load(written, "single", /*bf16=*/false));
    EXPECT_EQ(run.losses, first);
  }
}

}  // namespace
}  // namespace tessera
