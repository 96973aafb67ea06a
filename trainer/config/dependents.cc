#include "trainer/config/dependents.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/flag_options.pb.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "trainer/config/flags.h"

namespace tessera {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;

// What switches off all saving and leaves loading on.
constexpr std::string_view kMasterSwitch = "enable_save_ckpt";

// Two settings that state the same.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"dtype", "bf16"},
    {"total_batch_size", "global_batch_size"},
    {"save_optimizer_state", "no_save_optim"},
    {"ckpt_type", "load_format"},
};

// Precondition: there is one of this name, as `needs` of the declarations are tested.
Setting Find(std::string_view name) {
  static const auto& settings = *new std::vector<Setting>(AllSettings(*TrainConfig::descriptor()));
  for (const Setting& setting : settings) {
    if (setting.name() == name) return setting;
  }
  return {};
}

// Returns whether the value, or the default, is false, 0, empty, or the first of an enum.
bool IsOffItself(const TrainConfig& config, const Setting& setting) {
  const std::string text = FieldText(setting.in(config), *setting.field);
  if (setting.field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    const Message& group = setting.in(config);
    return group.GetReflection()->GetEnum(group, setting.field)->index() == 0;
  }
  return text.empty() || text == "0" || text == "false";
}

// Returns whether the user's flag switches it off. `save` has a default, which follows from others.
bool IsSwitchedOffByFlag(const Origins& origins, const TrainConfig& config, const Setting& off) {
  if (IsByFlag(origins, off.name())) return true;
  if (off.name() != "save" || origins.contains("save")) return false;
  for (const char* const name : {"save_interval", "run_dir", "enable_save_ckpt"}) {
    if (IsByFlag(origins, name) && IsOffItself(config, Find(name))) return true;
  }
  return false;
}

// Finds what makes settings of a config off.
class Needs {
 public:
  Needs(const Origins& origins, const TrainConfig& config) : origins_(origins), config_(config) {}

  // Returns the setting that this one needs and that is off. The result has no field if there is
  // none. If one of several settings would suffice, prefers one that was switched off.
  Setting Missing(const Setting& setting) const {
    const std::string& needs = setting.field->options().GetExtension(tessera::needs);
    for (const absl::string_view need : absl::StrSplit(needs, ',', absl::SkipEmpty())) {
      Setting missing = {};
      bool any = false;
      for (const absl::string_view choice : absl::StrSplit(need, '|')) {
        const std::pair<std::string, std::string> parts =
            absl::StrSplit(choice, absl::MaxSplits('=', 1));
        const Setting off = BecauseOf(Find(parts.first), parts.second);
        if (off.field == nullptr) {
          any = true;
        } else if (missing.field == nullptr || (!IsSwitchedOff(missing) && IsSwitchedOff(off))) {
          missing = off;
        }
      }
      if (!any) return missing;
    }
    return {};
  }

 private:
  // Returns the setting that makes this one off: itself, or one that it needs, directly or not. The
  // result has no field if the setting is on. With a value, a setting with another one is off.
  Setting BecauseOf(const Setting& setting, const std::string& value) const {
    const bool off = value.empty() ? IsOffItself(config_, setting)
                                   : FieldText(setting.in(config_), *setting.field) != value;
    return off ? setting : Missing(setting);
  }

  bool IsSwitchedOff(const Setting& off) const {
    return off.name() == kMasterSwitch || IsSwitchedOffByFlag(origins_, config_, off);
  }

  const Origins& origins_;
  const TrainConfig& config_;
};

// ckpt_step=0 and consumed_samples=0 are numbers like others.
bool CountsAsGiven(const FieldDescriptor& field) {
  return field.name() == "ckpt_step" || field.name() == "consumed_samples";
}

// Returns whether the user has turned the setting on: it is given, and as something else than its
// default.
bool IsSet(const TrainConfig& config, const Setting& setting) {
  if (setting.field->is_repeated() ||
      setting.field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE || !setting.is_given(config)) {
    return false;
  }
  if (CountsAsGiven(*setting.field)) return true;
  const Message& group = setting.in(config);
  const Message& defaults = *google::protobuf::MessageFactory::generated_factory()->GetPrototype(
      setting.field->containing_type());
  return FieldText(group, *setting.field) != FieldText(defaults, *setting.field);
}

}  // namespace

bool IsByFlag(const Origins& origins, std::string_view setting) {
  const auto origin = origins.find(setting);
  return origin != origins.end() && origin->second.is_flag;
}

void OverrideOtherNames(const Origins& origins, TrainConfig* config) {
  for (const auto& [one, other] : kOtherNames) {
    if (IsByFlag(origins, one) == IsByFlag(origins, other)) continue;
    Find(IsByFlag(origins, one) ? other : one).Clear(config);
  }
}

void SettleDependents(const Origins& origins, TrainConfig* config, Problems& problems) {
  // What is missing is judged by the settings as they were given.
  const TrainConfig given = *config;
  const Needs needs(origins, given);
  for (const Setting& setting : AllSettings(*TrainConfig::descriptor())) {
    const Setting off = IsSet(given, setting) ? needs.Missing(setting) : Setting{};
    if (off.field == nullptr) continue;
    const bool is_flag = IsByFlag(origins, setting.name());
    if (!is_flag && setting.field->options().GetExtension(of_schedule)) continue;
    const bool goes_along = off.name() == kMasterSwitch
                                ? !is_flag || IsByFlag(origins, kMasterSwitch)
                                : !is_flag && IsSwitchedOffByFlag(origins, given, off);
    if (goes_along) {
      setting.Clear(config);
    } else if (off.field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      problems.Add(setting.name(), " is set but ", off.name(), "=",
                   FieldText(off.in(given), *off.field));
    } else {
      problems.Add(setting.name(), " is set but ", off.name(), " is not");
    }
  }
}

}  // namespace tessera
