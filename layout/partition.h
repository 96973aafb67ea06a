#ifndef TESSERA_LAYOUT_PARTITION_H_
#define TESSERA_LAYOUT_PARTITION_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "layout/box.h"

namespace tessera::ckpt {

// How a logical tensor may be cut among the ranks of a run, as the model that declares it says. No
// load depends on it; it is what a checkpoint is rewritten for another topology by.
struct Partition {
  int dim = -1;         // that tensor parallelism cuts; -1: none, every rank has the whole
  int sections = 1;     // equal parts of `dim`, each of which is cut: q, k and v in one matrix
  bool padded = false;  // rows are padded in memory before they are cut; `dim` is 0
  // The tensor stands in a layer (a global index; -1: in none), or at an end of the model, or,
  // where it is tied, at both. Nothing of it: not known.
  int64_t layer = -1;
  bool before_layers = false;
  bool after_layers = false;

  bool operator==(const Partition&) const = default;
};

// InvalidArgument, a phrase: a dim that the tensor does not have, sections that do not divide its
// extent, padding of another dim than the first, a layer and an end at once.
absl::Status CheckPartition(const Partition& partition, const Shape& global_shape);

// Part `part` of `parts` of the tensor: a box for each section, ascending, none of them empty.
// Extents that `parts` does not divide are cut as evenly as possible. Rows are cut as if there were
// `rows` of them, padding included, in a padded tensor. Precondition: CheckPartition.
std::vector<Box> CutTensor(const Partition& partition, const Shape& global_shape, int64_t rows,
                           int part, int parts);

}  // namespace tessera::ckpt

#endif  // TESSERA_LAYOUT_PARTITION_H_
