#include "convert/core/state_dict.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/known_model.h"
#include "convert/core/optimizer_groups.h"
#include "convert/core/reading.h"
#include "convert/core/value.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

using Parameters = std::vector<ForeignParameter>;

std::vector<std::string> NamesOf(const ForeignParameter& parameter) {
  std::vector<std::string> names = {parameter.name};
  names.insert(names.end(), parameter.other_names.begin(), parameter.other_names.end());
  return names;
}

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

// Finds the naming, and the prefix of all names, under which every parameter of the model is among
// the weights with its shape, and renames the tensors: first weights, then optimizer states by
// name, or by the numbers that AssignNumbers() resolves. Without such a naming, it leaves the names
// and explains why in a note. Call Run() once.
class Namer {
 public:
  Namer(Storage& storage, std::string_view folder, const KnownModel& model,
        std::string_view framework, ForeignCheckpoint& checkpoint)
      : storage_(storage),
        folder_(folder),
        model_(model),
        framework_(framework),
        checkpoint_(checkpoint) {}

  absl::Status Run() {
    for (size_t i = 0; i < checkpoint_.tensors.size(); ++i) {
      const ForeignTensor& tensor = checkpoint_.tensors[i];
      by_name_[tensor.name] = i;
      if (tensor.role != TensorRole::kWeight) continue;
      const auto [at, is_new] = weights_.emplace(WithoutWrappers(tensor.name), i);
      if (!is_new) {
        return Damaged(tensor, absl::StrCat("without its wrappers it is called as ",
                                            checkpoint_.tensors[at->second].name));
      }
    }
    // Two namings may differ in the layout of matrices alone. Which one a square matrix has is
    // proven by the others, all of which have to fit.
    const Parameters* misshapen = nullptr;
    std::string its_prefix;
    for (const Parameters& naming : model_.namings) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> prefix, FindPrefix(naming));
      if (!prefix.has_value()) continue;
      if (HasShapes(naming, *prefix)) return Name(naming, *prefix);
      if (misshapen != nullptr) continue;
      misshapen = &naming;
      its_prefix = *prefix;
    }
    if (misshapen != nullptr) return Name(*misshapen, its_prefix);  // which says what does not fit
    checkpoint_.mismatch = DescribeMismatch();
    checkpoint_.notes.push_back(
        absl::StrCat("Names are those of the files: ",
                     checkpoint_.mismatch.empty() ? missing_ : checkpoint_.mismatch, "."));
    return absl::OkStatus();
  }

 private:
  absl::Status Damaged(const ForeignTensor& tensor, const absl::AlphaNum& problem) const {
    return absl::DataLossError(
        absl::StrCat(storage_.Describe(folder_), ": tensor ", tensor.name, ": ", problem));
  }

  // Returns the index of the stored tensor with a parameter's name. An alias is the tensor that it
  // is an alias of.
  std::optional<size_t> Find(const std::string& name) const {
    const auto at = weights_.find(name);
    if (at == weights_.end()) return std::nullopt;
    const std::string& other = checkpoint_.tensors[at->second].alias_of;
    if (other.empty()) return at->second;
    const auto stored = by_name_.find(other);
    return stored == by_name_.end() ? std::nullopt : std::optional(stored->second);
  }

  std::string NotThere(const std::string& name) const {
    std::vector<std::string> found;
    for (const auto& [other, unused] : weights_) found.push_back(other);
    return absl::StrCat("the model's ", name, " is not among ",
                        found.empty() ? "them" : SomeOf(found));
  }

  bool HasAll(const Parameters& naming, const std::string& prefix) {
    for (const ForeignParameter& parameter : naming) {
      if (parameter.blocks.empty()) continue;  // no part of the model
      const std::vector<std::string> names = NamesOf(parameter);
      if (std::ranges::any_of(names,
                              [&](const std::string& n) { return Find(prefix + n).has_value(); })) {
        continue;
      }
      if (missing_.empty()) {
        missing_ = NotThere(prefix + parameter.name);
      }
      return false;
    }
    return true;
  }

  // Returns whether the tensors of all parameters have their shapes. Precondition: HasAll().
  bool HasShapes(const Parameters& naming, const std::string& prefix) const {
    return std::ranges::all_of(naming, [&](const ForeignParameter& parameter) {
      if (parameter.blocks.empty()) return true;
      return std::ranges::all_of(NamesOf(parameter), [&](const std::string& name) {
        const std::optional<size_t> at = Find(prefix + name);
        return !at.has_value() || checkpoint_.tensors[*at].shape == parameter.shape;
      });
    });
  }

  // Returns the prefix of all parameters' names; nullopt where they are not all there.
  absl::StatusOr<std::optional<std::string>> FindPrefix(const Parameters& naming) {
    std::set<std::string> prefixes;
    for (const std::string& end : NamesOf(naming.front())) {
      for (const auto& [name, unused] : weights_) {
        if (!name.ends_with(end)) continue;
        std::string prefix = name.substr(0, name.size() - end.size());
        if (prefix.empty() || prefix.back() == '.') prefixes.insert(std::move(prefix));
      }
    }
    std::optional<std::string> found;
    for (const std::string& prefix : prefixes) {
      if (!HasAll(naming, prefix)) continue;
      if (found.has_value()) {
        return absl::DataLossError(absl::StrCat(
            storage_.Describe(folder_), ": the tensors below \"", *found, "\" and those below \"",
            prefix, "\" are a whole model each: keep one of them in the file"));
      }
      found = prefix;
    }
    if (prefixes.empty() && missing_.empty()) {
      missing_ = NotThere(naming.front().name);
    }
    return found;
  }

  // The parameters of one naming that are there below one prefix.
  struct Present {
    const Parameters* naming = nullptr;
    std::string prefix;
    std::set<const ForeignParameter*> parameters;
  };

  // Returns the naming and prefix with the most parameters.
  Present FindMostPresent() const {
    Present most;
    for (const Parameters& naming : model_.namings) {
      std::map<std::string, const ForeignParameter*> by_name;
      size_t longest = 0;
      for (const ForeignParameter& parameter : naming) {
        for (const std::string& name : NamesOf(parameter)) {
          by_name[name] = &parameter;
          longest = std::max(longest, name.size());
        }
      }
      std::map<std::string, Present> by_prefix;
      for (const auto& [name, unused] : weights_) {
        for (size_t begin = 0; begin <= name.size(); begin = name.find('.', begin) + 1) {
          if (name.size() - begin <= longest) {
            const auto found = by_name.find(name.substr(begin));
            if (found != by_name.end()) {
              Present& present = by_prefix[name.substr(0, begin)];
              present.naming = &naming;
              present.parameters.insert(found->second);
            }
          }
          if (name.find('.', begin) == name.npos) break;
        }
      }
      for (auto& [prefix, present] : by_prefix) {
        present.prefix = prefix;
        if (present.parameters.size() > most.parameters.size()) most = std::move(present);
      }
    }
    return most;
  }

  // Returns the tensor whose name is nearest; empty where none is called alike.
  std::string NearestTo(const std::string& name, const std::vector<std::string>& others) const {
    constexpr size_t kMostBytes = 200, kMostOthers = 1000;
    std::string nearest;
    int best = 4;
    if (name.size() > kMostBytes || others.size() > kMostOthers) return nearest;
    for (const std::string& other : others) {
      if (other.size() > kMostBytes) continue;
      const int distance = TypingDistance(name, other);
      if (distance >= best) continue;
      best = distance;
      nearest = other;
    }
    return nearest;
  }

  // Returns a description of missing parameters, if most of the model's are there; empty for other
  // tensors.
  std::string DescribeMismatch() const {
    const Present most = FindMostPresent();
    if (most.naming == nullptr || 2 * most.parameters.size() < most.naming->size()) return "";
    std::set<std::string> known;
    for (const ForeignParameter& parameter : *most.naming) {
      for (const std::string& name : NamesOf(parameter)) known.insert(most.prefix + name);
    }
    std::vector<std::string> unexpected, missing;
    for (const auto& [name, unused] : weights_) {
      if (!known.contains(name)) unexpected.push_back(name);
    }
    for (const ForeignParameter& parameter : *most.naming) {
      if (parameter.blocks.empty() || most.parameters.contains(&parameter)) continue;
      const std::string name = most.prefix + parameter.name;
      const std::string nearest = NearestTo(name, unexpected);
      missing.push_back(absl::StrCat(
          "the model's ", name, " is missing",
          nearest.empty() ? ""
                          : absl::StrCat("; the files have ", absl::CHexEscape(nearest),
                                         ", which no parameter is called")));
    }
    if (missing.empty()) return "";
    std::string message = JoinFirst(missing, "; ");
    const bool shows_some = message.find("; the files have ") != message.npos;
    if (!shows_some && !unexpected.empty()) {
      absl::StrAppend(&message, "; the files have ", SomeOf(unexpected),
                      ", which no parameter is called");
    }
    return message;
  }

  absl::Status Name(const Parameters& naming, const std::string& prefix) {
    ForeignTensorSet set(model_.description);
    ByName by_name;
    std::set<size_t> used;
    for (const ForeignParameter& parameter : naming) {
      for (const std::string& name : NamesOf(parameter)) {
        by_name[name] = by_name[prefix + name] = &parameter;
        const std::optional<size_t> at = Find(prefix + name);
        if (!at.has_value() || !used.insert(*at).second) continue;
        TESSERA_RETURN_IF_ERROR(Add(parameter, kForeignWeight, checkpoint_.tensors[*at], set));
      }
    }
    std::vector<ForeignTensor> kept;
    TESSERA_RETURN_IF_ERROR(SortOut(naming, prefix, used, kept));
    AddNumbered(Ordered(naming, prefix), kept, by_name);
    bool has_state = false;
    TESSERA_RETURN_IF_ERROR(AddStates(by_name, set, kept, &has_state));
    if (has_state) {
      const std::string_view framework = framework_.empty() ? "torch" : framework_;
      set.DescribeOptimizer(framework, *checkpoint_.description.mutable_optimizer());
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

  // The model has places for its parameters, their moments and the number of their updates.
  void DropPlaces(const ByName& by_name) {
    std::set<std::string> tensors;
    for (const ForeignTensor& tensor : checkpoint_.tensors) tensors.insert(tensor.name);
    Prune(checkpoint_.state, [&](const std::string& name, const SavedValue& leaf) {
      if (const auto* tensor = leaf.As<SavedValue::Tensor>()) return tensors.contains(tensor->name);
      const std::optional<StateName> state = ParseStateName(name);
      return !state || state->state != "step" || FindIn(by_name, state->parameter) == nullptr;
    });
  }

  absl::Status Add(const ForeignParameter& parameter, const ForeignKind& kind,
                   const ForeignTensor& tensor, ForeignTensorSet& set) const {
    if (parameter.blocks.empty()) return absl::OkStatus();
    if (tensor.shape != parameter.shape) {
      return Damaged(tensor, absl::StrCat("expected ", ShapeToString(parameter.shape), ", found ",
                                          ShapeToString(tensor.shape)));
    }
    return set.AddPieces(parameter, kind, tensor);
  }

  // Sorts out the tensors beside the model's weights. Those of another role are kept. Those in the
  // model's own part of the state dict must be computed ones; others are left out with a note.
  absl::Status SortOut(const Parameters& naming, const std::string& prefix,
                       const std::set<size_t>& used, std::vector<ForeignTensor>& kept) {
    std::set<std::string> parts;  // of names, below the prefix
    for (const ForeignParameter& parameter : naming) {
      for (const std::string& name : NamesOf(parameter))
        parts.insert(name.substr(0, name.find('.')));
    }
    std::vector<std::string> left_out;
    for (size_t i = 0; i < checkpoint_.tensors.size(); ++i) {
      ForeignTensor& tensor = checkpoint_.tensors[i];
      if (tensor.role != TensorRole::kWeight) {
        kept.push_back(std::move(tensor));
        continue;
      }
      if (used.contains(i) || !tensor.alias_of.empty()) continue;
      const std::string name = WithoutWrappers(tensor.name);
      const std::string own = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
      if (model_.hugging_face && model_.hugging_face->IsComputed(own)) continue;
      if (parts.contains(own.substr(0, own.find('.')))) return Damaged(tensor, "not the model's");
      left_out.push_back(tensor.name);
    }
    if (!left_out.empty()) {
      checkpoint_.notes.push_back(LeftOutNote("tensors that are not the model's", left_out));
    }
    return absl::OkStatus();
  }

  // Returns the parameters in the order of the modules, by which optimizers number them: that of
  // the files where they are written so.
  std::vector<const ForeignParameter*> Ordered(const Parameters& naming,
                                               const std::string& prefix) const {
    std::vector<std::pair<size_t, const ForeignParameter*>> ordered;
    for (const ForeignParameter& parameter : naming) {
      if (parameter.blocks.empty()) continue;
      size_t first = checkpoint_.in_module_order ? checkpoint_.tensors.size() : ordered.size();
      for (const std::string& name : NamesOf(parameter)) {
        const auto at = weights_.find(prefix + name);
        if (checkpoint_.in_module_order && at != weights_.end())
          first = std::min(first, at->second);
      }
      ordered.emplace_back(first, &parameter);
    }
    std::ranges::stable_sort(ordered, {}, [](const auto& entry) { return entry.first; });
    std::vector<const ForeignParameter*> parameters;
    for (const auto& [unused, parameter] : ordered) parameters.push_back(parameter);
    return parameters;
  }

  // Adds, as names of the parameters, the numbers below which the states of one optimizer are.
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
    for (const ForeignParameter* parameter : ordered) {
      parameters.push_back({parameter->name, parameter->shape});
    }
    const auto& [optimizer, shapes] = *optimizers.begin();
    const auto numbers = optimizers.size() > 1
                             ? absl::FailedPreconditionError("there are several optimizers")
                             : MatchStates(optimizer, shapes, parameters, by_name);
    if (numbers.ok()) {
      for (const auto& [number, at] : *numbers) {
        by_name[absl::StrCat(number)] = at < ordered.size() ? ordered[at] : nullptr;
      }
      return;
    }
    checkpoint_.notes.push_back(
        absl::StrCat("Moments by number keep their names: ", numbers.status().message(),
                     "; torch.distributed.checkpoint.state_dict.get_optimizer_state_dict() gives "
                     "them by the names of the parameters."));
  }

  // Returns the parameter, as an index into `parameters`, of each number in an optimizer's states.
  absl::StatusOr<std::map<int64_t, size_t>> MatchStates(
      const std::string& optimizer, const std::map<int64_t, Shape>& shapes,
      const std::vector<OrderedParameter>& parameters, const ByName& by_name) const {
    const TorchGroups found = FindTorchGroups(checkpoint_.state, optimizer);
    std::vector<NumberedGroup> groups;
    size_t with_states = 0;
    std::map<std::string, size_t> indices;
    for (size_t i = 0; i < parameters.size(); ++i) indices[parameters[i].name] = i;
    std::map<int64_t, size_t> named;
    for (const auto& [unused, group] : found) {
      groups.emplace_back();
      for (size_t i = 0; i < group.numbers.size(); ++i) {
        const int64_t number = group.numbers[i];
        const auto shape = shapes.find(number);
        groups.back().push_back({.number = number});
        if (shape == shapes.end()) continue;
        ++with_states;
        groups.back().back().shape = shape->second;
        if (i >= group.names.size()) continue;
        const auto parameter = by_name.find(WithoutWrappers(group.names[i]));
        if (parameter != by_name.end()) named[number] = indices.at(parameter->second->name);
      }
    }
    if (with_states != shapes.size()) {
      return absl::FailedPreconditionError(absl::StrCat("of ", shapes.size(),
                                                        " parameters with states, ", with_states,
                                                        " are in the optimizer's param_groups"));
    }
    if (named.size() == shapes.size()) return named;
    return AssignNumbers(parameters, groups);
  }

  // Moves the states of the parameters from `kept` to the set.
  absl::Status AddStates(const ByName& by_name, ForeignTensorSet& set,
                         std::vector<ForeignTensor>& kept, bool* has_state) {
    std::vector<ForeignTensor> others;
    std::set<double> steps;
    for (ForeignTensor& tensor : kept) {
      const std::optional<StateName> name = ParseStateName(tensor.name);
      const ForeignParameter* const parameter = name ? FindIn(by_name, name->parameter) : nullptr;
      if (parameter != nullptr && name->state == "step" && ElementCount(tensor.shape) == 1) {
        TESSERA_ASSIGN_OR_RETURN(const double step, ReadStep(tensor));
        steps.insert(step);
      } else if (parameter != nullptr && IsMoment(name->state)) {
        *has_state = true;
        optimizer_ = name->optimizer;
        TESSERA_RETURN_IF_ERROR(Add(
            *parameter, name->state == "exp_avg" ? kForeignExpAvg : kForeignExpAvgSq, tensor, set));
      } else {
        others.push_back(std::move(tensor));
      }
    }
    kept = std::move(others);
    // Before torch 1.12 the number of updates was no tensor.
    for (const auto& [full_name, value] : ValuesByName(checkpoint_.state)) {
      const std::optional<StateName> name = ParseStateName(full_name);
      if (!name || name->state != "step" || FindIn(by_name, name->parameter) == nullptr) continue;
      if (const auto* step = value->As<int64_t>()) {
        steps.insert(static_cast<double>(*step));
      } else if (const auto* real = value->As<double>()) {
        steps.insert(*real);
      }
    }
    TakeStep(steps);
    return absl::OkStatus();
  }

  // Returns a number of one element. NaN for one of another dtype.
  absl::StatusOr<double> ReadStep(const ForeignTensor& tensor) const {
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    if (tensor.pieces.size() != 1) return kUnknown;
    const StoredPiece& piece = tensor.pieces.front();
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file,
                             storage_.Open(JoinPath(folder_, piece.file)));
    const auto read = [&](auto number) -> absl::StatusOr<double> {
      TESSERA_RETURN_IF_ERROR(
          file->ReadAt(piece.offset_bytes, std::as_writable_bytes(std::span(&number, 1))));
      return static_cast<double>(number);
    };
    if (tensor.dtype == DType::kF32) return read(float{0});
    if (tensor.dtype == DType::kI64) return read(int64_t{0});
    return kUnknown;
  }

  // Adam counts its updates for each parameter.
  void TakeStep(const std::set<double>& steps) {
    if (steps.empty()) return;
    const double step = *steps.begin();
    if (steps.size() > 1 || !(step >= 0 && step <= kMaxTrainerCount) || step != std::floor(step)) {
      checkpoint_.notes.emplace_back("Parameters differ in the number of their updates.");
      return;
    }
    SetProgress(static_cast<int64_t>(step), std::nullopt, checkpoint_.description);
  }

  Storage& storage_;
  const std::string folder_;
  const KnownModel& model_;
  const std::string_view framework_;
  ForeignCheckpoint& checkpoint_;
  std::map<std::string, size_t> by_name_;  // indices of tensors
  std::map<std::string, size_t> weights_;  // of weights, by their names without wrappers
  std::string missing_;
  std::string optimizer_;  // what precedes "state" in the names of the moments
};

}  // namespace

absl::Status NameStateDict(Storage& storage, std::string_view folder, const ModelProto* model,
                           std::string_view framework, ForeignCheckpoint& checkpoint) {
  const absl::StatusOr<std::optional<KnownModel>> known =
      FindModel(storage, folder, model, framework, checkpoint);
  if (absl::IsInvalidArgument(known.status())) {
    checkpoint.notes.push_back(
        absl::StrCat("Names are those of the files: ", known.status().message(), "."));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(known.status());
  if (!known->has_value() || (*known)->description.parameters.empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(Namer(storage, folder, **known, framework, checkpoint).Run());
  if (!checkpoint.description.has_model()) return absl::OkStatus();
  checkpoint.notes.insert(checkpoint.notes.end(), (*known)->notes.begin(), (*known)->notes.end());
  return absl::OkStatus();
}

}  // namespace tessera::ckpt::convert
