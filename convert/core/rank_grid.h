#ifndef TESSERA_CONVERT_CORE_RANK_GRID_H_
#define TESSERA_CONVERT_CORE_RANK_GRID_H_

// The files of a run's ranks, whose names contain the rank's place in the grid of ranks.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::ckpt::convert {

// The pattern of one kind of names. "{2}" stands for the rank on one axis, written with at least
// two digits: "optimizer.tp{2}_pp{2}.pdopt".
class RankPattern {
 public:
  explicit RankPattern(std::string_view pattern);

  size_t axes() const { return digits_.size(); }
  // Returns the rank on each axis; nullopt for other names, and for ranks beyond 1,048,575.
  std::optional<std::vector<int64_t>> Parse(std::string_view name) const;
  // Returns the name of a rank's file. Precondition: one rank for each axis.
  std::string Name(std::span<const int64_t> ranks) const;

 private:
  std::vector<std::string> texts_;  // before, between and after the ranks
  std::vector<int> digits_;
};

struct RankFile {
  std::string name;
  std::vector<int64_t> ranks;  // by axis
};

// Returns the files of a grid with this many ranks on each axis, in the order of ranks with the
// last axis fastest. Names that are not `present` are added to `missing`. DataLoss, with the sizes,
// for a grid of more files than a folder has room for, since sizes may come from a single name.
absl::StatusOr<std::vector<RankFile>> CompleteGrid(const RankPattern& pattern,
                                                   std::span<const int64_t> extents,
                                                   std::span<const std::string> present,
                                                   std::vector<std::string>& missing);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_RANK_GRID_H_
