#include "trainer/state/saved_settings.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/flag_options.pb.h"
#include "compute/parallel/micro_batches.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "trainer/config/config.h"
#include "trainer/config/flags.h"
#include "trainer/optim/schedule.h"

namespace tessera {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;

constexpr char kSettings[] = "settings";

bool IsIncidental(const FieldDescriptor& field) { return field.options().GetExtension(incidental); }

bool IsScalar(const FieldDescriptor& field) {
  return field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE && !field.is_repeated();
}

std::vector<const FieldDescriptor*> SetFields(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  return fields;
}

void ClearIncidental(Message& message) {
  for (const FieldDescriptor* field : SetFields(message)) {
    if (IsIncidental(*field)) {
      message.GetReflection()->ClearField(&message, field);
    } else if (!IsScalar(*field) && !field->is_repeated()) {
      ClearIncidental(*message.GetReflection()->MutableMessage(&message, field));
    }
  }
}

// A later version's fields are skipped. Returns false for other text, as that of a foreign program.
bool Parse(const std::string& text, Message* message) {
  google::protobuf::TextFormat::Parser parser;
  parser.AllowUnknownField(true);
  // Reports no errors: the text may be a foreign program's.
  class Silence : public google::protobuf::io::ErrorCollector {
    void AddError(int, int, const std::string&) override {}
  } silence;
  parser.RecordErrorsTo(&silence);
  return parser.ParseFromString(text, message);
}

// nullopt where the checkpoint records none.
std::optional<TrainConfig> SettingsOf(const ckpt::Manifest& manifest) {
  const auto saved = manifest.trainer().extra().find(kSettings);
  TrainConfig config;
  if (saved == manifest.trainer().extra().end() || !Parse(saved->second, &config)) {
    return std::nullopt;
  }
  if (!Parse(manifest.model().text(), config.mutable_model())) config.clear_model();
  return config;
}

void AddChanges(const Message& saved, const Message& now, std::vector<ChangedSetting>& changes) {
  for (const FieldDescriptor* field : SetFields(saved)) {
    if (IsIncidental(*field) || field->is_repeated()) continue;
    if (!now.GetReflection()->HasField(now, field)) continue;
    if (!IsScalar(*field)) {
      AddChanges(saved.GetReflection()->GetMessage(saved, field),
                 now.GetReflection()->GetMessage(now, field), changes);
      continue;
    }
    ChangedSetting change{field->name(), FieldText(saved, *field), FieldText(now, *field)};
    if (change.saved != change.now) changes.push_back(std::move(change));
  }
}

// `to` keeps its own value of a field that `from` does not have.
void CopySchedule(const OptimizerConfig& from, OptimizerConfig& to) {
  OptimizerConfig schedule = from;
  for (const FieldDescriptor* field : SetFields(from)) {
    if (field->options().GetExtension(of_schedule)) continue;
    schedule.GetReflection()->ClearField(&schedule, field);
  }
  to.MergeFrom(schedule);
}

absl::StatusOr<TrainConfig> WithSavedSchedule(const TrainConfig& saved, TrainConfig config) {
  CopySchedule(saved.optimizer(), *config.mutable_optimizer());
  return ResolveConfig(config);
}

// Empty where the rate is the same.
std::string DescribeNextRate(const TrainConfig& saved, const TrainConfig& config, int64_t step) {
  const absl::StatusOr<TrainConfig> before = WithSavedSchedule(saved, config);
  if (!before.ok()) return "";
  const double old_rate = LearningRate(before->optimizer(), step);
  const double rate = LearningRate(config.optimizer(), step);
  if (old_rate == rate) return "";
  return absl::StrFormat(
      "\nthe next learning rate is %g; with the saved run's schedule it would be %g "
      "(--use-checkpoint-opt-param-scheduler)",
      rate, old_rate);
}

}  // namespace

void SaveSettings(const TrainConfig& config, uint64_t seed, ckpt::TrainerState& state) {
  TrainConfig settings = config;
  settings.clear_model();
  settings.mutable_training()->set_seed(static_cast<int64_t>(seed));
  ClearIncidental(settings);
  std::string text;
  google::protobuf::TextFormat::PrintToString(settings, &text);
  (*state.mutable_extra())[kSettings] = text;
}

std::string DeterminingSettings(const TrainConfig& config, uint64_t seed) {
  TrainConfig settings = config;
  settings.mutable_training()->set_seed(static_cast<int64_t>(seed));
  settings.mutable_training()->clear_eval_iters();
  ClearIncidental(settings);
  settings.mutable_parallel()->set_numerics(config.parallel().numerics());
  if (config.parallel().numerics() == Numerics::EXACT) {
    settings.mutable_parallel()->set_exact_tp_shards(config.parallel().exact_tp_shards());
    settings.mutable_training()->set_micro_batch_size(
        CanonicalUnit(config.training().micro_batch_size()));
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
  AddChanges(*saved, now, changes);
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

}  // namespace tessera
