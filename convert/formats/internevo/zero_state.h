#ifndef TESSERA_CONVERT_FORMATS_INTERNEVO_ZERO_STATE_H_
#define TESSERA_CONVERT_FORMATS_INTERNEVO_ZERO_STATE_H_

// The states of InternEvo's ZeRO ranks, and the plans that distributed parameters over them.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/core/foreign_layout.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/value.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {

// A parameter in a plan: its index in its group, whose parameters are in the order of their sizes,
// the largest first.
struct InternEvoPlannedParameter {
  int64_t index = 0;
  Shape shape;  // of what a tensor-parallel rank has
  bool operator==(const InternEvoPlannedParameter&) const = default;
};

// The parameters of each ZeRO rank, in the order of its flat state: by group, then by rank.
using InternEvoPlan = std::vector<std::vector<std::vector<InternEvoPlannedParameter>>>;

// A rank's part of a group of parameters.
struct InternEvoGroup {
  std::string name;  // "default", "fp32", ...
  // Flat states, the fp32 weights first; empty if the rank has none of the group's parameters.
  std::vector<std::pair<ForeignKind, TorchTensor>> vectors;
};

// A file of HybridZeroOptimizer.
struct InternEvoZeroState {
  std::vector<InternEvoGroup> groups;
  std::optional<InternEvoPlan> plan;
};

// Parse the contents of a file. Errors, without the file's name: DataLoss; those of
// ResolveTorchTensor().
absl::StatusOr<InternEvoPlan> ParseInternEvoPlan(const pickle::Pickle& contents,
                                                 const pickle::Value& plan);
absl::StatusOr<InternEvoZeroState> ParseInternEvoZeroState(const TorchArchive& archive);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_INTERNEVO_ZERO_STATE_H_
