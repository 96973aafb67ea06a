// Checkpoints that InternEvo has written (make_fixtures.py), against the consolidated state.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "convert/dcp/folder_layout.h"
#include "convert/open_foreign.h"
#include "convert/pickle/write.h"
#include "convert/testing/zip_changes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/interop/foreign_fixture.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/logical_state.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LogicalState;
using testing::ReadFileBytes;
using testing::WriteFileBytes;

std::string Fixture(const std::string& name) { return "tests/interop/internevo/" + name; }

absl::StatusOr<std::unique_ptr<ckpt::convert::ForeignStorage>> Open(const std::string& folder) {
  return ckpt::convert::OpenForeign(folder, {});
}

// The consolidated state that make_fixtures.py wrote, as the state of an fp32 run: its weights are
// the fp32 ones.
LogicalState ReadOracle(const std::string& model) {
  const auto state = testing::ReadFp32State(Fixture(model) + ".safetensors");
  EXPECT_TRUE(state.ok()) << state.status();
  return state.value_or(LogicalState());
}

class InternEvoTest : public testing::ForeignFixture {
 protected:
  std::string Copy(const std::string& layout) const { return CopyOf(Fixture(layout)); }

  static std::string ErrorOf(const std::string& folder) {
    const absl::Status status = Open(folder).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  }
};

struct Layout {
  const char* name;
  const char* model = "state";
  const char* consolidated = "tp1";
  int tensor = 1, pipeline = 1, virtual_pipeline = 1, zero = 1;
  bool fp32 = false;
};

std::ostream& operator<<(std::ostream& out, const Layout& layout) { return out << layout.name; }

constexpr Layout kLayouts[] = {
    {.name = "tp1"},
    {.name = "zo2", .zero = 2},
    {.name = "tp2", .tensor = 2},
    {.name = "wp2", .tensor = 2},
    {.name = "pp2", .pipeline = 2},
    {.name = "tp2_pp2_zo2", .tensor = 2, .pipeline = 2, .zero = 2},
    {.name = "pp2_vpp2", .pipeline = 2, .virtual_pipeline = 2},
    {.name = "llama_fp32", .model = "llama", .consolidated = "llama_fp32", .fp32 = true},
    {.name = "llama_tp2_zo2",
     .model = "llama",
     .consolidated = "llama_fp32",
     .tensor = 2,
     .zero = 2},
    {.name = "llama_universal", .model = "llama", .consolidated = "llama_fp32"},
};

class InternEvoLayoutTest : public InternEvoTest, public ::testing::WithParamInterface<Layout> {};

TEST_P(InternEvoLayoutTest, HoldsTheConsolidatedStateUnderEveryTopology) {
  const Layout layout = GetParam();
  const LogicalState fp32 = ReadOracle(layout.model);
  for (const bool bf16 : {true, false}) {
    const LogicalState expected = bf16 ? testing::AsBf16Run(fp32) : fp32;
    const auto consolidated = Load(Fixture(layout.consolidated), "single", bf16);
    ASSERT_TRUE(consolidated.ok()) << consolidated.status();
    ASSERT_EQ(FirstStateDifference(consolidated->state, expected), "");
    for (const char* topology : testing::kTopologies) {
      // The files are read in the same way for both.
      if (!bf16 && topology != std::string("dp2_zero2_tp2_pp2")) continue;
      SCOPED_TRACE(topology);
      const auto loaded = Load(Fixture(layout.name), topology, bf16);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ(FirstStateDifference(loaded->state, expected), "");
      EXPECT_EQ(loaded->losses, consolidated->losses);
    }
  }
}

