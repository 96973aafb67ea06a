#ifndef TESSERA_LAYOUT_PARTITION_H_
#define TESSERA_LAYOUT_PARTITION_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "layout/box.h"

namespace tessera {

// The place of a logical tensor in its model: in a layer, at an end of the model, or at both ends
// (tied). The pipeline stage that has the layer, or the end, has the tensor. A default Place is
// unknown.
struct Place {
  int64_t layer = -1;          // global index; -1: in no layer
  bool before_layers = false;  // on the first stage
  bool after_layers = false;   // on the last stage

  bool operator==(const Place&) const = default;
};

inline constexpr Place kBeforeLayers = {.before_layers = true};
inline constexpr Place kAfterLayers = {.after_layers = true};
inline constexpr Place kBothEnds = {.before_layers = true, .after_layers = true};
constexpr Place InLayer(int64_t layer) { return {.layer = layer}; }

// How a logical tensor may be cut among the ranks of a run. A model declares the partition, the
// trainer cuts by it, and checkpoints record it. Only rewriting a checkpoint for another topology
// uses the record; no load depends on it.
struct Partition {
  int dim = -1;         // that tensor parallelism cuts; -1: none, every rank has the whole
  int sections = 1;     // equal parts of `dim`, each of which is cut: q, k and v in one matrix
  bool padded = false;  // rows are padded in memory before they are cut; `dim` is 0
  Place place = {};

  bool operator==(const Partition&) const = default;
};

// Checks a partition. InvalidArgument, whose message is a phrase, for
// - a dim that the tensor does not have;
// - sections that do not divide its extent;
// - padding of another dim than the first;
// - a layer and an end at once.
absl::Status CheckPartition(const Partition& partition, const Shape& global_shape);

// Returns part `part` of `parts` of the tensor: at most a box for each section, ascending, none of
// them empty. Extents that `parts` does not divide are cut as evenly as possible. Rows are cut as
// if there were `rows` of them, padding included, in a padded tensor. Precondition: CheckPartition.
std::vector<Box> CutTensor(const Partition& partition, const Shape& global_shape, int64_t rows,
                           int part, int parts);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_PARTITION_H_
