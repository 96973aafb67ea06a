// What the readers of PaddleNLP's and Paddle's checkpoints make of them, and the losses with which
// runs go on from every layout.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "convert/open_foreign.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/interop/foreign_run.h"
#include "tests/interop/readers.h"
#include "tests/support/command.h"
#include "tools/ckpt/commands.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::Fixture;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LogicalState;

using PaddleReadersTest = testing::ReadersTest;

TEST_F(PaddleReadersTest, PaddleKeepsItsNamesAndTheSettingsOfAdam) {
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

// The optimizer's names alone, and a map.
TEST_F(PaddleReadersTest, PaddlesNamesMayBeGiven) {
  const std::string copy = CopyOf(Fixture("paddle/testdata/sharding2_v2_meta"));
  WriteFile(In("names.json"), nlohmann::json(NamesByRank(copy).at("tp00_pp00")).dump());
  fs::remove(copy + "/model_meta.json");
  Open(copy, {.parameter_names_file = In("names.json")});
}

// Paddle gives one name to different parameters of two pipeline stages. What is left of the grid's
// files is the optimizer's alone: weights come from the master weights.
TEST_F(PaddleReadersTest, PaddlesNamesMayBeInAFile) {
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
    ASSERT_OK(ckpt::convert::OpenForeign(folder, {.parameter_names_file = In(names)}));
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
       "embedding_0.w_0 was said to be llama.none.weight, which is not a parameter"}};
  for (const auto& [text, said] : wrong) {
    WriteFile(In("wrong.json"), text);
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
TEST_F(PaddleReadersTest, PaddlesWeightsAreCastFromMasterWeights) {
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
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(written.state.at(name) == tensor) << name;
}

// The settings with which PaddleNLP itself took the next two steps.
class PaddleLossesTest : public testing::ReadersTest {
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
  const std::string guide = ReadFile("docs/foreign-formats.md");
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
