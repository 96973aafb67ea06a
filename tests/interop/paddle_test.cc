// Checkpoints that Paddle has written, of one state in every hybrid-parallel layout of PaddleNLP,
// against the consolidated state and against the losses of PaddleNLP's own next steps.

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "convert/open_foreign.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/interop/foreign_fixture.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/logical_state.h"
#include "tests/support/training.h"
#include "tools/ckpt/commands.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LogicalState;
using testing::ReadFileBytes;

constexpr char kFixtures[] = "tests/interop/paddle/testdata";
absl::StatusOr<std::unique_ptr<ckpt::convert::ForeignStorage>> Open(
    const std::string& folder, std::map<std::string, std::string> names = {}) {
  return ckpt::convert::OpenForeign(folder, {.parameter_names = std::move(names)});
}

// The state that numpy's safetensors file has, under logical names.
LogicalState ReadOracle() {
  const auto state = testing::ReadFp32State(absl::StrCat(kFixtures, "/state.safetensors"));
  EXPECT_TRUE(state.ok()) << state.status();
  return state.value_or(LogicalState());
}

// The rounded weights of a bf16 run, in fp32.
LogicalState AsFp32(const LogicalState& bf16_run) {
  LogicalState state;
  for (const auto& [name, tensor] : bf16_run) {
    if (tensor.dtype != DType::kBF16) continue;
    testing::LogicalTensor& wide = state[name];
    wide.shape = tensor.shape;
    wide.bytes.resize(2 * tensor.bytes.size());
    // The upper half of each element, in little-endian order.
    for (size_t i = 0; i < tensor.bytes.size(); ++i) {
      wide.bytes[2 * (i & ~size_t{1}) + 2 + (i & 1)] = tensor.bytes[i];
    }
  }
  return state;
}

class PaddleTest : public testing::ForeignFixture {
 protected:
  void SetUp() override {
    ForeignFixture::SetUp();
    const nlohmann::json json =
        nlohmann::json::parse(ReadFileBytes(fs::path(kFixtures) / "losses.json"));
    losses_ = json["losses"].get<std::vector<double>>();
    // Every sample is the same: the order does not matter.
    const auto period = json["tokens"].get<std::vector<int32_t>>();
    length_ = static_cast<int64_t>(period.size());
    std::vector<int32_t> tokens;
    for (int i = 0; i < 400; ++i) tokens.insert(tokens.end(), period.begin(), period.end());
    SetTokens(tokens);
  }

  static std::string Fixture(const std::string& layout) {
    return absl::StrCat(kFixtures, "/", layout);
  }

  std::string Copy(const std::string& layout) const { return CopyOf(Fixture(layout)); }

  // PaddleNLP's settings.
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

  absl::Status ErrorOf(const std::string& folder) const { return Open(folder).status(); }

  std::vector<double> losses_;
  int64_t length_ = 0;
};

struct Layout {
  const char* name;
  bool bf16 = false;  // with master weights
  bool has_weights = true;
  int tensor = 1, pipeline = 1, virtual_pipeline = 1, sharding = 1;
};

std::ostream& operator<<(std::ostream& out, const Layout& layout) { return out << layout.name; }

constexpr Layout kLayouts[] = {
    {.name = "dp"},
    {.name = "mp2", .tensor = 2},
    {.name = "mp2_fused", .tensor = 2},
    {.name = "pp2", .bf16 = true, .pipeline = 2},
    {.name = "mp2_pp2", .bf16 = true, .tensor = 2, .pipeline = 2},
    {.name = "mp2_pp2_vpp2", .tensor = 2, .pipeline = 2, .virtual_pipeline = 2},
    {.name = "sharding2_v1", .bf16 = true, .sharding = 2},
    {.name = "sharding2_v1_meta", .sharding = 2},
    {.name = "mp2_sharding2_v1", .tensor = 2, .sharding = 2},
    {.name = "mp2_pp2_sharding2_v1_meta",
     .bf16 = true,
     .has_weights = false,
     .tensor = 2,
     .pipeline = 2,
     .sharding = 2},
    {.name = "sharding2_v2_meta", .bf16 = true, .has_weights = false, .sharding = 2},
    {.name = "mp2_pp2_sharding2_v2_meta", .tensor = 2, .pipeline = 2, .sharding = 2},
    {.name = "sharding2_stage3", .bf16 = true, .sharding = 2},
};

