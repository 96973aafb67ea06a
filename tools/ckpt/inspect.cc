#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/units.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/saved_values.h"
#include "convert/core/value.h"
#include "layout/partition.h"
#include "nlohmann/json.hpp"
#include "operations/named_checkpoint.h"
#include "operations/summary.h"
#include "tools/ckpt/commands.h"
#include "tools/ckpt/report.h"

namespace tessera::ckpt {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> SortedKeys(const auto& map) {
  std::vector<std::string> keys;
  for (const auto& entry : map) keys.push_back(entry.first);
  std::ranges::sort(keys);
  return keys;
}

std::string OptionsText(const ParameterGroup& group) {
  std::vector<std::string> parts;
  for (const std::string& key : SortedKeys(group.options())) {
    parts.push_back(absl::StrCat(key, "=", NumberText(group.options().at(key))));
  }
  return absl::StrJoin(parts, " ");
}

std::vector<int64_t> ParametersPerGroup(const OptimizerState& optimizer) {
  std::vector<int64_t> counts(optimizer.groups_size());
  for (const OptimizerParameter& parameter : optimizer.parameters()) {
    if (parameter.group() < counts.size()) ++counts[parameter.group()];
  }
  return counts;
}

// Returns whether the bytes are lines of characters that a terminal shows as they are.
bool IsText(std::string_view bytes) {
  return std::ranges::all_of(bytes, [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); });
}

// A short text stands beside its name, one of several lines below it.
void PrintExtra(const std::string& key, const std::string& value, std::ostream& out) {
  out << "extra       " << key;
  if (!IsText(value)) {
    out << " (" << Counted(value.size(), "byte") << ")\n";
    return;
  }
  const std::vector<std::string> lines = absl::StrSplit(value, '\n', absl::SkipWhitespace());
  if (lines.size() <= 1) {
    out << ": " << (lines.empty() ? "" : lines[0]) << "\n";
    return;
  }
  out << "\n";
  for (const std::string& line : lines) out << "  " << line << "\n";
}

// A run starts with the highest loss there is. `best_loss` is of evaluations.
std::string BestLossText(const TrainerState& trainer) {
  const double loss = trainer.best_loss();
  const auto of_training = trainer.extra().find("best_training_loss");
  double training = 0;
  return absl::StrCat(
      std::isinf(loss) && loss > 0 ? "best loss: none yet" : "best " + NumberText(loss),
      of_training != trainer.extra().end() && absl::SimpleAtod(of_training->second, &training)
          ? ", best of training " + NumberText(training)
          : "");
}

// Long lists are cut short.
std::string ValueText(const convert::SavedValue& value) {
  constexpr size_t kMaxShown = 8, kMaxTextBytes = 2000;
  const auto* const list = value.As<convert::SavedValue::List>();
  if (list != nullptr && list->items.size() > kMaxShown) {
    convert::SavedValue::List first;
    first.items.assign(list->items.begin(), list->items.begin() + kMaxShown);
    std::string text = convert::ValueToPlainJson({std::move(first)}).dump();
    text.pop_back();
    return absl::StrCat(text, ",and ", list->items.size() - kMaxShown, " more]");
  }
  std::string text = convert::ValueToPlainJson(value).dump();
  if (text.size() > kMaxTextBytes) {
    text = absl::StrCat(absl::CHexEscape(text.substr(0, kMaxTextBytes)), "...");
  }
  return text;
}

void PrintValues(const convert::SavedValue& state, std::ostream& out) {
  constexpr size_t kMaxShown = 100;
  const auto values = convert::ValuesByName(state);
  size_t shown = 0;
  for (const auto& [name, value] : values) {
    if (shown++ == kMaxShown) break;
    out << "value       " << absl::CHexEscape(name) << ": " << ValueText(*value) << "\n";
  }
  if (values.size() > kMaxShown) {
    out << "value       and " << values.size() - kMaxShown << " more, which --json shows\n";
  }
}

// Prints the facts in the files of another framework.
void PrintForeign(const NamedCheckpoint& named, const Manifest& manifest, std::ostream& out) {
  out << "format      " << named.format << " (" << manifest.producer().program() << ")\n";
  if (convert::TellsStep(manifest)) out << "step        " << manifest.trainer().step() << "\n";
  if (manifest.trainer().has_data()) {
    out << "data        " << Counted(manifest.trainer().data().consumed_samples(), "sample")
        << " consumed\n";
  }
  PrintValues(named.state, out);
  for (const std::string& note : named.notes) out << "note        " << note << "\n";
}

