#ifndef TESSERA_CONVERT_CORE_OPTIMIZER_GROUPS_H_
#define TESSERA_CONVERT_CORE_OPTIMIZER_GROUPS_H_

// The groups of an optimizer of torch, in the values of a state dict.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/value.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {

struct TorchGroup {
  std::vector<int64_t> numbers;    // of its parameters
  std::vector<std::string> names;  // of its parameters, in the same order; may be empty
  SavedValue::Dict settings;       // the rest
};
using TorchGroups = std::map<int64_t, TorchGroup>;

// Returns the groups in "param_groups" after `prefix`, which is empty or ends with a dot.
TorchGroups FindTorchGroups(const SavedValue& state, const std::string& prefix);

// What optimizers record besides their states.
struct OptimizerFacts {
  // How often their parameters were updated; nullopt for a value that is not a count.
  std::set<std::optional<int64_t>> updates;
  std::set<std::string> differences;   // settings with which it is not AdamW
  std::set<std::string> other_states;  // that AdamW does not have, and that are not read

  void AddUpdates(std::optional<double> updates);
  void AddSettings(const SavedValue::Dict& settings);  // of a group
};

// Records how often the optimizer has updated the weights: as the step if that is unknown, else
// beside the step if it differs. Adds notes on other states and on differences from AdamW. Adds a
// note if the numbers of updates differ between parameters, or are not counts, and leaves them out.
// With differences, an optimizer that has moments is named "adam".
void TakeFacts(const OptimizerFacts& facts, ForeignCheckpoint& checkpoint);

// Returns the name for a framework of a parameter, given its name or number; empty if unknown.
using ForeignNameOf = std::function<std::string(const std::string& name_or_number)>;

// Sets the groups and settings of the description's optimizer from the values after `prefix`. Flat
// state dicts have settings for each parameter: parameters with equal settings become a group. The
// tree then has the groups as the list "param_groups" of "optimizer". `foreign_name` maps the name
// or number of a parameter in the state dict to its name for `framework` in the description; empty
// if it is unknown. Notes settings that make another algorithm of AdamW, as TakeFacts() does.
// Changes nothing if the groups lack some of the optimizer's parameters.
void TakeSettings(const std::string& prefix, const ForeignNameOf& foreign_name,
                  std::string_view framework, ForeignCheckpoint& checkpoint);

// The parameters of torch's optimizers, which keep the state of each under a number that its groups
// list. The number follows from the order in which the optimizer was given the parameters. Pure.

// A parameter of the model, in the order of its modules.
struct OrderedParameter {
  std::string name;
  Shape shape;
};

// An element of a group's `params`.
struct NumberedParameter {
  int64_t number = 0;
  std::optional<Shape> shape;  // of its state; nullopt for a parameter without a state
};
using NumberedGroup = std::vector<NumberedParameter>;

// Returns the index into `parameters` of each number that has a state.
//
// Each group has its parameters in the order of the model. A group may have any parameters, and
// frozen ones may be in no group. The shapes of the states must determine the parameter of every
// number. FailedPrecondition, naming the parameters, if several or none are possible.
absl::StatusOr<std::map<int64_t, size_t>> AssignNumbers(
    std::span<const OrderedParameter> parameters, std::span<const NumberedGroup> groups);

// Returns the index into `parameters` of each number in the states of an optimizer.
// FindTorchGroups(state, prefix) finds the optimizer's groups; `shapes` are the shapes of the
// numbers' states. If the groups name the parameters of all numbers, `index_of` maps the names;
// otherwise AssignNumbers() decides. FailedPrecondition if the groups lack a number, and as
// AssignNumbers().
absl::StatusOr<std::map<int64_t, size_t>> MatchNumbers(
    const SavedValue& state, const std::string& prefix, const std::map<int64_t, Shape>& shapes,
    std::span<const OrderedParameter> parameters,
    const std::function<std::optional<size_t>(const std::string&)>& index_of);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_OPTIMIZER_GROUPS_H_
