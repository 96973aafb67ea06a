#include "trainer/config/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/flag_options.pb.h"
#include "base/text.h"
#include "google/protobuf/descriptor.h"

namespace tessera {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::EnumDescriptor;
using ::google::protobuf::EnumValueDescriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;

constexpr size_t kHelpColumns = 100;
constexpr size_t kHelpIndent = 36;

bool IsGroup(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field.is_repeated();
}

bool IsScalar(const FieldDescriptor& field) {
  return field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE && !field.is_repeated();
}

std::string FlagName(const std::string& name) {
  return absl::StrCat("--", absl::StrReplaceAll(name, {{"_", "-"}}));
}
std::string FlagName(const FieldDescriptor& field) { return FlagName(field.name()); }

bool IsCalled(const FieldDescriptor& field, const std::string& name) {
  const std::vector<std::string> others = Aliases(field);
  return field.name() == name || std::find(others.begin(), others.end(), name) != others.end();
}

// The zero value "unspecified", which proto3 requires, cannot be given.
bool IsUnspecified(const EnumValueDescriptor& value) {
  return value.number() == 0 && absl::EndsWith(value.name(), "_UNSPECIFIED");
}

std::string EnumChoices(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (!IsUnspecified(*type.value(i))) {
      names.push_back(absl::AsciiStrToLower(type.value(i)->name()));
    }
  }
  return absl::StrJoin(names, "|");
}

// Returns the name of a field's values in help and in error messages.
std::string ValueKind(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true|false";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "number";
    case FieldDescriptor::CPPTYPE_STRING:
      return "text";
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumChoices(*field.enum_type());
    default:
      return "integer";
  }
}

// Returns what an error expects as a field's value.
std::string ExpectedValue(const FieldDescriptor& field) {
  const std::string kind = ValueKind(field);
  return kind == "number" ? "a number" : kind == "integer" ? "an integer" : kind;
}

// Flags of other trainers whose meaning has another form here.
struct ForeignFlag {
  std::string_view name, here;
};
constexpr ForeignFlag kForeignFlags[] = {
    // Megatron-LM's
    {"overlap_grad_reduce", "no flag: the backward pass always overlaps the reduction"},
    {"overlap_param_gather", "no flag: weights are gathered at the end of a step"},
    {"dist_ckpt_strictness", "--allow-missing and --allow-unexpected"},
    {"pretrained_checkpoint", "--load with --finetune"},
    {"exit_signal", "--exit-signal-handler, for SIGTERM, SIGINT, SIGUSR1 and SIGHUP"},
    {"ckpt_convert_format", "a command of its own, ckpt convert"},
    {"verify_integrity", "no flag: a load verifies every checksum; --verify-load, digests, too"},
    // Lightning's
    {"save_last", "no flag: the newest checkpoint is always kept, and a restart resumes from it"},
    // torchtitan's
    {"initial_load_path", "--load with --finetune, which count while --save has no checkpoint"},
    {"initial_load_in_hf", "no flag: --load recognises the format; --load-format states it"},
    {"exclude_from_loading", "--load-content, which names the parts that are loaded"},
    // transformers'
    {"learning_rate", "--lr"},
    {"max_steps", "--train-iters"},
    {"warmup_steps", "--lr-warmup-iters"},
    {"per_device_train_batch_size", "--micro-batch-size"},
    {"gradient_accumulation_steps", "--global-batch-size, the sequences of a whole step"},
    {"num_train_epochs", "--train-iters, the steps of the run"}};

absl::Status UnknownFlag(const std::string& argument, const std::string& name,
                         const std::vector<Setting>& flags) {
  const std::string shown = argument.substr(0, argument.find('='));
  const auto foreign = std::ranges::find(kForeignFlags, name, &ForeignFlag::name);
  if (foreign != std::end(kForeignFlags)) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown flag ", shown, "; here it is ", View(foreign->here)));
  }
  std::vector<std::string> known = {"config", "help"};
  for (const Setting& flag : flags) {
    known.push_back(flag.field->name());
    for (std::string& alias : Aliases(*flag.field)) known.push_back(std::move(alias));
  }
  std::string nearest;
  int best = std::max<int>(2, static_cast<int>(name.size()) / 3) + 1;
  // Any name would be similar to one of no more letters than the allowed distance.
  if (name.size() < 3) best = 2;
  for (const std::string& candidate : known) {
    const int distance = TypingDistance(name, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  if (nearest.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unknown flag ", shown, "; see --help"));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown flag ", shown, "; did you mean --",
                                                 absl::StrReplaceAll(nearest, {{"_", "-"}}), "?"));
}