TEST_P(InternEvoLayoutTest, SaysWhatItIs) {
  const Layout layout = GetParam();
  const auto storage = Open(Fixture(layout.name));
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ((*storage)->format(), "internevo");
  EXPECT_THAT((*storage)->notes(), ::testing::ElementsAre(HasSubstr("The run has consumed ")));
  const auto manifest = ckpt::ReadManifest(**storage, "");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->producer().program(), "InternEvo");
  const ckpt::TopologyProto& topology = manifest->topology();
  if (std::string(layout.name) != "llama_universal") {
    EXPECT_EQ(topology.tensor_parallel(), layout.tensor);
    EXPECT_EQ(topology.pipeline_parallel(), layout.pipeline);
    EXPECT_EQ(topology.virtual_pipeline(), layout.virtual_pipeline);
    EXPECT_EQ(topology.data_parallel(), layout.zero);
  }
  EXPECT_EQ(manifest->trainer().step(), 3);
  EXPECT_FALSE(manifest->trainer().has_data());
  std::map<ckpt::Role, int> counts;
  for (const ckpt::LogicalTensor& tensor : manifest->tensors()) {
    ++counts[tensor.role()];
    if (tensor.role() != ckpt::WEIGHT) EXPECT_EQ(tensor.dtype(), ckpt::F32) << tensor.name();
  }
  const int parameters = std::string(layout.model) == "llama" ? 21 : 39;
  EXPECT_EQ(counts[ckpt::WEIGHT], parameters);
  EXPECT_EQ(counts[ckpt::OPTIMIZER_STATE], 2 * parameters);
  EXPECT_EQ(counts[ckpt::MASTER_WEIGHT], layout.fp32 ? 0 : parameters);
  for (const ckpt::OptimizerParameter& parameter : manifest->optimizer().parameters()) {
    if (parameter.parameter() != "model.layers.1.mlp.down_proj.weight") continue;
    EXPECT_EQ(parameter.foreign_names().at("internevo"), "layers.1.feed_forward.w2.weight");
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, InternEvoLayoutTest, ::testing::ValuesIn(kLayouts),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(InternEvoTest, TheCommandConvertsAndComparesIt) {
  const std::string converted = In("converted");
  const auto run = [](const std::vector<std::string>& arguments) {
    std::ostringstream out, err;
    const int code = ckpt::RunCkpt(arguments, {out, err, nullptr});
    EXPECT_EQ(code, 0) << out.str() << err.str();
    return out.str();
  };
  EXPECT_THAT(run({"inspect", Fixture("tp2_pp2_zo2")}), HasSubstr("internevo"));
  run({"convert", Fixture("tp2_pp2_zo2"), converted, "--from=internevo", "--to=tessera",
       "--topology=dp2_zero2_tp2_pp2"});
  run({"diff", Fixture("tp1"), converted});
}

TEST_F(InternEvoTest, WithoutTheOptimizerThereAreWeights) {
  const std::string copy = Copy("pp2");
  fs::remove(copy + "/optimizer_tp0_pp0_zo0.pt");
  fs::remove(copy + "/optimizer_tp0_pp1_zo0.pt");
  fs::remove(copy + "/context.pt");
  const auto storage = Open(copy);
  ASSERT_TRUE(storage.ok()) << storage.status();
  const auto manifest = ckpt::ReadManifest(**storage, "");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_FALSE(manifest->has_optimizer());
  EXPECT_FALSE(manifest->has_trainer());
  EXPECT_EQ(manifest->tensors_size(), 39);
}

// Exchanges two names of the same length in all files of the model.
void Exchange(const std::string& folder, const std::string& a, const std::string& b) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with("model_t")) continue;
    const std::string bytes = ReadFileBytes(entry.path());
    ASSERT_NE(bytes.find(a), bytes.npos);
    WriteFileBytes(entry.path(),
                   ckpt::convert::WithoutChecksums(absl::StrReplaceAll(bytes, {{a, b}, {b, a}})));
  }
}

// Releases before 0.3 call the matrix that leads out of the layer w3.
TEST_F(InternEvoTest, EarlyReleasesNameTheFeedForwardLayersOtherwise) {
  for (const char* layout : {"tp1", "tp2_pp2_zo2"}) {
    const std::string copy = Copy(layout);
    Exchange(copy, "feed_forward.w2.weight", "feed_forward.w3.weight");
    const auto loaded = Load(copy, "single", /*bf16=*/false);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(FirstStateDifference(loaded->state, ReadOracle("state")), "");
  }
}

TEST_F(InternEvoTest, MissingFilesAreNamed) {
  const std::string copy = Copy("tp2_pp2_zo2");
  fs::remove(copy + "/optimizer_tp1_pp0_zo1.pt");
  fs::remove(copy + "/model_tp0_pp1.pt");
  EXPECT_THAT(ErrorOf(copy), HasSubstr("missing: model_tp0_pp1.pt, optimizer_tp1_pp0_zo1.pt"));
}

TEST_F(InternEvoTest, RanksWhoseFilesAreAllMissingAreNoticed) {
  std::string copy = Copy("zo2");
  fs::remove(copy + "/optimizer_tp0_pp0_zo1.pt");
  EXPECT_THAT(ErrorOf(copy), HasSubstr("optimizer_tp0_pp0_zo0.pt: group default was dealt out to 2 "
                                       "ranks, but 1 have files"));
  copy = Copy("tp2");
  fs::remove(copy + "/optimizer_tp1_pp0_zo0.pt");
  fs::remove(copy + "/model_tp1_pp0.pt");
  EXPECT_THAT(ErrorOf(copy), HasSubstr("model_tp0_pp0.pt: tensor tok_embeddings.weight: shape "
                                       "[20,8], expected [20,16]"));
  copy = Copy("pp2");
  fs::remove(copy + "/optimizer_tp0_pp1_zo0.pt");
  fs::remove(copy + "/model_tp0_pp1.pt");
  EXPECT_THAT(ErrorOf(copy), HasSubstr("pp2: no file has model.layers.2.input_layernorm.weight, "));
}

