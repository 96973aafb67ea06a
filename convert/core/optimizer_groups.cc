#include "convert/core/optimizer_groups.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kGroups = "param_groups.";

// Integers of a list; nullopt unless it holds nothing else.
std::optional<std::vector<int64_t>> Integers(const SavedValue& value) {
  const auto* const list = value.As<SavedValue::List>();
  if (list == nullptr) return std::nullopt;
  std::vector<int64_t> integers;
  for (const SavedValue& item : list->items) {
    if (item.As<int64_t>() == nullptr) return std::nullopt;
    integers.push_back(*item.As<int64_t>());
  }
  return integers;
}

std::vector<std::string> Texts(const SavedValue& value) {
  std::vector<std::string> texts;
  const auto* const list = value.As<SavedValue::List>();
  for (size_t i = 0; list != nullptr && i < list->items.size(); ++i) {
    const auto* const text = list->items[i].As<std::string>();
    texts.push_back(text == nullptr ? "" : *text);
  }
  return texts;
}

std::optional<double> NumberOf(const SavedValue& value) {
  if (const auto* number = value.As<double>()) return *number;
  if (const auto* integer = value.As<int64_t>()) return static_cast<double>(*integer);
  return std::nullopt;
}

// The settings that are numbers, by the names that manifests have.
ParameterGroup Options(const SavedValue::Dict& settings) {
  ParameterGroup group;
  auto& options = *group.mutable_options();
  for (size_t i = 0; i < settings.size(); ++i) {
    const std::string& name = *settings.key(i).As<std::string>();
    const SavedValue& value = settings.value(i);
    if (const auto number = NumberOf(value)) {
      options[name == "eps" ? "epsilon" : name == "lr" ? "learning_rate" : name] = *number;
    } else if (const auto* betas = value.As<SavedValue::List>();
               name == "betas" && betas != nullptr && betas->is_tuple && betas->items.size() == 2) {
      const auto first = NumberOf(betas->items[0]), second = NumberOf(betas->items[1]);
      if (first && second) options["beta1"] = *first, options["beta2"] = *second;
    }
  }
  return group;
}

// Groups, and the group of each parameter.
struct Found {
  std::vector<SavedValue::Dict> groups;
  std::map<std::string, size_t> of;
};

Found FindNumbered(const SavedValue& state, const std::string& prefix,
                   const std::function<std::string(const std::string&)>& foreign_name) {
  Found found;
  for (auto& [number, group] : FindTorchGroups(state, prefix)) {
    for (size_t i = 0; i < group.numbers.size(); ++i) {
      const std::string name = foreign_name(absl::StrCat(group.numbers[i]));
      if (!name.empty()) found.of[name] = found.groups.size();
    }
    found.groups.push_back(group.settings);
  }
  return found;
}

Found FindByName(const SavedValue& state, const std::string& prefix,
                 const std::function<std::string(const std::string&)>& foreign_name) {
  std::vector<std::string> names;  // in the order of the state dict
  std::map<std::string, SavedValue::Dict> settings;
  const std::string groups = prefix + std::string(kGroups);
  for (const Leaf& leaf : LeavesOf(state)) {
    if (!leaf.name.starts_with(groups) || leaf.value->As<SavedValue::Tensor>() != nullptr) continue;
    const size_t dot = leaf.name.rfind('.');
    if (dot < groups.size()) continue;
    const std::string name = foreign_name(leaf.name.substr(groups.size(), dot - groups.size()));
    if (name.empty()) continue;
    const auto [at, is_new] = settings.try_emplace(name);
    if (is_new) names.push_back(name);
    at->second.Add({leaf.name.substr(dot + 1)}, *leaf.value);
  }
  Found found;
  for (const std::string& name : names) {
    const auto group = std::ranges::find(found.groups, settings[name]);
    found.of[name] = group - found.groups.begin();
    if (group == found.groups.end()) found.groups.push_back(std::move(settings[name]));
  }
  return found;
}

}  // namespace

TorchGroups FindTorchGroups(const SavedValue& state, const std::string& prefix) {
  TorchGroups groups;
  const std::string begin = prefix + std::string(kGroups);
  for (const auto& [name, value] : ValuesByName(state)) {
    if (!name.starts_with(begin)) continue;
    const size_t dot = name.find('.', begin.size());
    int64_t number = 0;
    if (dot == name.npos ||
        !absl::SimpleAtoi(name.substr(begin.size(), dot - begin.size()), &number)) {
      continue;
    }
    TorchGroup& group = groups[number];
    const std::string key = name.substr(dot + 1);
    if (key == "params") {
      if (auto numbers = Integers(*value)) group.numbers = *std::move(numbers);
    } else if (key == "param_names") {
      group.names = Texts(*value);
    } else {
      group.settings.Add({key}, *value);
    }
  }
  return groups;
}

void TakeSettings(const std::string& prefix,
                  const std::function<std::string(const std::string&)>& foreign_name,
                  std::string_view framework, ForeignCheckpoint& checkpoint) {
  OptimizerState& optimizer = *checkpoint.description.mutable_optimizer();
  const auto group_of = [&](const OptimizerParameter& parameter, const Found& found) {
    const auto name = parameter.foreign_names().find(std::string(framework));
    const auto at =
        name == parameter.foreign_names().end() ? found.of.end() : found.of.find(name->second);
    return at == found.of.end() ? std::optional<size_t>() : at->second;
  };
  const auto is_complete = [&](const Found& found) {
    return std::ranges::all_of(optimizer.parameters(), [&](const OptimizerParameter& parameter) {
      return group_of(parameter, found).has_value();
    });
  };
  Found found = FindNumbered(checkpoint.state, prefix, foreign_name);
  if (!is_complete(found)) found = FindByName(checkpoint.state, prefix, foreign_name);
  if (!is_complete(found)) return;
  optimizer.clear_groups();
  for (const SavedValue::Dict& group : found.groups) *optimizer.add_groups() = Options(group);
  for (OptimizerParameter& parameter : *optimizer.mutable_parameters()) {
    parameter.set_group(static_cast<uint32_t>(*group_of(parameter, found)));
  }
  const std::string groups = prefix + std::string(kGroups);
  Prune(checkpoint.state,
        [&](const std::string& name, const SavedValue&) { return !name.starts_with(groups); });
  SavedValue::List list;
  for (SavedValue::Dict& group : found.groups) list.items.push_back({std::move(group)});
  SavedValue::Dict settings, root;
  settings.Add({std::string("param_groups")}, {std::move(list)});
  root.Add({std::string("optimizer")}, {std::move(settings)});
  MergeInto({std::move(root)}, checkpoint.state);
}

}  // namespace tessera::ckpt::convert
