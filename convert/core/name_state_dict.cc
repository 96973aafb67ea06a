#include "convert/core/name_state_dict.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/known_model.h"
#include "convert/core/optimizer_groups.h"
#include "convert/core/reading.h"
#include "convert/core/value.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

bool IsMoment(std::string_view state) { return state == "exp_avg" || state == "exp_avg_sq"; }

// "optimizer.state.3.exp_avg".
struct StateName {
  std::string optimizer;  // what precedes "state"
  std::string parameter;  // its name or number
  std::string state;
};

std::optional<StateName> ParseStateName(const std::string& name) {
  constexpr std::string_view kState = "state.";
  size_t begin = 0;
  if (!name.starts_with(kState)) {
    begin = name.find(".state.");
    if (begin++ == std::string::npos) return std::nullopt;
  }
  const size_t first = begin + kState.size(), end = name.rfind('.');
  if (end <= first || end == std::string::npos) return std::nullopt;
  return StateName{name.substr(0, begin), name.substr(first, end - first), name.substr(end + 1)};
}

// Parameters by their names, and by their numbers.
using ByName = std::map<std::string, const ForeignParameter*>;

const ForeignParameter* FindIn(const ByName& by_name, const std::string& name) {
  const auto at = by_name.find(WithoutWrappers(name));
  return at == by_name.end() ? nullptr : at->second;
}

// Names the tensors of a state dict by the naming and the prefix that NamingFinder has found in it.
// Weights are first, then the optimizer's states, by names of parameters or by the numbers that
// MatchNumbers() resolves. Tensors that are not the model's keep their names. Call Run() once.
class Namer {
 public:
  Namer(Storage& storage, const KnownModel& model, std::string_view framework,
        const NamingFinder& weights, ForeignCheckpoint& checkpoint)
      : storage_(storage),
        model_(model),
        framework_(framework),
        weights_(weights),
        checkpoint_(checkpoint) {}

  absl::Status Run(const PrefixedNaming& place) {
    const Parameters& naming = *place.naming;
    const std::string& prefix = place.prefix;
    ForeignTensorSet set(model_.description);
    TESSERA_RETURN_IF_ERROR(ReadSettings());
    ByName by_name;
    std::set<size_t> used;
    for (const ForeignParameter& parameter : naming) {
      for (const std::string& name : NamesOf(parameter)) {
        by_name[name] = by_name[WithoutWrappers(prefix + name)] = &parameter;
        const std::optional<size_t> at = weights_.FindTensor(prefix + name);
        if (!at.has_value() || !used.insert(*at).second) continue;
        TESSERA_RETURN_IF_ERROR(Add(parameter, kForeignWeight, checkpoint_.tensors[*at], set));
      }
    }
    std::vector<ForeignTensor> kept;
    TESSERA_RETURN_IF_ERROR(SortOut(place, used, kept));
    AddNumbered(Ordered(naming, prefix), kept, by_name);
    TESSERA_RETURN_IF_ERROR(AddStates(by_name, set, kept));
    if (!adams_.empty()) {
      const std::string_view framework = framework_.empty() ? "torch" : framework_;
      set.DescribeOptimizer(framework, checkpoint_);
      TakeSettings(
          optimizer_,
          [&](const std::string& name_or_number) {
            const ForeignParameter* const parameter = FindIn(by_name, name_or_number);
            return parameter == nullptr ? "" : parameter->name;
          },
          framework, checkpoint_);
    }
    *checkpoint_.description.mutable_model() = model_.description.config;
    checkpoint_.tensors = std::move(set).Finish();
    for (ForeignTensor& tensor : kept) checkpoint_.tensors.push_back(std::move(tensor));
    DropPlaces(by_name);
    return absl::OkStatus();
  }

 private:
  // Settings of an optimizer that runs in a captured graph are tensors: makes numbers of them.
  absl::Status ReadSettings() {
    std::map<std::string, double> numbers;
    for (const ForeignTensor& tensor : checkpoint_.tensors) {
      if (("." + tensor.name).find(".param_groups.") == std::string::npos) continue;
      TESSERA_ASSIGN_OR_RETURN(std::optional<double> number, ReadElement(tensor));
      if (const auto first = numbers.find(tensor.alias_of); first != numbers.end()) {
        number = first->second;
      }
      if (number) numbers[tensor.name] = *number;
    }
    if (numbers.empty()) return absl::OkStatus();
    const std::function<void(SavedValue&)> replace = [&](SavedValue& value) {
      const auto* const tensor = value.As<SavedValue::Tensor>();
      const auto number = tensor == nullptr ? numbers.end() : numbers.find(tensor->name);
      if (number != numbers.end()) {
        value = {number->second};
        settings_.insert(number->first);
      } else if (IsBranch(value)) {
        ForEachChild<SavedValue>(value,
                                 [&](const PathPart&, SavedValue& child) { replace(child); });
      }
    };
    replace(checkpoint_.state);
    return absl::OkStatus();
  }