TEST_F(InternEvoTest, CopiesThatDifferAreRefused) {
  const std::string copy = Copy("llama_tp2_zo2");
  // Each file has the norm's ones, with noise, as F32; the first byte of one is changed.
  const LogicalState oracle = ReadOracle("llama");
  const auto& norm = oracle.at("model.norm.weight").bytes;
  std::string bytes = ReadFileBytes(copy + "/model_tp1_pp0.pt");
  const size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(norm.data()), norm.size()));
  ASSERT_NE(at, bytes.npos);
  bytes[at] ^= 1;
  WriteFileBytes(copy + "/model_tp1_pp0.pt", ckpt::convert::WithoutChecksums(bytes));
  EXPECT_THAT(ErrorOf(copy), AllOf(HasSubstr("model.norm.weight"), HasSubstr("model_tp0_pp0.pt"),
                                   HasSubstr("model_tp1_pp0.pt")));
}

// The fp32 weights of an fp32 run are copies of those in the model's file.
TEST_F(InternEvoTest, AnOptimizerOfAnotherStepIsNoticedInAnFp32Run) {
  const std::string copy = Copy("llama_fp32");
  const LogicalState oracle = ReadOracle("llama");
  const auto& norm = oracle.at("model.norm.weight").bytes;
  std::string bytes = ReadFileBytes(copy + "/optimizer_tp0_pp0_zo0.pt");
  const size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(norm.data()), norm.size()));
  ASSERT_NE(at, bytes.npos);
  bytes[at] ^= 1;
  WriteFileBytes(copy + "/optimizer_tp0_pp0_zo0.pt", bytes);
  EXPECT_THAT(ErrorOf(copy),
              AllOf(HasSubstr("model.norm.weight"), HasSubstr("optimizer_tp0_pp0_zo0.pt")));
}