void PrintTrainer(const Manifest& manifest, std::ostream& out) {
  const TrainerState& trainer = manifest.trainer();
  const DataState& data = trainer.data();
  out << "step        " << trainer.step() << "\n";
  out << "format      " << manifest.format_major() << "." << manifest.format_minor()
      << ", written by " << manifest.producer().program()
      << (manifest.producer().version().empty() ? "" : " ") << manifest.producer().version()
      << " at " << TimeText(manifest.producer().created_unix_ms()) << "\n";
  out << "topology    " << TopologyText(manifest.topology()) << "\n";
  if (trainer.last_loss() != 0 || trainer.best_loss() != 0) {
    out << "losses      last " << NumberText(trainer.last_loss()) << ", " << BestLossText(trainer)
        << "\n";
  }
  if (trainer.has_data()) {
    out << "data        " << Counted(data.consumed_samples(), "sample") << " consumed, epoch "
        << data.epoch() << ", sequence length " << data.sequence_length() << ", "
        << Counted(data.samples_per_epoch(), "sample") << " per epoch\n";
  }
  if (trainer.has_schedule()) {
    out << "schedule    " << trainer.schedule().name() << ", learning rate "
        << NumberText(trainer.schedule().learning_rate()) << "\n";
  }
  if (trainer.has_rng()) {
    out << "random      " << trainer.rng().algorithm() << ", seed " << trainer.rng().seed() << "\n";
  }
  if (trainer.has_numerics()) {
    out << "numerics    loops " << trainer.numerics().instruction_set() << ", products "
        << trainer.numerics().library() << "\n";
  }
  for (const std::string& key : SortedKeys(trainer.extra())) {
    if (!convert::IsValuesEntry(key)) PrintExtra(key, trainer.extra().at(key), out);
  }
  PrintValues(convert::StateOf(manifest).root, out);
}

void PrintModel(const Manifest& manifest, std::ostream& out) {
  if (!manifest.model().architecture().empty()) {
    out << "model       " << manifest.model().architecture() << "\n";
  }
  for (const absl::string_view line :
       absl::StrSplit(manifest.model().text(), '\n', absl::SkipWhitespace())) {
    out << "  " << line << "\n";
  }
  const OptimizerState& optimizer = manifest.optimizer();
  if (optimizer.parameters_size() == 0) return;
  out << "optimizer   " << optimizer.algorithm() << ", "
      << Counted(optimizer.parameters_size(), "parameter") << "\n";
  const std::vector<int64_t> counts = ParametersPerGroup(optimizer);
  for (int g = 0; g < optimizer.groups_size(); ++g) {
    out << "  group " << g << "   " << Counted(counts[g], "parameter") << ", "
        << OptionsText(optimizer.groups(g)) << "\n";
  }
}

// Prints all that precedes the tensors.
void PrintHead(const NamedCheckpoint& named, std::ostream& out) {
  const Manifest& manifest = named.opened->manifest();
  out << "checkpoint  " << named.Describe() << "\n";
  if (named.format.empty()) {
    PrintTrainer(manifest, out);
  } else {
    PrintForeign(named, manifest, out);
  }
  PrintModel(manifest, out);
}

void PrintContents(const NamedCheckpoint& named, std::ostream& out) {
  PrintHead(named, out);
  const Manifest& manifest = named.opened->manifest();
  Table tensors({{"name"},
                 {"role"},
                 {"dtype"},
                 {"shape"},
                 {"shards", Table::Align::kRight},
                 {"bytes", Table::Align::kRight}});
  std::map<std::string, uint64_t> bytes_of_role;
  for (const LogicalTensor& tensor : manifest.tensors()) {
    const bool alias = !tensor.alias_of().empty();
    const uint64_t bytes = alias ? 0 : TensorBytes(tensor);
    bytes_of_role[RoleProto_Name(tensor.role())] += bytes;
    tensors.AddRow({tensor.name(), RoleProto_Name(tensor.role()), DTypeProto_Name(tensor.dtype()),
                    ShapeToString(GlobalShape(tensor)), absl::StrCat(ShardCount(tensor)),
                    alias ? "= " + tensor.alias_of() : absl::StrCat(bytes)});
  }
  out << "\n" << tensors.ToString() << "\n";
  for (const auto& [role, bytes] : bytes_of_role)
    out << "  " << role << " " << HumanBytes(bytes) << "\n";
  if (!named.format.empty()) return;  // each tensor is a file there
  Table files({{"file"}, {"bytes", Table::Align::kRight}, {"checksums", Table::Align::kRight}});
  for (const DataFile& file : manifest.files()) {
    files.AddRow(
        {file.path(), absl::StrCat(file.size_bytes()), absl::StrCat(file.chunk_crc32c_size())});
  }
  out << "\n" << files.ToString();
}

