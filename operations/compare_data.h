#ifndef TESSERA_OPERATIONS_COMPARE_DATA_H_
#define TESSERA_OPERATIONS_COMPARE_DATA_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"

namespace tessera::ckpt {

// The difference between the contents of one tensor in two checkpoints.
struct DataDifference {
  bool same_bits = true;           // every bit of every element; false if the dtypes differ
  int64_t different_elements = 0;  // by value where floating, else by bits; NaN equals NaN
  double max_abs = 0;              // floating only; +infinity where only one side is a NaN
  int64_t without_distance = 0;    // different elements of which a side is not finite
  double squares = 0;              // sum over the distances of all others; floating only
};

// Compares tensors that both checkpoints hold under one name with one shape and comparable dtypes
// (equal, or both floating). In bounded memory: tensors are read in slabs of rows, both sides at
// once, and only those whose bits differ are compared as numbers.
absl::StatusOr<std::map<std::string, DataDifference>> CompareData(
    const Checkpoint& a, const Checkpoint& b, const std::vector<std::string>& names, int threads);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_COMPARE_DATA_H_
