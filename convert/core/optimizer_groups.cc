#include "convert/core/optimizer_groups.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "checkpoint/format/manifest_codec.h"
#include "convert/core/reading.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kGroups = "param_groups.";

// Returns the integers of a list; nullopt if it holds anything else.
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

// Returns the settings that are numbers, by their names in manifests.
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
                   const ForeignNameOf& foreign_name) {
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
                 const ForeignNameOf& foreign_name) {
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

// How many parameters each group has been given.
using Positions = std::vector<uint32_t>;

// The search ends here: no real file needs more.
constexpr size_t kMaxProgresses = size_t{1} << 18;
constexpr size_t kMaxGroups = 64;

// All ways to distribute the parameters, in their order, among the groups. They are paths through a
// graph, whose nodes are the positions in all groups after each parameter.
class ParameterAssignment {
 public:
  ParameterAssignment(std::span<const OrderedParameter> parameters,
                      std::span<const NumberedGroup> groups)
      : parameters_(parameters), groups_(groups) {
    for (const NumberedGroup& group : groups) {
      end_.push_back(static_cast<uint32_t>(group.size()));
      count_ += group.size();
    }
  }

  absl::StatusOr<std::map<int64_t, size_t>> Run() {
    if (count_ > parameters_.size()) {
      return FailedPrecondition("the optimizer has ", count_, " parameters, the model has ",
                                parameters_.size());
    }
    if (groups_.size() > kMaxGroups) return TooManyWays();
    TESSERA_RETURN_IF_ERROR(GoForward());
    return GoBack();
  }

 private:
  bool Fits(size_t parameter, size_t group, uint32_t position) const {
    const NumberedGroup& numbers = groups_[group];
    return position < numbers.size() && (!numbers[position].shape.has_value() ||
                                         *numbers[position].shape == parameters_[parameter].shape);
  }

  // Computes the positions that are reachable after each parameter.
  absl::Status GoForward() {
    reached_.assign(1, {Positions(groups_.size(), 0)});
    size_t progresses = 1;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      std::set<Positions> next;
      const size_t left = parameters_.size() - i - 1;
      for (const Positions& progress : reached_.back()) {
        size_t given = 0;
        for (const uint32_t position : progress) given += position;
        if (count_ - given <= left) next.insert(progress);
        for (size_t g = 0; g < groups_.size(); ++g) {
          if (!Fits(i, g, progress[g])) continue;
          Positions advanced = progress;
          ++advanced[g];
          next.insert(std::move(advanced));
        }
        if (progresses + next.size() > kMaxProgresses) return TooManyWays();
      }
      progresses += next.size();
      if (next.empty()) return NoneFits(i);
      reached_.push_back(std::move(next));
    }
    return absl::OkStatus();
  }

  static absl::Status TooManyWays() {
    return FailedPrecondition(
        "the optimizer's parameters can be matched with the model's in too many ways");
  }

  absl::Status NoneFits(size_t parameter) const {
    const Positions& progress = *reached_.back().begin();
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (progress[g] == groups_[g].size()) continue;
      const NumberedParameter& next = groups_[g][progress[g]];
      return FailedPrecondition(
          "the states of parameter ", next.number, " of the optimizer have shape ",
          ShapeToString(next.shape.value_or(Shape())), ", and in the order of the model ",
          parameters_[parameter].name, ", of shape ", ShapeToString(parameters_[parameter].shape),
          ", is next");
    }
    return FailedPrecondition("the optimizer's parameters do not match the model's");
  }

  // Follows the paths backwards from the node in which every group has all of its parameters.
  absl::StatusOr<std::map<int64_t, size_t>> GoBack() const {
    std::map<int64_t, size_t> assigned;
    std::set<Positions> wanted = {end_};
    for (size_t i = parameters_.size(); i-- > 0;) {
      std::set<Positions> previous;
      for (const Positions& progress : wanted) {
        if (reached_[i].contains(progress)) previous.insert(progress);
        for (size_t g = 0; g < groups_.size(); ++g) {
          if (progress[g] == 0 || !Fits(i, g, progress[g] - 1)) continue;
          Positions before = progress;
          --before[g];
          if (!reached_[i].contains(before)) continue;
          TESSERA_RETURN_IF_ERROR(Assign(groups_[g][progress[g] - 1], i, assigned));
          previous.insert(std::move(before));
        }
      }
      wanted = std::move(previous);
    }
    return assigned;
  }

  absl::Status Assign(const NumberedParameter& number, size_t parameter,
                      std::map<int64_t, size_t>& assigned) const {
    if (!number.shape.has_value()) return absl::OkStatus();
    const auto [at, is_new] = assigned.emplace(number.number, parameter);
    if (is_new || at->second == parameter) return absl::OkStatus();
    return FailedPrecondition("parameter ", number.number, " of the optimizer may be ",
                              parameters_[parameter].name, " or ", parameters_[at->second].name);
  }

  std::span<const OrderedParameter> parameters_;
  std::span<const NumberedGroup> groups_;
  Positions end_;
  size_t count_ = 0;
  std::vector<std::set<Positions>> reached_;  // after so many parameters
};

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