  // The model has places for its parameters, their moments and the number of their updates.
  void DropPlaces(const ByName& by_name) {
    std::set<std::string> tensors;
    for (const ForeignTensor& tensor : checkpoint_.tensors) tensors.insert(tensor.name);
    Prune(checkpoint_.state, [&](const std::string& name, const SavedValue& leaf) {
      if (const auto* tensor = leaf.As<SavedValue::Tensor>()) return tensors.contains(tensor->name);
      const std::optional<StateName> state = ParseStateName(name);
      return !state || state->state != "step" ||
             !adams_.contains(FindIn(by_name, state->parameter));
    });
  }

  absl::Status Add(const ForeignParameter& parameter, const ForeignKind& kind,
                   const ForeignTensor& tensor, ForeignTensorSet& set) const {
    if (parameter.blocks.empty()) return absl::OkStatus();
    if (tensor.shape != parameter.shape) {
      return weights_.Damaged(tensor, "expected ", ShapeToString(parameter.shape), ", found ",
                              ShapeToString(tensor.shape));
    }
    return set.AddPieces(parameter, kind, tensor);
  }

  // Sorts out the tensors beside the model's weights. Those of another role are kept. Those in the
  // model's own part of the state dict must be computed ones; others are left out with a note, and
  // so are other models.
  absl::Status SortOut(const PrefixedNaming& place, const std::set<size_t>& used,
                       std::vector<ForeignTensor>& kept) {
    const std::string& prefix = place.prefix;
    std::set<std::string> parts;  // of names, below the prefix
    for (const ForeignParameter& parameter : *place.naming) {
      for (const std::string& name : NamesOf(parameter))
        parts.insert(name.substr(0, name.find('.')));
    }
    std::vector<std::string> left_out;
    std::map<std::string, int64_t> others;  // numbers of tensors
    for (size_t i = 0; i < checkpoint_.tensors.size(); ++i) {
      ForeignTensor& tensor = checkpoint_.tensors[i];
      if (settings_.contains(tensor.name)) continue;
      if (tensor.role != TensorRole::kWeight) {
        kept.push_back(std::move(tensor));
        continue;
      }
      const std::string name = weights_.NameOf(tensor);
      const bool is_used = used.contains(i) || used.contains(*weights_.FindTensor(name));
      if (is_used || !tensor.alias_of.empty()) continue;
      const std::string own = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
      if (model_.hugging_face && model_.hugging_face->IsComputed(own)) continue;
      const auto other =
          std::find_if(place.others.rbegin(), place.others.rend(), [&](const std::string& begin) {
            return name.starts_with(begin) && (own.empty() || begin.starts_with(prefix));
          });
      if (other != place.others.rend()) {
        ++others[*other];
        if (std::ranges::count(place.equal, *other) == 0) {
          checkpoint_.unread[Shown(tensor.name)] = "a tensor of another whole model";
        }
        continue;
      }
      if (parts.contains(own.substr(0, own.find('.'))))
        return weights_.Damaged(tensor, "not the model's");
      left_out.push_back(tensor.name);
    }
    NoteLeftOut("tensors that are not the model's", left_out, checkpoint_.notes);
    for (const auto& [other, count] : others) {
      checkpoint_.notes.push_back(
          absl::StrCat("Left out: another whole model, ", count, " tensors below \"", Shown(other),
                       "\"; the model is the one below \"", Shown(prefix), "\"."));
    }
    return absl::OkStatus();
  }