class PaddleLayoutTest : public PaddleTest, public ::testing::WithParamInterface<Layout> {};

TEST_P(PaddleLayoutTest, HoldsTheConsolidatedStateUnderEveryTopology) {
  const Layout layout = GetParam();
  const LogicalState expected = ReadOracle();
  const auto single = Load(Fixture("dp"), "single", /*bf16=*/false);
  ASSERT_TRUE(single.ok()) << single.status();
  ASSERT_EQ(FirstStateDifference(single->state, expected), "");
  for (const char* topology : testing::kTopologies) {
    SCOPED_TRACE(topology);
    const auto loaded = Load(Fixture(layout.name), topology, /*bf16=*/false);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(FirstStateDifference(loaded->state, expected), "");
    EXPECT_EQ(loaded->losses, single->losses);
    ASSERT_EQ(loaded->losses.size(), losses_.size());
    for (size_t i = 0; i < losses_.size(); ++i) EXPECT_NEAR(loaded->losses[i], losses_[i], 5e-5);
  }
}

// bf16 weights come from the files or, where these have none, from the rounded master weights.
TEST_P(PaddleLayoutTest, ABf16RunHasTheRoundedWeights) {
  const Layout layout = GetParam();
  const auto loaded = Load(Fixture(layout.name), "dp2_zero2_tp2_pp2", /*bf16=*/true);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(FirstStateDifference(loaded->state, testing::AsBf16Run(ReadOracle())), "");
}

