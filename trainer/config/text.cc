// Protobuf text format in and out, and the command line's own two flags.

#include "base/text.h"

#include <fcntl.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "base/file_descriptor.h"
#include "base/files.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "models/model_config.h"
#include "trainer/config/config.h"
#include "trainer/config/flags.h"

namespace tessera {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// Keeps the first error: later ones are mostly its consequences.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(std::string_view source) : source_(source) {}
  void AddError(int line, int column, const std::string& message) override {
    if (!text_.empty()) return;
    text_ = absl::StrCat(View(source_), ":", line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  const std::string_view source_;
  std::string text_;
};

// Returns the fields of all groups that have other names, by each of their names.
std::map<std::string, std::string, std::less<>> NamesWithAliases() {
  std::map<std::string, std::string, std::less<>> names;
  for (const Setting& setting : AllSettings(*TrainConfig::descriptor())) {
    for (const std::string& alias : Aliases(*setting.field)) {
      names[setting.name()] = names[alias] = setting.name();
    }
  }
  return names;
}

bool IsNameByte(char byte) { return absl::ascii_isalnum(byte) || byte == '_'; }

// Returns the text with fields under their own names: "checkpoint_every: 50" becomes
// "save_interval: 50". A message field may have the other name of a scalar one: what follows the
// colon tells them apart. Lines stay where they are. InvalidArgument for a field under two names.
absl::StatusOr<std::string> WithoutAliases(std::string_view text, std::string_view source) {
  static const auto& names = *new auto(NamesWithAliases());
  std::string result;
  std::map<std::string, std::string> used;  // by the field's own name
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    if (text[i] == '#') {
      end = std::min(text.find('\n', i), text.size());
    } else if (text[i] == '"' || text[i] == '\'') {
      while (end < text.size() && text[end] != text[i] && text[end] != '\n') {
        end += text[end] == '\\' ? 2 : 1;
      }
      end = std::min(end + 1, text.size());
    } else if (IsNameByte(text[i])) {
      while (end < text.size() && IsNameByte(text[end])) ++end;
    }
    std::string word(text.substr(i, end - i));
    const size_t colon = std::min(text.find_first_not_of(" \t", end), text.size());
    const bool has_value = colon < text.size() && text[colon] == ':' && colon + 1 < text.size();
    const size_t value =
        has_value ? text.find_first_not_of(" \t\r\n", colon + 1) : std::string_view::npos;
    const auto name = names.find(word);
    if (name != names.end() && value != text.npos && text[value] != '{' && text[value] != '<') {
      const auto [other, is_new] = used.emplace(name->second, word);
      if (!is_new && other->second != word) {
        return absl::InvalidArgumentError(absl::StrCat(View(source), ": ", other->second, " and ",
                                                       word,
                                                       " are two names of one setting: give one"));
      }
      word = name->second;
    }
    result += word;
    i = end;
  }
  return result;
}

std::string Quoted(const std::string& value) {
  if (value.find_first_of(" \t\"'") == std::string::npos) return value;
  return absl::StrCat("\"", value, "\"");
}

// One line of "name=value", or nothing where every value is the default.
std::string GroupDifferences(const std::string& name, const Message& group,
                             const Message& defaults) {
  std::string line;
  for (int f = 0; f < group.GetDescriptor()->field_count(); ++f) {
    const FieldDescriptor& field = *group.GetDescriptor()->field(f);
    if (!group.GetReflection()->HasField(group, &field)) continue;
    if (FieldText(group, field) == FieldText(defaults, field)) continue;
    absl::StrAppend(&line, line.empty() ? absl::StrCat(name, ":") : "", " ", field.name(), "=",
                    Quoted(FieldText(group, field)));
  }
  if (!line.empty()) line += "\n";
  return line;
}

// Adds the line of every field of a group.
void AddOrigins(const google::protobuf::TextFormat::ParseInfoTree& places, std::string_view source,
                Origins& origins) {
  for (int g = 0; g < TrainConfig::descriptor()->field_count(); ++g) {
    const FieldDescriptor* const group = TrainConfig::descriptor()->field(g);
    const auto* const fields = places.GetTreeForNested(group, -1);
    if (fields == nullptr) continue;
    for (int f = 0; f < group->message_type()->field_count(); ++f) {
      const FieldDescriptor* const field = group->message_type()->field(f);
      const int line = fields->GetLocation(field, field->is_repeated() ? 0 : -1).line;
      if (line >= 0) origins[field->name()] = {.text = absl::StrCat(View(source), ":", line + 1)};
    }
  }
}

// Returns the model with all defaults that its own choices (its size, or its extents without a
// name) leave; the choices themselves are not set, so that they are always shown.
ModelConfig UsualModel(const ModelConfig& model) {
  ModelConfig choices;
  if (model.size().empty()) {
    choices.set_architecture(model.architecture());
    choices.set_other_architecture(model.other_architecture());
    choices.set_num_layers(model.num_layers());
    choices.set_hidden_size(model.hidden_size());
    choices.set_num_attention_heads(model.num_attention_heads());
    choices.set_max_position_embeddings(model.max_position_embeddings());
    choices.set_vocab_size(model.vocab_size());
  } else {
    choices.set_size(model.size());
  }
  absl::StatusOr<ModelConfig> usual = ResolveModelConfig(choices);
  if (!usual.ok()) return ModelConfig();
  std::vector<const FieldDescriptor*> chosen;
  choices.GetReflection()->ListFields(choices, &chosen);
  for (const FieldDescriptor* field : chosen) usual->GetReflection()->ClearField(&*usual, field);
  return *std::move(usual);
}

constexpr char kUsage[] =
    "Trains GPT-2 and Llama-3. Every setting is a field of a config file (protobuf text format)\n"
    "and a flag that overrides it: --num-layers 12, --num_layers=12, --bf16, --bf16=false.\n"
    "Names are Megatron-LM's. [] holds the default.\n"
    "  --config FILE    the config file\n"
    "  --help=GROUP     one group of this text\n"
    "  --dry-run        say what the run would be, and do nothing\n";

absl::StatusOr<std::string> Help(std::string_view group) {
  std::string text = group.empty() ? kUsage : "";
  TESSERA_RETURN_IF_ERROR(FlagHelp(TrainConfig::default_instance(), group, &text));
  return text;
}

}  // namespace