  // Returns the parameters in the order of the modules, in which optimizers number them. If the
  // files are written in that order, it is theirs.
  std::vector<const ForeignParameter*> Ordered(const Parameters& naming,
                                               const std::string& prefix) const {
    std::vector<std::pair<size_t, const ForeignParameter*>> ordered;
    for (const ForeignParameter& parameter : naming) {
      if (parameter.blocks.empty()) continue;
      size_t first = checkpoint_.in_module_order ? checkpoint_.tensors.size() : ordered.size();
      for (const std::string& name : NamesOf(parameter)) {
        const std::optional<size_t> at = weights_.FindWeight(prefix + name);
        if (checkpoint_.in_module_order && at.has_value()) first = std::min(first, *at);
      }
      ordered.emplace_back(first, &parameter);
    }
    std::ranges::stable_sort(ordered, {}, [](const auto& entry) { return entry.first; });
    std::vector<const ForeignParameter*> parameters;
    for (const auto& [unused, parameter] : ordered) parameters.push_back(parameter);
    return parameters;
  }

  // Makes the numbers that an optimizer's states have further names of the parameters.
  void AddNumbered(const std::vector<const ForeignParameter*>& ordered,
                   const std::vector<ForeignTensor>& states, ByName& by_name) {
    std::map<std::string, std::map<int64_t, Shape>> optimizers;
    for (const ForeignTensor& tensor : states) {
      const std::optional<StateName> name = ParseStateName(tensor.name);
      int64_t number = 0;
      if (name.has_value() && IsMoment(name->state) && absl::SimpleAtoi(name->parameter, &number)) {
        optimizers[name->optimizer].emplace(number, tensor.shape);
      }
    }
    if (optimizers.empty()) return;
    std::vector<OrderedParameter> parameters;
    std::map<std::string, size_t> indices;
    for (const ForeignParameter* parameter : ordered) {
      indices[parameter->name] = parameters.size();
      parameters.push_back({parameter->name, parameter->shape});
    }
    const auto index_of = [&](const std::string& name) -> std::optional<size_t> {
      const ForeignParameter* const parameter = FindIn(by_name, name);
      if (parameter == nullptr) return std::nullopt;
      const auto index = indices.find(parameter->name);  // without computed tensors
      return index == indices.end() ? std::nullopt : std::optional(index->second);
    };
    const auto& [optimizer, shapes] = *optimizers.begin();
    const auto numbers = optimizers.size() > 1 ? FailedPrecondition("there are several optimizers")
                                               : MatchNumbers(checkpoint_.state, optimizer, shapes,
                                                              parameters, index_of);
    if (numbers.ok()) {
      for (const auto& [number, at] : *numbers) {
        by_name[absl::StrCat(number)] = at < ordered.size() ? ordered[at] : nullptr;
      }
      return;
    }
    has_numbers_ = true;
    checkpoint_.notes.push_back(
        absl::StrCat("Moments by number keep their names: ", numbers.status().message(),
                     "; torch.distributed.checkpoint.state_dict.get_optimizer_state_dict() gives "
                     "them by the names of the parameters."));
  }

  // Moves the states of parameters that have both of Adam's moments from `kept` to the set: states
  // of the parameter's shape, such as AMSGrad's, and the number of updates.
  absl::Status AddStates(const ByName& by_name, ForeignTensorSet& set,
                         std::vector<ForeignTensor>& kept) {
    const auto parameter_of = [&](const std::optional<StateName>& name) {
      return name ? FindIn(by_name, name->parameter) : nullptr;
    };
    std::map<const ForeignParameter*, std::set<std::string>> moments;
    for (const ForeignTensor& tensor : kept) {
      const std::optional<StateName> name = ParseStateName(tensor.name);
      const ForeignParameter* const parameter = parameter_of(name);
      if (parameter == nullptr || !IsMoment(name->state)) continue;
      if (moments[parameter].insert(name->state).second && moments[parameter].size() == 2)
        adams_.insert(parameter);
    }
    std::vector<ForeignTensor> others;
    std::vector<std::string> unknown;
    OptimizerFacts facts;
    for (ForeignTensor& tensor : kept) {
      const std::optional<StateName> name = ParseStateName(tensor.name);
      const ForeignParameter* const parameter = parameter_of(name);
      const bool is_adams = adams_.contains(parameter);
      const bool is_step =
          parameter != nullptr && name->state == "step" && ElementCount(tensor.shape) == 1;
      if (is_step && tensor.alias_of.empty()) {
        TESSERA_ASSIGN_OR_RETURN(const std::optional<double> step, ReadElement(tensor));
        facts.AddUpdates(step);
      }
      if (is_step && is_adams) continue;
      if (is_adams && name->state != kForeignMaster.state &&
          (IsMoment(name->state) || tensor.shape == parameter->shape)) {
        optimizer_ = name->optimizer;
        TESSERA_RETURN_IF_ERROR(
            Add(*parameter, {TensorRole::kOptimizerState, name->state}, tensor, set));
        continue;
      }
      // AdamW may have further parameters than the model's.
      const bool is_of_others =
          parameter == nullptr && name && (IsMoment(name->state) || name->state == "step");
      if (name && !has_numbers_ && !is_of_others) unknown.push_back(tensor.name);
      others.push_back(std::move(tensor));
    }
    kept = std::move(others);
    if (!unknown.empty()) {
      checkpoint_.notes.push_back(absl::StrCat(
          "States of the optimizer that are not AdamW's keep their names: ", JoinShown(unknown),
          "."));
    }
    // Before torch 1.12 the number of updates was no tensor.
    for (const auto& [full_name, value] : ValuesByName(checkpoint_.state)) {
      const std::optional<StateName> name = ParseStateName(full_name);
      if (!name || name->state != "step" || parameter_of(name) == nullptr) continue;
      const auto* const integer = value->As<int64_t>();
      const auto* const real = value->As<double>();
      if (integer != nullptr) facts.AddUpdates(static_cast<double>(*integer));
      if (real != nullptr) facts.AddUpdates(*real);
    }
    TakeFacts(facts, checkpoint_);
    return absl::OkStatus();
  }

