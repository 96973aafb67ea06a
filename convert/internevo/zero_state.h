#ifndef TESSERA_CONVERT_INTERNEVO_ZERO_STATE_H_
#define TESSERA_CONVERT_INTERNEVO_ZERO_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/storage.h"
#include "convert/core/foreign_layout.h"
#include "convert/pickle/value.h"
#include "convert/torch/archive.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {

// A parameter as a plan names it: by its index in its group, whose parameters are in the order of
// their sizes, the largest first.
struct InternEvoPlannedParameter {
  int64_t index = 0;
  Shape shape;  // of what a tensor-parallel rank has
  bool operator==(const InternEvoPlannedParameter&) const = default;
};

// Which parameters each ZeRO rank has, in the order of its flat state: by group, then by rank.
using InternEvoPlan = std::vector<std::vector<std::vector<InternEvoPlannedParameter>>>;

// What a rank has of a group of parameters.
struct InternEvoGroup {
  std::string name;  // "default", "fp32", ...
  // Flat states; empty where the rank has none of its parameters. The fp32 weights are the first.
  std::vector<std::pair<ForeignKind, TorchTensor>> vectors;
};

// A file of HybridZeroOptimizer.
struct InternEvoZeroState {
  std::vector<InternEvoGroup> groups;
  std::optional<InternEvoPlan> plan;
};

// Errors, without the file's name: DataLoss; those of ResolveTorchTensor().
absl::StatusOr<InternEvoPlan> ParseInternEvoPlan(const pickle::Pickle& contents,
                                                 const pickle::Value& plan);
absl::StatusOr<InternEvoZeroState> ParseInternEvoZeroState(const TorchArchive& archive);

// The same for a file, and naming it. Errors also: those of ReadTorchFile().
absl::StatusOr<InternEvoPlan> ReadInternEvoPlan(Storage& storage, const std::string& path);
absl::StatusOr<InternEvoZeroState> ReadInternEvoZeroState(Storage& storage,
                                                          const std::string& path);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_INTERNEVO_ZERO_STATE_H_
