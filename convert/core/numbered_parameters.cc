#include "convert/core/numbered_parameters.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::ckpt::convert {
namespace {

// How many parameters each group has been given.
using Positions = std::vector<uint32_t>;

// Beyond that, nothing that real files have is searched for.
constexpr size_t kMaxProgresses = size_t{1} << 18;
constexpr size_t kMaxGroups = 64;

// All ways of dealing the parameters, in their order, to the groups, as paths through a graph whose
// nodes are the progress of all groups after each parameter.
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
      return absl::FailedPreconditionError(absl::StrCat(
          "the optimizer has ", count_, " parameters, the model has ", parameters_.size()));
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

  // What is reachable after each parameter.
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
    return absl::FailedPreconditionError(
        "the optimizer's parameters can be those of the model in too many ways");
  }

  absl::Status NoneFits(size_t parameter) const {
    const Positions& progress = *reached_.back().begin();
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (progress[g] == groups_[g].size()) continue;
      const NumberedParameter& next = groups_[g][progress[g]];
      return absl::FailedPreconditionError(
          absl::StrCat("the states of parameter ", next.number, " of the optimizer have shape ",
                       ShapeToString(next.shape.value_or(Shape())),
                       ", and in the order of the model ", parameters_[parameter].name,
                       ", of shape ", ShapeToString(parameters_[parameter].shape), ", is next"));
    }
    return absl::FailedPreconditionError("the optimizer's parameters are not those of the model");
  }

  // Follows, from the end, what is on a path to where every group has all of its parameters.
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
    return absl::FailedPreconditionError(
        absl::StrCat("parameter ", number.number, " of the optimizer may be ",
                     parameters_[parameter].name, " or ", parameters_[at->second].name));
  }

  std::span<const OrderedParameter> parameters_;
  std::span<const NumberedGroup> groups_;
  Positions end_;
  size_t count_ = 0;
  std::vector<std::set<Positions>> reached_;  // after so many parameters
};

}  // namespace

absl::StatusOr<std::map<int64_t, size_t>> AssignNumbers(
    std::span<const OrderedParameter> parameters, std::span<const NumberedGroup> groups) {
  return ParameterAssignment(parameters, groups).Run();
}

}  // namespace tessera::ckpt::convert
