// Every setting in turn is changed when a run is resumed: if the steps that follow have other
// results, in any bit, the run has said so.

#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/flag_options.pb.h"
#include "base/testing.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "tests/resume/resume_run.h"
#include "trainer/config/config.h"
#include "trainer/config/flags.h"

namespace tessera {
namespace {

using ::google::protobuf::FieldDescriptor;

// Texts of other values of a setting than the one that it has in `config`.
std::vector<std::string> OtherValues(const TrainConfig& config, const Setting& setting) {
  const std::string now = FieldText(setting.in(config), *setting.field);
  std::vector<std::string> values;
  switch (setting.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      values = {"true", "false"};
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      for (int i = 0; i < setting.field->enum_type()->value_count(); ++i) {
        const std::string& name = setting.field->enum_type()->value(i)->name();
        if (!name.ends_with("_UNSPECIFIED")) values.push_back(name);
      }
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      values = {"0", "1", "2", absl::StrCat(std::stoll(now) + 1)};
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      values = {"0", absl::StrCat(std::stod(now) * 2 + 0.125)};
      break;
    default:
      break;  // names of files, of which the data's are compared by their contents
  }
  std::set<std::string> others;
  for (const std::string& value : values) {
    TrainConfig changed = config;
    const std::vector<std::string> flag = {absl::StrCat("--", setting.name(), "=", value)};
    EXPECT_OK(ApplyFlags(flag, &changed)) << flag[0];
    if (FieldText(setting.in(changed), *setting.field) != now) others.insert(flag[0]);
  }
  return {others.begin(), others.end()};
}

// The sizes of a topology are told as a whole.
std::string NameInNotes(const Setting& setting) {
  return setting.field->options().GetExtension(effect) == Effect::TOPOLOGY ? "resharded from"
                                                                           : setting.name();
}

class ChangedSettingsTest : public ResumeTest, public ::testing::WithParamInterface<bool> {
 protected:
  static constexpr int64_t kResumed = 4;
  static constexpr int64_t kLast = 6;

  TrainConfig Base(const std::string& run) const {
    TrainConfig config =
        Config({"model { size: \"gpt2-tiny\" hidden_dropout: 0.1 }",
                GetParam() ? "parallel { numerics: EXACT exact_tp_shards: 2 }"
                           : "parallel { data_parallel_size: 2 tensor_model_parallel_size: 2 }",
                "training { eval_interval: 0 }"},
               run);
    config.mutable_training()->set_train_iters(kLast);
    config.mutable_training()->set_threads(1);
    return config;
  }
};

TEST_P(ChangedSettingsTest, WhatChangesAnyBitIsSaid) {
  ASSERT_OK(Train(Base("base")));
  const auto resume = [&](const std::string& run, const std::string& flag) {
    TrainConfig config = Base(run);
    config.mutable_checkpoint()->set_load(Checkpoints("base").string());
    config.mutable_checkpoint()->set_ckpt_step(kResumed);
    if (!flag.empty()) EXPECT_OK(ApplyFlags(std::vector<std::string>{flag}, &config)) << flag;
    // Only the steps are compared.
    config.mutable_output()->set_run_dir(RunDir(run).string());
    CheckpointConfig& checkpoint = *config.mutable_checkpoint();
    if (checkpoint.replicate_to_peers()) checkpoint.set_replicate_folder(root_ / "memory");
    return Train(config);
  };
  ASSERT_OK_AND_ASSIGN(const std::string unchanged_notes, resume("unchanged", ""));
  const std::map<int64_t, std::string> unchanged = Losses("unchanged");
  ASSERT_EQ(unchanged.size(), static_cast<size_t>(kLast - kResumed));
  int refused = 0, same = 0, told = 0;
  ASSERT_OK_AND_ASSIGN(const TrainConfig resolved, ResolveConfig(Base("resolved")));
  for (const Setting& setting : AllSettings(*TrainConfig::descriptor())) {
    for (const std::string& flag : OtherValues(resolved, setting)) {
      SCOPED_TRACE(flag);
      const std::string run = absl::StrCat("run", refused + same + told);
      const absl::StatusOr<std::string> notes = resume(run, flag);
      if (!notes.ok()) {
        ++refused;
        EXPECT_FALSE(notes.status().message().empty());
        continue;
      }
      // A run may end before the others do, or later.
      std::map<int64_t, std::string> results = Losses(run);
      const bool same_bits = [&] {
        for (const auto& [step, bits] : results) {
          const auto at = unchanged.find(step);
          if (at != unchanged.end() && at->second != bits) return false;
        }
        return results.empty() || results.begin()->first == kResumed + 1;
      }();
      if (same_bits) {
        ++same;
        continue;
      }
      ++told;
      const bool is_wish = setting.group->name() == "checkpoint";  // about what is loaded
      EXPECT_TRUE(is_wish ? *notes != unchanged_notes
                          : notes->find(NameInNotes(setting)) != notes->npos)
          << *notes;
    }
  }
  std::printf("settings changed on resume: %d refused, %d with the same bits, %d told\n", refused,
              same, told);
  EXPECT_GT(same, 20);
  EXPECT_GT(told, 20);
}

INSTANTIATE_TEST_SUITE_P(Numerics, ChangedSettingsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Exact" : "Fast"; });

}  // namespace
}  // namespace tessera
