#include "convert/core/own_keys.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/reading.h"
#include "convert/core/saved_values.h"
#include "layout/partition.h"

namespace tessera::ckpt::convert {
namespace {

// Readers of pickles keep longer texts in the file.
constexpr size_t kMaxTextBytes = size_t{1} << 19;
constexpr char kStep[] = "step", kSamples[] = "consumed_samples", kManifest[] = "manifest";

// Removes a key from a dict.
std::optional<SavedValue> Take(SavedValue& root, std::string_view key) {
  auto* const dict = root.As<SavedValue::Dict>();
  if (dict == nullptr) return std::nullopt;
  for (size_t i = 0; i < dict->size(); ++i) {
    const auto* const text = dict->key(i).As<std::string>();
    if (text == nullptr || *text != key) continue;
    SavedValue taken = std::move(dict->value(i));
    const auto at = dict->flat.begin() + static_cast<std::ptrdiff_t>(2 * i);
    dict->flat.erase(at, at + 2);
    return taken;
  }
  return std::nullopt;
}

// Returns the entries of a dict whose values are texts.
std::map<std::string, std::string> TextsOf(const std::optional<SavedValue>& value) {
  std::map<std::string, std::string> texts;
  const auto* const dict = value.has_value() ? value->As<SavedValue::Dict>() : nullptr;
  for (size_t i = 0; dict != nullptr && i < dict->size(); ++i) {
    const auto *key = dict->key(i).As<std::string>(), *text = dict->value(i).As<std::string>();
    if (key != nullptr && text != nullptr) texts[*key] = *text;
  }
  return texts;
}

void SetRoles(const std::map<std::string, std::string>& roles, ForeignCheckpoint& checkpoint) {
  for (ForeignTensor& tensor : checkpoint.tensors) {
    const auto at = roles.find(tensor.name);
    RoleProto role = ROLE_UNSPECIFIED;
    if (at == roles.end() || !RoleProto_Parse(at->second, &role)) continue;
    if (role != ROLE_UNSPECIFIED) tensor.role = FromProto(role);
  }
}

void SetNames(const std::map<std::string, std::string>& names, ForeignCheckpoint& checkpoint) {
  std::erase_if(checkpoint.tensors, [&](const ForeignTensor& tensor) {
    const auto at = names.find(tensor.name);
    return at != names.end() && at->second.empty();
  });
  for (ForeignTensor& tensor : checkpoint.tensors) {
    for (std::string* const name : {&tensor.name, &tensor.alias_of}) {  // aliases name theirs, too
      const auto at = names.find(*name);
      if (at != names.end() && !at->second.empty()) *name = at->second;
    }
  }
}

// Returns the manifest in "tessera.trainer".
std::optional<Manifest> ReadDescription(const SavedValue::Dict& trainer) {
  const SavedValue* const chunks = trainer.Find(kManifest);
  if (chunks == nullptr || chunks->As<SavedValue::List>() == nullptr) return std::nullopt;
  std::string text;
  for (const SavedValue& chunk : chunks->As<SavedValue::List>()->items) {
    if (chunk.As<std::string>() != nullptr) text += *chunk.As<std::string>();
  }
  Manifest manifest;
  google::protobuf::TextFormat::Parser parser;
  class Quiet final : public google::protobuf::io::ErrorCollector {
    void AddError(int, int, const std::string&) override {}
  } quiet;
  parser.RecordErrorsTo(&quiet);
  if (!parser.ParseFromString(text, &manifest)) return std::nullopt;
  return manifest;
}

// Sets the partitions that fit the tensors. A tensor that was described may be an alias now.
void SetPartitions(const Manifest& described, ForeignCheckpoint& checkpoint) {
  std::map<std::string, std::string> aliases;
  for (const ForeignTensor& tensor : checkpoint.tensors) {
    if (!tensor.alias_of.empty()) aliases[tensor.name] = tensor.alias_of;
  }
  std::map<std::string, Partition> partitions;
  for (const LogicalTensor& tensor : described.tensors()) {
    if (!tensor.has_partition()) continue;
    const auto at = aliases.find(tensor.name());
    partitions[at == aliases.end() ? tensor.name() : at->second] = FromProto(tensor.partition());
  }
  for (ForeignTensor& tensor : checkpoint.tensors) {
    const auto at = partitions.find(tensor.name);
    if (at == partitions.end() || !CheckPartition(at->second, tensor.shape).ok()) continue;
    tensor.partition = at->second;
  }
}

// Returns whether the optimizer's mapping names tensors that exist.
bool Fits(const OptimizerState& optimizer, const ForeignCheckpoint& checkpoint) {
  std::set<std::string> names;
  for (const ForeignTensor& tensor : checkpoint.tensors) names.insert(tensor.name);
  return std::ranges::all_of(optimizer.parameters(), [&](const OptimizerParameter& parameter) {
    return std::ranges::all_of(parameter.states(),
                               [&](const auto& state) { return names.contains(state.second); });
  });
}

void SetDescription(Manifest described, ForeignCheckpoint& checkpoint) {
  Manifest& description = checkpoint.description;
  SetPartitions(described, checkpoint);
  if (!Fits(described.optimizer(), checkpoint)) {
    checkpoint.notes.push_back(absl::StrCat("Left out: the optimizer that ", kTrainerKey,
                                            " describes, whose state is not there."));
    described.clear_optimizer();
  }
  if (described.has_model()) *description.mutable_model() = std::move(*described.mutable_model());
  if (described.has_optimizer()) {
    *description.mutable_optimizer() = std::move(*described.mutable_optimizer());
  }
  if (described.has_trainer()) {
    *description.mutable_trainer() = std::move(*described.mutable_trainer());
  }
}

// Adds the values inside a container by their names. A list that has lost its only dict is a leaf
// now, but its items were leaves when the structure was written.
void AddByName(const SavedValue& container, const std::string& name,
               std::map<std::string, const SavedValue*>& values) {
  ForEachChild<const SavedValue>(container, [&](const PathPart& part, const SavedValue& value) {
    const std::string below = absl::StrCat(name, name.empty() ? "" : ".", part.ToString());
    values.emplace(below, &value);
    AddByName(value, below, values);
  });
}

// Takes the step and the samples from beside the description: a program may have changed them.
void SetStated(const SavedValue::Dict& trainer, Manifest& description) {
  const auto count = [&](const char* key) {
    const SavedValue* const value = trainer.Find(key);
    return value == nullptr ? nullptr : value->As<int64_t>();
  };
  const auto *step = count(kStep), *samples = count(kSamples);
  if (step != nullptr && !description.has_trainer()) {
    SetProgress(*step, std::nullopt, description);
  } else if (step != nullptr) {
    description.mutable_trainer()->set_step(*step);
  }
  if (samples != nullptr && description.has_trainer()) {
    description.mutable_trainer()->mutable_data()->set_consumed_samples(*samples);
  }
}

}  // namespace

SavedValue TrainerValue(const Manifest& manifest, bool state_is_written, const SavedValue* state) {
  SavedValue::Dict trainer;
  if (TellsStep(manifest)) trainer.Add({std::string(kStep)}, {manifest.trainer().step()});
  if (manifest.trainer().has_data()) {
    trainer.Add({std::string(kSamples)}, {manifest.trainer().data().consumed_samples()});
  }
  Manifest described;
  if (manifest.has_trainer()) *described.mutable_trainer() = manifest.trainer();
  if (manifest.has_model()) *described.mutable_model() = manifest.model();
  if (manifest.has_optimizer()) *described.mutable_optimizer() = manifest.optimizer();
  if (state_is_written && manifest.has_trainer()) {
    auto& extra = *described.mutable_trainer()->mutable_extra();
    for (const char* const entry : {kValuesEntry, kStructureEntry}) extra.erase(entry);
  } else if (!state_is_written && state != nullptr) {
    SetEntries(*state, described);
  }
  for (const LogicalTensor& tensor : manifest.tensors()) {
    if (!tensor.has_partition()) continue;
    LogicalTensor& partitioned = *described.add_tensors();
    partitioned.set_name(tensor.name());
    *partitioned.mutable_partition() = tensor.partition();
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(described, &text);
  SavedValue::List chunks;
  for (size_t at = 0; at < text.size(); at += kMaxTextBytes) {
    chunks.items.push_back({text.substr(at, kMaxTextBytes)});
  }
  trainer.Add({std::string(kManifest)}, {std::move(chunks)});
  return {std::move(trainer)};
}

void TakeOwnKeys(ForeignCheckpoint& checkpoint) {
  SetRoles(TextsOf(Take(checkpoint.state, kRolesKey)), checkpoint);
  const std::optional<SavedValue> names = Take(checkpoint.state, kNamesKey);
  SetNames(TextsOf(names), checkpoint);
  const std::optional<SavedValue> structure = Take(checkpoint.state, kStructureKey);
  const std::optional<SavedValue> trainer = Take(checkpoint.state, kTrainerKey);
  // What was made of a model and its optimizer is described by the manifest.
  if (names.has_value()) checkpoint.state = {SavedValue::Dict{}};
  const auto* const text = structure.has_value() ? structure->As<std::string>() : nullptr;
  if (text != nullptr) {
    std::map<std::string, const SavedValue*> leaves;
    AddByName(checkpoint.state, "", leaves);
    std::optional<SavedValue> built = ReadStructure(
        *text, [&](const std::string& name, bool is_tensor) -> std::optional<SavedValue> {
          const auto at = leaves.find(name);
          const bool is_there =
              at != leaves.end() && is_tensor == (at->second->As<SavedValue::Tensor>() != nullptr);
          return is_there ? std::optional(*at->second) : std::nullopt;
        });
    if (built.has_value()) checkpoint.state = *std::move(built);
  }
  const auto* const dict = trainer.has_value() ? trainer->As<SavedValue::Dict>() : nullptr;
  if (dict == nullptr) return;
  if (std::optional<Manifest> described = ReadDescription(*dict)) {
    SetDescription(*std::move(described), checkpoint);
  }
  SetStated(*dict, checkpoint.description);
  if (names.has_value()) {
    Manifest manifest = checkpoint.description;
    for (const ForeignTensor& tensor : checkpoint.tensors) {
      manifest.add_tensors()->set_name(tensor.name);
    }
    checkpoint.state = StateOf(manifest).root;
  }
}

}  // namespace tessera::ckpt::convert
