#ifndef TESSERA_CONVERT_CORE_NUMBERED_PARAMETERS_H_
#define TESSERA_CONVERT_CORE_NUMBERED_PARAMETERS_H_

// Optimizers of torch keep the state of each parameter under a number, which its groups list. Which
// parameter that is follows from the order in which the optimizer was given the parameters. Pure.

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

// A parameter of the model, in the order in which its modules have them.
struct OrderedParameter {
  std::string name;
  Shape shape;
};

// An element of `params` of a group.
struct NumberedParameter {
  int64_t number = 0;
  std::optional<Shape> shape;  // that of its state; nullopt for a parameter without any
};
using NumberedGroup = std::vector<NumberedParameter>;

// The index into `parameters` of each number that has a state.
//
// Each group has its parameters in the order of the model. A group may have any of them, so that
// frozen ones may be in none. The shapes of the states must settle for every number which parameter
// it is; where several are possible, or none, the error is FailedPrecondition, naming them.
absl::StatusOr<std::map<int64_t, size_t>> AssignNumbers(
    std::span<const OrderedParameter> parameters, std::span<const NumberedGroup> groups);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_NUMBERED_PARAMETERS_H_
