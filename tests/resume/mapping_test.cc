// The manifest's mapping, and not a tensor's name, says whose optimizer state a tensor is.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "convert/write_foreign.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/resume/resume_run.h"
#include "tests/support/command.h"
#include "tests/support/logical_state.h"
#include "tests/support/session_run.h"
#include "trainer/config/config.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kExactNumerics[] = "parallel { numerics: EXACT exact_tp_shards: 2 }";
constexpr int64_t kSaved = 4;

// A new name for each tensor of optimizer state, or "" to leave it out, and a last change of the
// mapping.
struct Change {
  std::function<std::string(const std::string& name)> rename;
  std::function<void(ckpt::OptimizerState& mapping)> edit = [](ckpt::OptimizerState&) {};
};

class MappingTest : public ResumeTest {
 protected:
  TrainConfig Settings(const std::vector<std::string>& fragments, const std::string& run) const {
    std::vector<std::string> all = {kGpt2, "model { num_layers: 4 }"};
    all.insert(all.end(), fragments.begin(), fragments.end());
    TrainConfig config = Config(all, run);
    config.mutable_training()->set_micro_batch_size(1);
    config.mutable_training()->set_train_iters(8);
    return config;
  }

  // Saves a run's checkpoint of kSaved again, in a folder of its own.
  absl::Status SaveChanged(const std::string& from, const std::string& to, const Change& change) {
    TESSERA_ASSIGN_OR_RETURN(const ckpt::CheckpointFolder folder,
                             ckpt::CheckpointFolder::Open(Checkpoints(from).string()));
    TESSERA_ASSIGN_OR_RETURN(const ckpt::Checkpoint saved, folder.At(kSaved));
    ckpt::Manifest manifest = saved.manifest();
    std::deque<std::vector<std::byte>> memory;
    ckpt::StateDict state;
    for (const ckpt::TensorInfo& info : saved.tensors()) {
      const bool is_state = ckpt::BelongsToOptimizer(info.role);
      ckpt::ShardedTensor tensor = {.name = is_state ? change.rename(info.name) : info.name,
                                    .role = info.role,
                                    .dtype = info.dtype,
                                    .global_shape = info.global_shape,
                                    .alias_of = info.alias_of};
      if (tensor.name.empty()) continue;
      if (info.alias_of.empty()) {
        TESSERA_ASSIGN_OR_RETURN(const Box box, saved.BoxOf(info.name, std::nullopt));
        memory.emplace_back(ElementCount(box.shape) * ElementSize(info.dtype));
        tensor.shards = {ckpt::Shard::Untyped(memory.back().data(), info.dtype, box)};
        TESSERA_RETURN_IF_ERROR(saved.LoadTensor(info.name, tensor.shards[0]));
      }
      state.tensors.push_back(std::move(tensor));
    }
    manifest.clear_tensors();
    manifest.clear_files();
    for (ckpt::OptimizerParameter& parameter :
         *manifest.mutable_optimizer()->mutable_parameters()) {
      for (auto& [key, name] : *parameter.mutable_states()) name = change.rename(name);
      (*parameter.mutable_foreign_names())["theirs"] = "their." + parameter.parameter();
    }
    change.edit(*manifest.mutable_optimizer());
    TESSERA_ASSIGN_OR_RETURN(
        const ckpt::CheckpointFolder changed,
        ckpt::CheckpointFolder::Open(Checkpoints(to).string(), {.create_root = true}));
    return changed.Save({.step = kSaved, .metadata = ckpt::ToMetadata(std::move(manifest))}, state)
        .status();
  }

  // The losses of the steps after kSaved of a run that loads another's checkpoint.
  std::map<int64_t, std::string> Continue(const std::string& from, const std::string& run,
                                          const std::vector<std::string>& fragments) {
    TrainConfig config = Settings(fragments, run);
    config.mutable_checkpoint()->set_load(Checkpoints(from).string());
    EXPECT_OK(Train(config));
    return Losses(run);
  }