std::optional<int64_t> ParseInteger(const std::string& value) {
  int64_t number;
  if (!absl::SimpleAtoi(value, &number)) return std::nullopt;
  return number;
}

std::optional<double> ParseNumber(const std::string& value) {
  double number;
  if (!absl::SimpleAtod(value, &number) || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::optional<bool> ParseBool(const std::string& value) {
  if (absl::EqualsIgnoreCase(value, "true") || value == "1") return true;
  if (absl::EqualsIgnoreCase(value, "false") || value == "0") return false;
  return std::nullopt;
}

const EnumValueDescriptor* ParseEnum(const EnumDescriptor& type, const std::string& value) {
  for (int i = 0; i < type.value_count(); ++i) {
    if (!IsUnspecified(*type.value(i)) && absl::EqualsIgnoreCase(type.value(i)->name(), value)) {
      return type.value(i);
    }
  }
  return nullptr;
}

std::string ShortestNumber(double value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  // "3e-4" as usually written, not "3e-04".
  return absl::StrReplaceAll(std::string(buffer, result.ptr), {{"e-0", "e-"}, {"e+0", "e"}});
}

// Returns the placeholder for the value in help.
std::string Placeholder(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return " X";
    case FieldDescriptor::CPPTYPE_STRING:
      return " TEXT";
    case FieldDescriptor::CPPTYPE_ENUM:
      return " NAME";
    default:
      return " N";
  }
}

// Appends `text` to `lines`; continuation lines are indented to its beginning.
void AppendWrapped(std::string_view text, size_t indent, std::string* lines) {
  size_t column = lines->size();
  for (const absl::string_view word : absl::StrSplit(View(text), ' ')) {
    if (column + 1 + word.size() > kHelpColumns) {
      absl::StrAppend(lines, "\n", std::string(indent, ' '));
      column = indent;
    }
    absl::StrAppend(lines, " ", word);
    column += 1 + word.size();
  }
}

std::string HelpLine(const FieldDescriptor& field) {
  std::string line = absl::StrCat("  ", FlagName(field), Placeholder(field), " ");
  line.resize(std::max(line.size(), kHelpIndent), ' ');
  std::string text = field.options().GetExtension(help);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    absl::StrAppend(&text, ": ", EnumChoices(*field.enum_type()));
  }
  for (const std::string& alias : Aliases(field)) {
    absl::StrAppend(&text, "; also ", FlagName(alias));
  }
  const std::string by_default = DefaultText(field);
  if (!by_default.empty() && by_default != "false") absl::StrAppend(&text, " [", by_default, "]");
  AppendWrapped(text, kHelpIndent, &line);
  return line;
}

// Returns the value of a flag that is given without "=": the next argument, unless that is a flag
// itself. nullopt if there is no such argument.
std::optional<std::string> NextValue(std::span<const std::string> arguments, size_t* index,
                                     const FieldDescriptor& field) {
  const bool more = *index + 1 < arguments.size() && !absl::StartsWith(arguments[*index + 1], "--");
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    if (more && ParseBool(arguments[*index + 1]).has_value()) return arguments[++*index];
    return "true";
  }
  if (!more) return std::nullopt;
  return arguments[++*index];
}

}  // namespace

void Setting::Clear(Message* message) const {
  Message* const owner = message->GetReflection()->MutableMessage(message, group);
  owner->GetReflection()->ClearField(owner, field);
}

bool Setting::Set(const std::string& value, Message* message) const {
  Message* const owner = message->GetReflection()->MutableMessage(message, group);
  const Reflection& reflection = *owner->GetReflection();
  const auto set = [&](auto parsed, auto setter) {
    if (parsed.has_value()) (reflection.*setter)(owner, field, *parsed);
    return parsed.has_value();
  };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return set(ParseInteger(value), &Reflection::SetInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return set(ParseNumber(value), &Reflection::SetDouble);
    case FieldDescriptor::CPPTYPE_BOOL:
      return set(ParseBool(value), &Reflection::SetBool);
    case FieldDescriptor::CPPTYPE_STRING:
      reflection.SetString(owner, field, value);
      return true;
    case FieldDescriptor::CPPTYPE_ENUM: {
      const EnumValueDescriptor* parsed = ParseEnum(*field->enum_type(), value);
      if (parsed != nullptr) reflection.SetEnum(owner, field, parsed);
      return parsed != nullptr;
    }
    default:
      return false;
  }
}