TEST_F(InternEvoTest, PlansMustFitTheModelAndEachOther) {
  // Takes a plan from another model, whose ranks have other parameters.
  std::string copy = Copy("zo2");
  fs::copy_file(Fixture("llama_tp2_zo2") + "/optimizer_tp0_pp0_zo1.pt",
                copy + "/optimizer_tp0_pp0_zo1.pt", fs::copy_options::overwrite_existing);
  EXPECT_THAT(ErrorOf(copy),
              HasSubstr("optimizer_tp0_pp0_zo1.pt: parameters are dealt out to ranks in another "
                        "way than in optimizer_tp0_pp0_zo0.pt"));
  copy = Copy("tp1");
  fs::copy_file(Fixture("pp2") + "/optimizer_tp0_pp0_zo0.pt", copy + "/optimizer_tp0_pp0_zo0.pt",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(ErrorOf(copy), HasSubstr("optimizer_tp0_pp0_zo0.pt: group default: parameter "));
}

// A plan that is in a file of its own only, as releases that save it first write it.
TEST_F(InternEvoTest, ThePlanMayBeInAFileOfItsOwn) {
  const std::string copy = Copy("zo2");
  for (const char* rank : {"0", "1"}) {
    const std::string path = copy + "/optimizer_tp0_pp0_zo" + rank + ".pt";
    WriteFileBytes(
        path, ckpt::convert::WithoutChecksums(absl::StrReplaceAll(
                  ReadFileBytes(path), {{"zero_devide_optim_plan", "zero_divide_optim_plan"}})));
  }
  const auto loaded = Load(copy, "single", /*bf16=*/false);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(FirstStateDifference(loaded->state, ReadOracle("state")), "");
  for (const auto& entry : fs::directory_iterator(copy)) {
    if (entry.path().filename().string().starts_with("gpus-")) fs::remove(entry.path());
  }
  EXPECT_THAT(ErrorOf(copy), HasSubstr("no zero_devide_optim_plan, which tells where each "
                                       "parameter is"));
}

TEST_F(InternEvoTest, OtherParallelModesAreRefused) {
  for (const auto& [name, what] : {std::pair("model_moe_layer0_expert0_tp0.pt", "experts"),
                                   std::pair("model_tp0_pp0_dp1.pt", "FSDP"),
                                   std::pair("model_tp0_wp0_pp0.pt",
                                             "a rank that is both tensor-parallel and "
                                             "weight-parallel")}) {
    const std::string copy = Copy("tp1");
    WriteFileBytes(fs::path(copy) / name, "");
    EXPECT_THAT(ErrorOf(copy),
                HasSubstr(std::string(name) + " is a file of " + what + ", which is not read"));
  }
}

// model_config.pt of the fixture `tp1`, one setting of which is changed or, without a value, left
// out. The ratio is in quarters.
std::string ConfigFile(const std::string& changed, std::optional<int64_t> value) {
  std::map<std::string, int64_t> settings = {
      {"num_layers", 4},  {"hidden_size", 16},   {"num_attention_heads", 4},
      {"vocab_size", 20}, {"multiple_of", 4},    {"num_kv_attention_heads", 2},
      {"mlp_ratio", 3},   {"qk_interleaved", 0}, {"max_position_embeddings", 24}};
  settings.erase(changed);
  if (value) settings[changed] = *value;
  ckpt::pickle::Writer writer;
  writer.BeginDict();
  for (const auto& [name, number] : settings) {
    writer.Text(name);
    if (name == "qk_interleaved" || name == "adapt_hf" || name == "norm_head") {
      writer.Bool(number != 0);
    } else if (name == "mlp_ratio") {
      writer.Float(0.25 * static_cast<double>(number));
    } else {
      writer.Int(number);
    }
  }
  writer.EndDict();
  return ckpt::convert::TorchObjectFile("model_config.pt", std::move(writer).Finish()).header;
}

// Settings that do not fit the files are refused before anything of their size is allocated.
TEST_F(InternEvoTest, RefusesHostileSettings) {
  const std::string copy = Copy("tp1");
  const std::pair<const char*, int64_t> hostile[] = {{"num_layers", 1'000'000'000},
                                                     {"num_layers", 5},
                                                     {"num_layers", 3},
                                                     {"num_layers", 0},
                                                     {"num_layers", -1},
                                                     {"hidden_size", int64_t{1} << 40},
                                                     {"hidden_size", 0},
                                                     {"hidden_size", 32},
                                                     {"num_attention_heads", int64_t{1} << 40},
                                                     {"num_attention_heads", 0},
                                                     {"num_attention_heads", 8},
                                                     {"num_kv_attention_heads", 4},
                                                     {"mlp_ratio", INT64_MAX},
                                                     {"mlp_ratio", -1},
                                                     {"mlp_ratio", 2},
                                                     {"multiple_of", 0},
                                                     {"multiple_of", INT64_MAX},
                                                     {"vocab_size", int64_t{1} << 50},
                                                     {"vocab_size", 21},
                                                     {"num_experts", 8},
                                                     {"norm_head", 1}};
  WriteFileBytes(copy + "/model_config.pt", ConfigFile("num_layers", 4));
  const absl::Status unchanged = Open(copy).status();
  ASSERT_TRUE(unchanged.ok()) << unchanged;
  for (const auto& [name, value] : hostile) {
    WriteFileBytes(copy + "/model_config.pt", ConfigFile(name, value));
    EXPECT_NE(ErrorOf(copy), "") << name << "=" << value;
  }
}

TEST_F(InternEvoTest, WhatSettlesAnAmbiguityIsSaid) {
  const std::string copy = Copy("tp1");
  WriteFileBytes(copy + "/model_config.pt", ConfigFile("qk_interleaved", std::nullopt));
  EXPECT_THAT(ErrorOf(copy), HasSubstr("model_config.pt: neither qk_interleaved nor adapt_hf"));
  fs::remove(copy + "/model_config.pt");
  EXPECT_THAT(ErrorOf(copy), HasSubstr("model_config.pt is missing: it describes the model"));
}

TEST_F(InternEvoTest, RefusesTruncatedFiles) {
  for (const char* file :
       {"model_tp0_pp0.pt", "optimizer_tp0_pp0_zo0.pt", "model_config.pt", "context.pt"}) {
    const uint64_t size = fs::file_size(Fixture("tp1") + "/" + file);
    for (const uint64_t length : {uint64_t{0}, uint64_t{1}, size / 2, size - 1}) {
      const std::string copy = Copy("tp1");
      fs::resize_file(fs::path(copy) / file, length);
      EXPECT_NE(ErrorOf(copy), "") << file << " of " << length << " bytes";
    }
  }
}

}  // namespace
}  // namespace tessera