absl::StatusOr<TrainConfig> ParseConfig(std::string_view text, std::string_view source,
                                        Origins* origins) {
  TrainConfig config;
  TESSERA_ASSIGN_OR_RETURN(const std::string with_names, WithoutAliases(text, source));
  FirstError error(source);
  google::protobuf::TextFormat::ParseInfoTree places;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.WriteLocationsTo(&places);
  if (!parser.ParseFromString(with_names, &config)) return absl::InvalidArgumentError(error.text());
  if (origins != nullptr) AddOrigins(places, source, *origins);
  return config;
}

absl::StatusOr<TrainConfig> LoadConfig(const std::string& path, Origins* origins) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxConfigBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("the config file: ", text.status().message()));
  }
  return ParseConfig(*text, path, origins);
}

absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv) {
  CommandLine line;
  std::string config_path;
  std::vector<std::string> flags;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help" || argument == "-h" || absl::StartsWith(argument, "--help=")) {
      TESSERA_ASSIGN_OR_RETURN(line.help, Help(argument.size() > 7 ? argument.substr(7) : ""));
      return line;
    }
    const bool separate = argument == "--config";
    if (!separate && !absl::StartsWith(argument, "--config=")) {
      flags.push_back(argument);
      continue;
    }
    if (!config_path.empty()) return absl::InvalidArgumentError("--config is given twice");
    if (separate && i + 1 < argc) config_path = argv[++i];
    if (!separate) config_path = argument.substr(9);
    if (config_path.empty()) return absl::InvalidArgumentError("--config needs a value: a file");
  }
  if (!config_path.empty()) {
    TESSERA_ASSIGN_OR_RETURN(line.config, LoadConfig(config_path, &line.origins));
  }
  std::map<std::string, std::string> given;
  TESSERA_RETURN_IF_ERROR(ApplyFlags(flags, &line.config, &given));
  for (auto& [name, text] : given) line.origins[name] = {.is_flag = true, .text = std::move(text)};
  return line;
}

std::string ConfigText(const TrainConfig& config) {
  std::string text;
  google::protobuf::TextFormat::Printer printer;
  printer.PrintToString(config, &text);
  return text;
}

std::string ConfigDifferences(const TrainConfig& config) {
  const ModelConfig usual_model = UsualModel(config.model());
  std::string text;
  const Message& defaults = TrainConfig::default_instance();
  for (int g = 0; g < config.GetDescriptor()->field_count(); ++g) {
    const FieldDescriptor* group = config.GetDescriptor()->field(g);
    if (!config.GetReflection()->HasField(config, group)) continue;
    const Message& base = group->message_type() == ModelConfig::descriptor()
                              ? usual_model
                              : defaults.GetReflection()->GetMessage(defaults, group);
    text +=
        GroupDifferences(group->name(), config.GetReflection()->GetMessage(config, group), base);
  }
  return text;
}

absl::Status WriteConfig(const TrainConfig& config, const std::string& run_dir) {
  if (const absl::Status made = MakeDirectories(AT_FDCWD, run_dir); !made.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("run_dir=", run_dir, ": cannot create the folder: ", made.message()));
  }
  return ReplaceFile(absl::StrCat(run_dir, "/config.textproto"), ConfigText(config));
}

}  // namespace tessera