  static std::map<std::string, std::string> ForeignNames(const fs::path& checkpoint) {
    std::map<std::string, std::string> names;
    const auto saved = ckpt::Checkpoint::Open(checkpoint.string());
    EXPECT_OK(saved);
    if (!saved.ok()) return names;
    for (const ckpt::OptimizerParameter& parameter : saved->manifest().optimizer().parameters()) {
      const auto at = parameter.foreign_names().find("theirs");
      if (at != parameter.foreign_names().end()) names[parameter.parameter()] = at->second;
    }
    return names;
  }
};

// Names without any likeness to those of the parameters.
Change Numbered() {
  auto numbers = std::make_shared<std::map<std::string, int>>();
  return {[numbers](const std::string& name) {
    return absl::StrCat("state/", numbers->emplace(name, numbers->size()).first->second);
  }};
}

// Each moment under the name of the parameter's other one.
Change Exchanged() {
  return {[](const std::string& name) {
    if (name.ends_with(".exp_avg_sq")) return name.substr(0, name.size() - 3);
    return name.ends_with(".exp_avg") ? name + "_sq" : name;
  }};
}

TEST_F(MappingTest, MomentsAreThoseOfTheMapping) {
  const std::string bf16 = "training { bf16: true }";
  const std::string many =
      "parallel { data_parallel_size: 2 zero_stage: 2 tensor_model_parallel_size: 2 "
      "pipeline_model_parallel_size: 2 }";
  ASSERT_OK(Train(Settings({kExactNumerics, bf16}, "full")));
  std::map<int64_t, std::string> expected = Losses("full");
  expected.erase(expected.begin(), expected.upper_bound(kSaved));
  ASSERT_EQ(expected.size(), 4u);
  for (const auto& [name, change] :
       {std::pair("numbered", Numbered()), std::pair("exchanged", Exchanged())}) {
    SCOPED_TRACE(name);
    ASSERT_OK(SaveChanged("full", name, change));
    const std::string one = absl::StrCat(name, "-one"), eight = absl::StrCat(name, "-eight");
    EXPECT_EQ(Continue(name, one, {kExactNumerics, bf16}), expected);
    EXPECT_EQ(Continue(name, eight, {kExactNumerics, bf16, many}), expected);
    ExpectSameTensors("full", one, 8);
    // What others call the parameters is saved again, and by a run that continues from that.
    const auto names = ForeignNames(StepDir(name, kSaved));
    EXPECT_GT(names.size(), 40u);
    EXPECT_EQ(ForeignNames(StepDir(one, 8)), names);
    EXPECT_EQ(ForeignNames(StepDir(eight, 8)), names);
  }
}

// A name does not give a parameter what the mapping gives to another one.
TEST_F(MappingTest, StateThatTheMappingLeavesOutIsNotGuessed) {
  const std::string a = "transformer.h.0.ln_1.weight", b = "transformer.h.1.ln_1.weight";
  ASSERT_OK(Train(Settings({}, "full")));
  const Change change = {
      .rename =
          [&](const std::string& name) {
            return name == a + ".exp_avg"   ? b + ".exp_avg"
                   : name == b + ".exp_avg" ? a + ".exp_avg"
                                            : name;
          },
      .edit =
          [&](ckpt::OptimizerState& mapping) {
            for (ckpt::OptimizerParameter& parameter : *mapping.mutable_parameters()) {
              if (parameter.parameter() == b) parameter.mutable_states()->erase("exp_avg");
            }
          }};
  ASSERT_OK(SaveChanged("full", "changed", change));
  TrainConfig config = Settings({}, "refused");
  config.mutable_checkpoint()->set_load(Checkpoints("changed").string());
  const auto refusal = [&] { return std::string(Train(config).status().message()); };
  EXPECT_THAT(refusal(), HasSubstr("no place for: " + a + ".exp_avg (of no parameter)"));
  config.mutable_checkpoint()->set_allow_unexpected(true);
  EXPECT_THAT(refusal(), HasSubstr("tensor " + b + ".exp_avg: wanted, not in the checkpoint"));
  config.mutable_checkpoint()->set_allow_missing(true);
  EXPECT_THAT(refusal(), HasSubstr("without their optimizer state (" + b + ".exp_avg)"));
}