TEST_P(PaddleLayoutTest, SaysWhatItIs) {
  const Layout layout = GetParam();
  const auto storage = Open(Fixture(layout.name));
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ((*storage)->format(), "paddle");
  EXPECT_THAT((*storage)->notes(), ::testing::IsEmpty());
  const auto manifest = ckpt::ReadManifest(**storage, "");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const ckpt::TopologyProto& topology = manifest->topology();
  EXPECT_EQ(topology.tensor_parallel(), layout.tensor);
  EXPECT_EQ(topology.pipeline_parallel(), layout.pipeline);
  EXPECT_EQ(topology.virtual_pipeline(), layout.virtual_pipeline);
  EXPECT_EQ(topology.data_parallel(), layout.sharding);
  EXPECT_EQ(manifest->trainer().step(), 3);
  bool has_weights = false, has_masters = false;
  for (const ckpt::LogicalTensor& tensor : manifest->tensors()) {
    has_weights = has_weights || tensor.role() == ckpt::WEIGHT;
    has_masters = has_masters || tensor.role() == ckpt::MASTER_WEIGHT;
    if (tensor.role() == ckpt::WEIGHT) {
      EXPECT_EQ(tensor.dtype(), layout.bf16 ? ckpt::BF16 : ckpt::F32) << tensor.name();
    }
  }
  EXPECT_EQ(has_weights, layout.has_weights);
  EXPECT_EQ(has_masters, layout.bf16);
  const ckpt::OptimizerState& optimizer = manifest->optimizer();
  ASSERT_EQ(optimizer.parameters_size(), 39);
  EXPECT_NEAR(optimizer.groups(0).options().at("beta1"), 0.9, 1e-6);
  EXPECT_NEAR(optimizer.groups(0).options().at("beta2"), 0.95, 1e-6);
  for (const ckpt::OptimizerParameter& parameter : optimizer.parameters()) {
    if (parameter.parameter() != "model.layers.3.mlp.down_proj.weight") continue;
    EXPECT_EQ(parameter.foreign_names().at("paddle"), "llama.layers.3.mlp.down_proj.weight");
    EXPECT_THAT(parameter.foreign_names().at("paddle.tensor"),
                HasSubstr(layout.tensor > 1 ? "row_parallel_linear_" : "linear_"));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, PaddleLayoutTest, ::testing::ValuesIn(kLayouts),
                         [](const auto& info) { return std::string(info.param.name); });

// What PaddleNLP's CheckpointConvertor(path, state_dict, names).Load() does, in three lines.
TEST_F(PaddleTest, LoadsIntoALiveStateInPlace) {
  std::vector<float> live(4 * 16);  // rows [4, 8)
  const auto storage = Open(Fixture("mp2_pp2_sharding2_v2_meta"));
  ASSERT_TRUE(storage.ok()) << storage.status();
  const std::string name = "model.layers.3.mlp.down_proj.weight";
  ckpt::ShardedTensor tensor = {.name = name, .global_shape = {8, 16}};
  tensor.shards = {ckpt::Shard::Of(live, {.global_offset = {4, 0}, .shape = {4, 16}})};
  const auto report = ckpt::Load(**storage, "", {{tensor}}, {.allow_unexpected = true});
  ASSERT_TRUE(report.ok()) << report.status();
  const LogicalState oracle = ReadOracle();
  EXPECT_EQ(std::memcmp(live.data(), oracle.at(name).bytes.data() + 4 * 16 * sizeof(float),
                        live.size() * sizeof(float)),
            0);
}

TEST_F(PaddleTest, TheCommandConvertsAndComparesIt) {
  const std::string converted = In("converted");
  const auto run = [](const std::vector<std::string>& arguments) {
    std::ostringstream out, err;
    const int code = ckpt::RunCkpt(arguments, {out, err, nullptr});
    EXPECT_EQ(code, 0) << out.str() << err.str();
    return out.str();
  };
  EXPECT_THAT(run({"inspect", Fixture("mp2_pp2_sharding2_v2_meta")}), HasSubstr("PaddleNLP"));
  run({"convert", Fixture("mp2_pp2_sharding2_v2_meta"), converted, "--to=tessera",
       "--topology=tp2_pp2"});
  run({"diff", Fixture("dp"), converted});
}

TEST_F(PaddleTest, WithoutTheOptimizerThereAreWeights) {
  const std::string copy = Copy("mp2");
  fs::remove(copy + "/optimizer.tp00.pdopt");
  fs::remove(copy + "/optimizer.tp01.pdopt");
  const auto storage = Open(copy);
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_THAT((*storage)->notes(), ::testing::Contains(HasSubstr("no optimizer state")));
  const auto manifest = ckpt::ReadManifest(**storage, "");
  EXPECT_FALSE(manifest->has_optimizer());
  EXPECT_EQ(manifest->tensors_size(), 39);
}

TEST_F(PaddleTest, ARunStartsFromWeightsAlone) {
  for (const auto& [layout, bf16] : {std::pair("mp2_pp2_vpp2", false), std::pair("pp2", true)}) {
    SCOPED_TRACE(layout);
    const std::string copy = Copy(layout);
    for (const auto& entry : fs::directory_iterator(copy)) {
      if (entry.path().extension() == ".pdopt") fs::remove(entry.path());
    }
    const auto saved = testing::OpenForeignRun(copy);
    ASSERT_TRUE(saved.ok()) << saved.status();
    LogicalState weights;
    for (auto& [name, tensor] : ReadOracle()) {
      if (name.find(".exp_avg") == name.npos) weights[name] = tensor;
    }
    if (bf16) weights = AsFp32(testing::AsBf16Run(weights));
    const auto config = Config(Settings(saved->manifest.model().text(), "single", false));
    ASSERT_TRUE(config.ok()) << config.status();
    const auto expected = testing::ContinueRun(weights, saved->manifest.trainer().step(), *config);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (const char* topology : testing::kTopologies) {
      SCOPED_TRACE(topology);
      const auto loaded = Load(*saved, topology, /*bf16=*/false);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ(FirstStateDifference(loaded->state, expected->state), "");
      EXPECT_EQ(loaded->losses, expected->losses);
    }
  }
}

TEST_F(PaddleTest, AMissingFileIsNamed) {
  const std::string copy = Copy("mp2_pp2_sharding2_v2_meta");
  fs::remove(copy + "/optimizer.tp01_pp00_shard01.pdopt");
  fs::remove(copy + "/model_state.tp00_pp01_shard00.pdparams");
  const absl::Status status = ErrorOf(copy);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("optimizer.tp01_pp00_shard01.pdopt"),
                                      HasSubstr("model_state.tp00_pp01_shard00.pdparams")));
}