std::vector<Setting> AllSettings(const Descriptor& message) {
  std::vector<Setting> settings;
  for (int g = 0; g < message.field_count(); ++g) {
    const FieldDescriptor* group = message.field(g);
    if (!IsGroup(*group)) continue;
    for (int f = 0; f < group->message_type()->field_count(); ++f) {
      const FieldDescriptor* field = group->message_type()->field(f);
      if (IsScalar(*field)) settings.push_back({group, field});
    }
  }
  return settings;
}

absl::Status ApplyFlags(std::span<const std::string> arguments, Message* message,
                        std::map<std::string, std::string>* texts) {
  const std::vector<Setting> flags = AllSettings(*message->GetDescriptor());
  std::map<std::string, std::pair<std::string, std::string>> given;  // name, value by field
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!absl::StartsWith(argument, "--") || argument.size() == 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("unexpected argument \"", argument, "\": flags begin with --"));
    }
    const size_t equals = argument.find('=');
    const std::string name = absl::StrReplaceAll(
        argument.substr(2, equals == std::string::npos ? equals : equals - 2), {{"-", "_"}});
    const auto flag = std::find_if(flags.begin(), flags.end(),
                                   [&](const Setting& f) { return IsCalled(*f.field, name); });
    if (flag == flags.end()) return UnknownFlag(argument, name, flags);

    std::optional<std::string> value;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else {
      value = NextValue(arguments, &i, *flag->field);
    }
    if (!value.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(FlagName(*flag->field), " needs a value: ", ExpectedValue(*flag->field)));
    }
    const auto [other, is_new] = given.emplace(flag->field->name(), std::pair(name, *value));
    if (!is_new && other->second.first != name && other->second.second != *value) {
      return absl::InvalidArgumentError(
          absl::StrCat(FlagName(other->second.first), "=", other->second.second, " and ",
                       FlagName(name), "=", *value, " are two names of one setting: give one"));
    }
    other->second = {name, *value};
    if (!flag->Set(*value, message)) {
      return absl::InvalidArgumentError(absl::StrCat(FlagName(*flag->field), "=", *value,
                                                     ": expected ", ExpectedValue(*flag->field)));
    }
    if (texts != nullptr) (*texts)[flag->field->name()] = absl::StrCat(FlagName(name), "=", *value);
  }
  return absl::OkStatus();
}

absl::Status FlagHelp(const Message& message, std::string_view group, std::string* help_text) {
  const std::vector<Setting> flags = AllSettings(*message.GetDescriptor());
  std::vector<std::string> groups;
  for (const Setting& flag : flags) {
    if (groups.empty() || groups.back() != flag.group->name()) groups.push_back(flag.group->name());
  }
  if (!group.empty() && std::find(groups.begin(), groups.end(), group) == groups.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--help=", View(group), ": expected one of ", absl::StrJoin(groups, ", ")));
  }
  for (const std::string& name : groups) {
    if (!group.empty() && name != group) continue;
    absl::StrAppend(help_text, name, ":\n");
    for (const Setting& flag : flags) {
      if (flag.group->name() == name) absl::StrAppend(help_text, HelpLine(*flag.field), "\n");
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> FlagInventory(const Message& message) {
  std::vector<std::string> lines;
  for (const Setting& flag : AllSettings(*message.GetDescriptor())) {
    const std::string by_default = DefaultText(*flag.field);
    lines.push_back(absl::StrCat(flag.group->name(), " ", FlagName(*flag.field), " <",
                                 ValueKind(*flag.field), ">",
                                 by_default.empty() ? "" : absl::StrCat(" = ", by_default)));
    for (const std::string& alias : Aliases(*flag.field)) {
      absl::StrAppend(&lines.back(), ", also ", FlagName(alias));
    }
    const std::string& needed = flag.field->options().GetExtension(needs);
    if (!needed.empty()) absl::StrAppend(&lines.back(), ", needs ", needed);
  }
  return lines;
}

std::string FieldText(const Message& group, const FieldDescriptor& field) {
  const Reflection& reflection = *group.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection.GetInt64(group, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return ShortestNumber(reflection.GetDouble(group, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(group, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(group, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::AsciiStrToLower(reflection.GetEnum(group, &field)->name());
    default:
      return "";
  }
}

std::vector<std::string> Aliases(const FieldDescriptor& field) {
  return absl::StrSplit(field.options().GetExtension(aliases), ',', absl::SkipEmpty());
}

std::string DefaultText(const FieldDescriptor& field) {
  if (field.options().HasExtension(default_text)) return field.options().GetExtension(default_text);
  return FieldText(
      *google::protobuf::MessageFactory::generated_factory()->GetPrototype(field.containing_type()),
      field);
}

}  // namespace tessera
