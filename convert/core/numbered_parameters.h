#ifndef TESSERA_CONVERT_CORE_NUMBERED_PARAMETERS_H_
#define TESSERA_CONVERT_CORE_NUMBERED_PARAMETERS_H_

// The parameters of torch's optimizers, which keep the state of each under a number that its groups
// list. The number follows from the order in which the optimizer was given the parameters. Pure.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {

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

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_NUMBERED_PARAMETERS_H_