TEST_F(PaddleTest, ARankWhoseFilesAreAllMissingIsNoticed) {
  std::string copy = Copy("sharding2_v2_meta");
  fs::remove(copy + "/optimizer.shard01.pdopt");
  fs::remove(copy + "/model_state.shard01.pdparams");
  EXPECT_THAT(ErrorOf(copy).message(),
              HasSubstr("parallel_config: tp 1, pp 1, sharding 2, the names of the files say tp 1, "
                        "pp 1, sharding 1"));
  fs::remove(copy + "/model_meta.json");
  fs::remove(copy + "/model_state.shard00.pdparams");
  EXPECT_THAT(ErrorOf(copy).message(), HasSubstr("nothing tells which parameter"));
  copy = Copy("sharding2_v1");
  fs::remove(copy + "/optimizer.shard01.pdopt");
  EXPECT_THAT(ErrorOf(copy).message(), HasSubstr("the optimizer's files have no exp_avg of "));
}

TEST_F(PaddleTest, FilesOfTwoCheckpointsAreRefused) {
  const std::string copy = Copy("mp2");
  fs::copy(Fixture("dp") + "/model_state.pdparams", copy + "/model_state.pdparams");
  EXPECT_THAT(ErrorOf(copy).message(), HasSubstr("are files of different checkpoints"));
}

TEST_F(PaddleTest, CopiesThatDifferAreRefused) {
  const std::string copy = Copy("mp2");
  // The last array of a rank's model is the head's; a norm, which both ranks have, stands before.
  std::string bytes = ReadFileBytes(copy + "/model_state.tp01.pdparams");
  const size_t key = bytes.rfind("llama.norm.weight");
  ASSERT_NE(key, bytes.npos);
  size_t values = bytes.find(std::string("C\x20", 2), key);
  ASSERT_NE(values, bytes.npos);
  bytes[values + 2] ^= 1;
  std::ofstream(copy + "/model_state.tp01.pdparams", std::ios::binary) << bytes;
  const absl::Status status = ErrorOf(copy);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("model.norm.weight"), HasSubstr("model_state.tp01.pdparams")));
}

TEST_F(PaddleTest, OwnersAndStepsMustAgree) {
  const std::string copy = Copy("sharding2_v1_meta");
  std::string meta = ReadFileBytes(copy + "/model_meta.json");
  nlohmann::json json = nlohmann::json::parse(meta);
  auto& owners = json["sharding_metas"]["tp00_pp00"]["param2rank"];
  owners["linear_0.w_0"] = 1 - owners["linear_0.w_0"].get<int>();
  std::ofstream(copy + "/model_meta.json") << json;
  EXPECT_THAT(ErrorOf(copy).message(),
              AllOf(HasSubstr("linear_0.w_0_moment1_0"), HasSubstr("model_meta.json says")));
  json = nlohmann::json::parse(meta);
  json["sharding_metas"]["tp00_pp00"]["sharding_strategy"] = "ShardingV2";
  std::ofstream(copy + "/model_meta.json") << json;
  EXPECT_THAT(ErrorOf(copy).message(),
              HasSubstr("is whole, but model_meta.json's sharding_strategy is ShardingV2"));
  const std::string single = Copy("dp");
  std::ofstream(single + "/trainer_state.json") << R"({"global_step": 4})";
  EXPECT_THAT(ErrorOf(single).message(), HasSubstr("step 4, scheduler.pdparams says 3"));
}

TEST_F(PaddleTest, WhatSettlesAnAmbiguityIsSaid) {
  const std::string copy = Copy("sharding2_v1_meta");
  fs::remove(copy + "/config.json");
  EXPECT_THAT(ErrorOf(copy).message(), HasSubstr("no config.json, which describes the model"));
}

// The optimizer's names alone, and a map that the caller has.
TEST_F(PaddleTest, NamesMayBeGiven) {
  const std::string copy = Copy("sharding2_v2_meta");
  const nlohmann::json json = nlohmann::json::parse(ReadFileBytes(copy + "/model_meta.json"));
  std::map<std::string, std::string> names;
  for (const auto& [structured, name] :
       json["sharding_metas"]["tp00_pp00"]["structure_name_mapping"].items()) {
    names[name.get<std::string>()] = structured;
  }
  fs::remove(copy + "/model_meta.json");
  EXPECT_THAT(ErrorOf(copy).message(), HasSubstr("would settle it"));
  const auto storage = Open(copy, names);
  ASSERT_TRUE(storage.ok()) << storage.status();
}

}  // namespace
}  // namespace tessera
