#include "trainer/state/saved_settings.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "compute/parallel/micro_batches.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "trainer/config/config.h"
#include "trainer/config/flags.h"
#include "trainer/config/load_content.h"
#include "trainer/optim/schedule.h"
#include "trainer/state/load_tensors.h"

namespace tessera {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;

// Entries of TrainerState::extra: what the results depend on, and what only their last bits do.
constexpr char kSettings[] = "settings";
constexpr char kBitSettings[] = "bit_settings";

// Returns the effect that the field declares, or its group.
Effect::Value EffectOf(const Setting& setting) {
  const auto& options = setting.field->options();
  return (options.HasExtension(effect) ? options : setting.group->options()).GetExtension(effect);
}

// Returns whether a resume compares it. The topology is in every manifest.
bool IsCompared(const Setting& setting) {
  return EffectOf(setting) != Effect::NOTHING && EffectOf(setting) != Effect::TOPOLOGY;
}

bool IsOfBits(const Setting& setting) {
  return EffectOf(setting) == Effect::BITS || EffectOf(setting) == Effect::FAST_BITS;
}

// Clears the other settings, and the groups that are then empty.
void KeepOnly(bool (*is_kept)(const Setting&), TrainConfig& config) {
  for (const Setting& setting : AllSettings(*TrainConfig::descriptor())) {
    if (setting.is_given(config) && !is_kept(setting)) setting.Clear(&config);
  }
  for (int i = 0; i < TrainConfig::descriptor()->field_count(); ++i) {
    const FieldDescriptor* const group = TrainConfig::descriptor()->field(i);
    const Reflection& groups = *config.GetReflection();
    if (groups.GetMessage(config, group).ByteSizeLong() == 0) groups.ClearField(&config, group);
  }
}

// Adds the numerics to the settings of a checkpoint without them, as older versions saved it.
void AddNumerics(const ckpt::Manifest& manifest, TrainConfig& config) {
  const auto text = manifest.trainer().extra().find(kNumerics);
  if (config.parallel().has_numerics() || text == manifest.trainer().extra().end()) return;
  int64_t shards = 1;
  const bool is_exact = std::sscanf(text->second.c_str(), "EXACT with %" SCNd64, &shards) == 1;
  config.mutable_parallel()->set_numerics(is_exact ? Numerics::EXACT : Numerics::FAST);
  config.mutable_parallel()->set_exact_tp_shards(shards);
}

// Returns the settings that the checkpoint records; nullopt if it records none.
std::optional<TrainConfig> SettingsOf(const ckpt::Manifest& manifest) {
  const auto saved = manifest.trainer().extra().find(kSettings);
  TrainConfig config;
  if (saved == manifest.trainer().extra().end() || !ParseSettings(saved->second, &config)) {
    return std::nullopt;
  }
  const auto of_bits = manifest.trainer().extra().find(kBitSettings);
  TrainConfig bits;
  if (of_bits != manifest.trainer().extra().end() && ParseSettings(of_bits->second, &bits)) {
    config.MergeFrom(bits);
  }
  if (!ParseSettings(manifest.model().text(), config.mutable_model())) config.clear_model();
  AddNumerics(manifest, config);
  return config;
}

// `to` keeps its own value of a field that `from` does not have.
void CopySchedule(const OptimizerConfig& from, OptimizerConfig& to) {
  OptimizerConfig schedule = from;
  std::vector<const FieldDescriptor*> fields;
  from.GetReflection()->ListFields(from, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->options().GetExtension(of_schedule)) continue;
    schedule.GetReflection()->ClearField(&schedule, field);
  }
  to.MergeFrom(schedule);
}

// The checkpoints' settings stay out of it: once resolved, they no longer tell what was given.
absl::StatusOr<TrainConfig> WithSavedSchedule(const TrainConfig& saved, TrainConfig config) {
  CopySchedule(saved.optimizer(), *config.mutable_optimizer());
  CheckpointConfig checkpoint;
  checkpoint.Swap(config.mutable_checkpoint());
  TESSERA_ASSIGN_OR_RETURN(TrainConfig resolved, ResolveConfig(config));
  checkpoint.Swap(resolved.mutable_checkpoint());
  return resolved;
}

// Empty where the rate is the same, or the schedule begins anew.
std::string DescribeNextRate(const TrainConfig& saved, const TrainConfig& config, int64_t step) {
  if (!LoadContentOf(config.checkpoint()).scheduler) return "";
  const absl::StatusOr<TrainConfig> before = WithSavedSchedule(saved, config);
  if (!before.ok()) return "";
  const double old_rate = LearningRate(before->optimizer(), step);
  const double rate = LearningRate(config.optimizer(), step);
  if (old_rate == rate) return "";
  return absl::StrFormat(
      "\nthe next learning rate is %g; with the saved run's schedule it would be %g%s", rate,
      old_rate,
      config.checkpoint().override_opt_param_scheduler()
          ? ""
          : " (--use-checkpoint-opt-param-scheduler)");
}

}  // namespace

bool ParseSettings(const std::string& text, Message* message, bool* has_unknown) {
  // Reports no errors: the text may be a foreign program's.
  class Silence : public google::protobuf::io::ErrorCollector {
    void AddError(int, int, const std::string&) override {}
  } silence;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&silence);
  const bool is_known = parser.ParseFromString(text, message);
  if (has_unknown != nullptr) *has_unknown = !is_known;
  parser.AllowUnknownField(true);
  return is_known || parser.ParseFromString(text, message);
}

std::string NumericsText(const TrainConfig& config) {
  if (config.parallel().numerics() == Numerics::FAST) return "FAST";
  return absl::StrCat("EXACT with ", config.parallel().exact_tp_shards(), " shards");
}