  // Returns the only element of a tensor; nullopt for other tensors.
  absl::StatusOr<std::optional<double>> ReadElement(const ForeignTensor& tensor) const {
    if (ElementCount(tensor.shape) != 1 || tensor.pieces.size() != 1) return std::nullopt;
    const StoredPiece& piece = tensor.pieces.front();
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, storage_.Open(piece.file));
    return ReadNumber(*file, piece.offset_bytes, tensor.dtype);
  }

  Storage& storage_;
  const KnownModel& model_;
  const std::string_view framework_;
  const NamingFinder& weights_;
  ForeignCheckpoint& checkpoint_;
  std::string optimizer_;                    // what precedes "state" in the names of the moments
  std::set<const ForeignParameter*> adams_;  // that have both moments
  std::set<std::string> settings_;           // tensors of groups that have become numbers
  bool has_numbers_ = false;                 // of parameters that stay unknown
};

}  // namespace

absl::Status NameStateDict(Storage& storage, const ModelProto* model, std::string_view framework,
                           ForeignCheckpoint& checkpoint) {
  const absl::StatusOr<std::optional<KnownModel>> known =
      FindModel(storage, model, framework, checkpoint);
  if (absl::IsInvalidArgument(known.status()) || absl::IsUnimplemented(known.status())) {
    checkpoint.notes.push_back(
        absl::StrCat("Names are those of the files: ", known.status().message(), "."));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(known.status());
  if (!known->has_value() || (*known)->description.parameters.empty()) return absl::OkStatus();
  NamingFinder finder(storage, **known, checkpoint);
  TESSERA_ASSIGN_OR_RETURN(const std::optional<PrefixedNaming> found, finder.Find());
  if (!finder.ambiguity().empty()) {
    checkpoint.notes.push_back(absl::StrCat("Names are those of the files: ", finder.ambiguity(),
                                            ". For the model, pass a file with one of them."));
    return absl::OkStatus();
  }
  if (!found.has_value()) {
    std::vector<std::string> names;
    for (const ForeignTensor& tensor : checkpoint.tensors) names.push_back(tensor.name);
    const auto& described = (*known)->hugging_face;
    const std::string other = WhyOtherTensors(described ? &*described : nullptr, names);
    if (other.empty()) checkpoint.mismatch = finder.DescribeMismatch();
    const std::string& why = other.empty() ? checkpoint.mismatch : other;
    checkpoint.notes.push_back(
        absl::StrCat("Names are those of the files: ", why.empty() ? finder.missing() : why, "."));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(Namer(storage, **known, framework, finder, checkpoint).Run(*found));
  if (!checkpoint.description.has_model()) return absl::OkStatus();
  checkpoint.notes.insert(checkpoint.notes.end(), (*known)->notes.begin(), (*known)->notes.end());
  return absl::OkStatus();
}

}  // namespace tessera::ckpt::convert