// A parameter that was frozen has no optimizer state.
TEST_F(MappingTest, StateOfFrozenParametersAloneBeginsAnew) {
  const std::string frozen = "transformer.h.1.ln_1.weight";
  const std::string bf16 = "training { bf16: true }";
  ASSERT_OK(Train(Settings({bf16}, "full")));
  const Change change = {
      .rename = [&](const std::string& name) { return name.starts_with(frozen + ".") ? "" : name; },
      .edit =
          [&](ckpt::OptimizerState& mapping) {
            for (ckpt::OptimizerParameter& parameter : *mapping.mutable_parameters()) {
              if (parameter.parameter() == frozen) parameter.clear_states();
            }
          }};
  ASSERT_OK(SaveChanged("full", "frozen", change));
  const auto begin = [&](const std::string& from, bool allow_missing,
                         testing::LogicalState* state) {
    TrainConfig config = Settings({bf16, "parallel { data_parallel_size: 2 zero_stage: 1 }"}, "on");
    config.mutable_checkpoint()->set_load(Checkpoints(from).string());
    config.mutable_checkpoint()->set_ckpt_step(kSaved);
    config.mutable_checkpoint()->set_allow_missing(allow_missing);
    testing::StateCollector collector;
    const auto resolved = OrFail(ResolveConfig(config));
    auto notes = testing::TrainOnProcessors(
        resolved, [&](Session& session) { return collector.Add(session.trainer->chunks()); });
    *state = collector.Take();
    return notes;
  };
  testing::LogicalState full, state;
  ASSERT_OK(begin("full", false, &full));
  const std::string refusal(begin("frozen", false, &state).status().message());
  EXPECT_THAT(refusal, HasSubstr("holds parameters without their optimizer state (" + frozen));
  EXPECT_THAT(refusal, HasSubstr("--allow-missing starts these at zero"));
  ASSERT_OK_AND_ASSIGN(const std::string notes, begin("frozen", true, &state));
  EXPECT_THAT(notes, HasSubstr("not saved with its parameter, starts at zero: " + frozen +
                               ".exp_avg, " + frozen + ".exp_avg_sq\n"));
  EXPECT_THAT(notes, HasSubstr("some master weights come from the saved weights"));
  // The frozen parameter's master weight is its rounded weight.
  const testing::LogicalTensor& weight = state.at(frozen);
  testing::LogicalTensor& master = full.at(frozen + ".master");
  ASSERT_EQ(master.bytes.size(), 2 * weight.bytes.size());
  std::ranges::fill(master.bytes, std::byte{0});
  for (size_t i = 0; i < weight.bytes.size(); i += 2) {
    std::copy_n(&weight.bytes[i], 2, &master.bytes[2 * i + 2]);
  }
  for (const char* const moment : {".exp_avg", ".exp_avg_sq"}) {
    std::ranges::fill(full.at(frozen + moment).bytes, std::byte{0});
  }
  EXPECT_EQ(FirstStateDifference(full, state), "");
}

TEST_F(MappingTest, OtherFormatsAreWrittenByIt) {
  ASSERT_OK(Train(Settings({}, "full")));
  ASSERT_OK(SaveChanged("full", "exchanged", Exchanged()));
  for (const std::string format : {"llmc", "megatron"}) {
    SCOPED_TRACE(format);
    for (const std::string run : {"full", "exchanged"}) {
      ASSERT_OK_AND_ASSIGN(const auto source,
                           ckpt::Checkpoint::Open(StepDir(run, kSaved).string()));
      ASSERT_OK(ckpt::convert::WriteForeign(source, (root_ / (format + run)).string(),
                                            {.format = format}));
    }
    int files = 0;
    for (const auto& entry : fs::directory_iterator(root_ / (format + "full"))) {
      ++files;
      EXPECT_TRUE(ReadFile(entry.path()) ==
                  ReadFile(root_ / (format + "exchanged") / entry.path().filename()))
          << entry.path();
    }
    EXPECT_GE(files, 3);
  }
}

}  // namespace
}  // namespace tessera