void SaveSettings(const TrainConfig& config, uint64_t seed, ckpt::TrainerState& state) {
  (*state.mutable_extra())[kNumerics] = NumericsText(config);
  for (const char* const entry : {kSettings, kBitSettings}) {
    TrainConfig settings = config;
    settings.clear_model();
    settings.mutable_training()->set_seed(static_cast<int64_t>(seed));
    if (entry == kBitSettings) {
      KeepOnly(IsOfBits, settings);
    } else {
      KeepOnly([](const Setting& setting) { return IsCompared(setting) && !IsOfBits(setting); },
               settings);
    }
    google::protobuf::TextFormat::PrintToString(settings, &(*state.mutable_extra())[entry]);
  }
}

std::string DeterminingSettings(const TrainConfig& config, uint64_t seed) {
  TrainConfig settings = config;
  settings.mutable_training()->set_seed(static_cast<int64_t>(seed));
  KeepOnly(
      [](const Setting& setting) {
        return EffectOf(setting) == Effect::RESULTS || EffectOf(setting) == Effect::BITS;
      },
      settings);
  if (config.parallel().numerics() == Numerics::EXACT) {
    settings.mutable_training()->set_micro_batch_size(
        CanonicalUnit(config.training().micro_batch_size()));
  } else {
    settings.mutable_parallel()->clear_exact_tp_shards();
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(settings, &text);
  return text;
}

std::vector<ChangedSetting> ChangedSettings(const ckpt::Manifest& manifest,
                                            const TrainConfig& config, uint64_t seed) {
  std::vector<ChangedSetting> changes;
  const std::optional<TrainConfig> saved = SettingsOf(manifest);
  if (!saved.has_value()) return changes;
  TrainConfig now = config;
  now.mutable_training()->set_seed(static_cast<int64_t>(seed));
  for (const Setting& setting : AllSettings(*TrainConfig::descriptor())) {
    if (!IsCompared(setting) || !setting.is_given(*saved) || !setting.is_given(now)) continue;
    ChangedSetting change = {.name = setting.name(),
                             .saved = FieldText(setting.in(*saved), *setting.field),
                             .now = FieldText(setting.in(now), *setting.field),
                             .effect = EffectOf(setting)};
    if (change.saved != change.now) changes.push_back(std::move(change));
  }
  return changes;
}

std::string DescribeChangedSettings(const ckpt::Manifest& manifest, const TrainConfig& config,
                                    uint64_t seed, int64_t step) {
  const std::vector<ChangedSetting> changes = ChangedSettings(manifest, config, seed);
  if (changes.empty()) return "";
  size_t name_width = 0, saved_width = std::string("saved").size();
  for (const ChangedSetting& change : changes) {
    name_width = std::max(name_width, change.name.size());
    saved_width = std::max(saved_width, change.saved.size());
  }
  std::string text = "these settings differ from the saved run's:";
  const auto add_row = [&](const std::string& name, const std::string& saved,
                           const std::string& now) {
    absl::StrAppendFormat(&text, "\n  %-*s  %-*s  %s", static_cast<int>(name_width), name,
                          static_cast<int>(saved_width), saved, now);
  };
  add_row("", "saved", "now");
  for (const ChangedSetting& change : changes) add_row(change.name, change.saved, change.now);
  const bool is_fast = config.parallel().numerics() == Numerics::FAST;
  if (std::ranges::any_of(changes, [&](const ChangedSetting& change) {
        return change.effect == Effect::BITS || (is_fast && change.effect == Effect::FAST_BITS);
      })) {
    text += "\nthe bits of later losses differ from the saved run's";
  }
  return absl::StrCat(text, DescribeNextRate(*SettingsOf(manifest), config, step));
}

absl::Status TakeSavedSchedule(const ckpt::Manifest& manifest, TrainConfig* config) {
  const std::optional<TrainConfig> saved = SettingsOf(manifest);
  if (!saved.has_value() || !saved->optimizer().has_lr()) {
    return absl::FailedPreconditionError(
        "use_checkpoint_opt_param_scheduler: the checkpoint does not record its schedule; without "
        "the flag this run's counts");
  }
  absl::StatusOr<TrainConfig> result = WithSavedSchedule(*saved, *config);
  if (!result.ok()) {
    return absl::DataLossError(absl::StrCat("the saved schedule is not possible: ",
                                            std::string(result.status().message())));
  }
  *config = *std::move(result);
  return absl::OkStatus();
}

TrainConfig SettingsFor(TrainConfig config, const std::optional<SavedRun>& saved) {
  if (!saved.has_value()) return config;
  CheckpointConfig& checkpoint = *config.mutable_checkpoint();
  if (IsOfStatelessOptimizer(saved->manifest())) checkpoint.set_no_load_optim(true);
  if (!saved->is_own) return config;
  // The same command resumes a run that saves no optimizer state.
  const bool begins_afresh = (checkpoint.no_save_optim() || checkpoint.no_load_optim()) &&
                             !HasRole(saved->manifest(), ckpt::TensorRole::kOptimizerState);
  if (begins_afresh) checkpoint.set_no_load_optim(true);
  if (LoadsItsOwn(checkpoint)) return config;
  checkpoint.clear_ckpt_step();
  checkpoint.clear_consumed_samples();
  checkpoint.set_load_content("all");
  checkpoint.set_finetune(false);
  checkpoint.set_no_load_optim(begins_afresh);
  checkpoint.set_no_load_rng(false);
  checkpoint.set_load_tensors("");
  checkpoint.set_allow_missing(false);
  checkpoint.set_allow_unexpected(false);
  return config;
}

}  // namespace tessera