void OptimizerFacts::AddUpdates(std::optional<double> count) {
  const bool is_count =
      count && *count >= 0 && *count <= kMaxTrainerCount && *count == std::floor(*count);
  updates.insert(is_count ? std::optional(static_cast<int64_t>(*count)) : std::nullopt);
}

void OptimizerFacts::AddSettings(const SavedValue::Dict& settings) {
  const auto is = [&](const char* name, bool wanted) {
    const SavedValue* const value = settings.Find(name);
    const bool* const truth = value == nullptr ? nullptr : value->As<bool>();
    return truth != nullptr && *truth == wanted;
  };
  const SavedValue* const decay = settings.Find("weight_decay");
  if (is("decoupled_weight_decay", false) && decay != nullptr && NumberOf(*decay).value_or(0) != 0)
    differences.insert("its weight decay is not decoupled");
  for (const char* const name : {"amsgrad", "maximize"}) {
    if (is(name, true)) differences.insert(absl::StrCat(name, " is true"));
  }
}

void TakeFacts(const OptimizerFacts& facts, ForeignCheckpoint& checkpoint) {
  Manifest& description = checkpoint.description;
  if (!facts.differences.empty() && description.optimizer().parameters_size() > 0) {
    description.mutable_optimizer()->set_algorithm("adam");
    checkpoint.notes.push_back(
        absl::StrCat("The optimizer is not AdamW: ", absl::StrJoin(facts.differences, ", "),
                     "; a run that continues with AdamW computes other values."));
  }
  NoteLeftOut("states of the optimizer that are not AdamW's",
              {facts.other_states.begin(), facts.other_states.end()}, checkpoint.notes);
  if (facts.updates.empty()) return;
  const std::optional<int64_t> updates = *facts.updates.begin();
  if (facts.updates.size() > 1 || !updates) {
    checkpoint.notes.emplace_back(
        facts.updates.contains(std::nullopt)
            ? "Left out: the optimizer's number of updates, which is not a count."
            : "Left out: the optimizer's numbers of updates, which differ between parameters.");
  } else if (!TellsStep(description)) {
    SetProgress(*updates, std::nullopt, description);
  } else if (const int64_t step = description.trainer().step(); *updates != step) {
    auto& extra = *description.mutable_trainer()->mutable_extra();
    extra["optimizer_updates"] = absl::StrCat(*updates);
    // The steps of a run that began with an optimizer's state count anew.
    if (*updates > step) extra["earlier_updates"] = absl::StrCat(*updates - step);
  }
}

void TakeSettings(const std::string& prefix, const ForeignNameOf& foreign_name,
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
  OptimizerFacts facts;
  for (const SavedValue::Dict& group : found.groups) {
    *optimizer.add_groups() = Options(group);
    facts.AddSettings(group);
  }
  TakeFacts(facts, checkpoint);
  for (OptimizerParameter& parameter : *optimizer.mutable_parameters()) {
    parameter.set_group(static_cast<uint32_t>(*group_of(parameter, found)));
  }
  const std::string groups = prefix + std::string(kGroups);
  Prune(checkpoint.state,
        [&](const std::string& name, const SavedValue&) { return !name.starts_with(groups); });
  SavedValue::List list;
  for (SavedValue::Dict& group : found.groups) list.items.push_back({std::move(group)});
  MergeInto(DictOf("optimizer", DictOf("param_groups", {std::move(list)})), checkpoint.state);
}

absl::StatusOr<std::map<int64_t, size_t>> MatchNumbers(
    const SavedValue& state, const std::string& prefix, const std::map<int64_t, Shape>& shapes,
    std::span<const OrderedParameter> parameters,
    const std::function<std::optional<size_t>(const std::string&)>& index_of) {
  std::vector<NumberedGroup> groups;
  std::map<int64_t, size_t> named;
  size_t with_states = 0;
  for (const auto& [unused, group] : FindTorchGroups(state, prefix)) {
    groups.emplace_back();
    for (size_t i = 0; i < group.numbers.size(); ++i) {
      const int64_t number = group.numbers[i];
      const auto shape = shapes.find(number);
      groups.back().push_back({.number = number});
      if (shape == shapes.end()) continue;
      ++with_states;
      groups.back().back().shape = shape->second;
      if (i >= group.names.size()) continue;
      if (const auto index = index_of(group.names[i])) named[number] = *index;
    }
  }
  if (with_states != shapes.size()) {
    return FailedPrecondition("of ", shapes.size(), " parameters with states, ", with_states,
                              " are in the optimizer's param_groups");
  }
  if (named.size() == shapes.size()) return named;
  return AssignNumbers(parameters, groups);
}

absl::StatusOr<std::map<int64_t, size_t>> AssignNumbers(
    std::span<const OrderedParameter> parameters, std::span<const NumberedGroup> groups) {
  return ParameterAssignment(parameters, groups).Run();
}

}  // namespace tessera::ckpt::convert