// JSON has no infinities; they are written as in protobuf's JSON.
Json Number(double value) {
  if (value - value == 0) return value;
  return NumberText(value) == "nan" ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

Json OptimizerJson(const OptimizerState& optimizer) {
  Json json = {{"algorithm", optimizer.algorithm()}, {"groups", Json::array()}};
  const std::vector<int64_t> counts = ParametersPerGroup(optimizer);
  for (int g = 0; g < optimizer.groups_size(); ++g) {
    Json group = {{"parameters", counts[g]}};
    for (const std::string& key : SortedKeys(optimizer.groups(g).options())) {
      group[key] = Number(optimizer.groups(g).options().at(key));
    }
    json["groups"].push_back(std::move(group));
  }
  return json;
}

// Returns the model's whole configuration. A foreign trainer's may be JSON; what is neither that
// nor plain fields of protobuf's text format, one a line, stays text.
Json ModelJson(const ModelProto& model) {
  const auto parse = [](absl::string_view text) {
    return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  };
  if (Json json = parse(model.text()); json.is_object()) return json;
  Json json = Json::object();
  for (const absl::string_view line : absl::StrSplit(model.text(), '\n', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(line, absl::MaxSplits(": ", 1));
    if (field.second.empty() || field.first.find(' ') != absl::string_view::npos) {
      return model.text();
    }
    const Json value = parse(field.second);
    json[std::string(field.first)] = value.is_discarded() ? Json(std::string(field.second)) : value;
  }
  return json;
}

// Returns text as text, other bytes as their number.
Json ExtraJson(const TrainerState& trainer) {
  Json json = Json::object();
  for (const std::string& key : SortedKeys(trainer.extra())) {
    const std::string& value = trainer.extra().at(key);
    json[key] = IsText(value) ? Json(value) : Json{{"bytes", value.size()}};
  }
  return json;
}

Json PartitionJson(const PartitionProto& proto) {
  const Partition partition = FromProto(proto);
  Json json = Json::object();
  if (partition.dim >= 0) json["dim"] = partition.dim;
  if (partition.sections > 1) json["sections"] = partition.sections;
  if (partition.padded) json["padded"] = true;
  if (partition.place.layer >= 0) json["layer"] = partition.place.layer;
  if (partition.place.before_layers) json["before_layers"] = true;
  if (partition.place.after_layers) json["after_layers"] = true;
  return json;
}

Json ContentsToJson(const NamedCheckpoint& named) {
  const Manifest& manifest = named.opened->manifest();
  const TrainerState& trainer = manifest.trainer();
  const bool is_ours = named.format.empty();
  const int64_t created = manifest.producer().created_unix_ms();
  Json json = {
      {"checkpoint", named.Describe()},
      {"step", KnownOrNull(is_ours || convert::TellsStep(manifest), trainer.step())},
      {"format", is_ours ? absl::StrCat(manifest.format_major(), ".", manifest.format_minor())
                         : named.format},
      {"program", manifest.producer().program()},
      {"created_unix_ms", KnownOrNull(created != 0, created)},
      {"topology", TopologyText(manifest.topology())},
      {"model", manifest.model().architecture()},
      {"model_config", ModelJson(manifest.model())},
      {"last_loss", Number(trainer.last_loss())},
      {"best_loss", Number(trainer.best_loss())},
      {"learning_rate", Number(trainer.schedule().learning_rate())},
      {"consumed_samples", KnownOrNull(trainer.has_data(), trainer.data().consumed_samples())},
      {"epoch", KnownOrNull(trainer.has_data(), trainer.data().epoch())},
      {"seed", KnownOrNull(trainer.has_rng(), trainer.rng().seed())},
      {"extra", ExtraJson(trainer)},
      {"optimizer", OptimizerJson(manifest.optimizer())},
      {"tensors", Json::array()},
      {"files", Json::array()},
  };
  for (const LogicalTensor& tensor : manifest.tensors()) {
    Json entry = {{"name", tensor.name()},
                  {"role", RoleProto_Name(tensor.role())},
                  {"dtype", DTypeProto_Name(tensor.dtype())},
                  {"shape", GlobalShape(tensor)},
                  {"shards", ShardCount(tensor)},
                  {"bytes", tensor.alias_of().empty() ? TensorBytes(tensor) : 0}};
    if (!tensor.alias_of().empty()) entry["alias_of"] = tensor.alias_of();
    if (tensor.has_partition()) entry["partition"] = PartitionJson(tensor.partition());
    if (tensor.alias_of().empty()) entry["digest"] = DigestText(tensor.digest());
    json["tensors"].push_back(std::move(entry));
  }
  if (!named.format.empty()) {
    json["foreign_format"] = named.format;
    json["values"] = Json::object();
    for (const auto& [name, value] : convert::ValuesByName(named.state)) {
      json["values"][name] = convert::ValueToPlainJson(*value);
    }
    json["notes"] = named.notes;
    json.erase("files");
    return json;
  }
  for (const DataFile& file : manifest.files()) {
    json["files"].push_back({{"path", file.path()}, {"bytes", file.size_bytes()}});
  }
  return json;
}

}  // namespace

absl::StatusOr<int> RunInspect(const CommandOptions& options, const CommandOutput& output) {
  TESSERA_ASSIGN_OR_RETURN(const auto named, FindCheckpoint(options.paths[0], options.source));
  TESSERA_RETURN_IF_ERROR(named.opened.status());
  if (!options.html.empty()) {
    std::ostringstream head;
    PrintHead(named, head);
    return WriteInspectPage(named, head.str(), options, output);
  }
  if (options.json) {
    PrintJson(ContentsToJson(named), output.out);
  } else {
    PrintContents(named, output.out);
  }
  return kExitOk;
}

}  // namespace tessera::ckpt
