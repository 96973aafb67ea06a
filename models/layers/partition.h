#ifndef TESSERA_MODELS_LAYERS_PARTITION_H_
#define TESSERA_MODELS_LAYERS_PARTITION_H_

#include <cstdint>

namespace tessera {

// Where a logical tensor stands in its model: in a layer, or at an end of the model, or at both
// ends (tied). The pipeline stage that has the layer, or the end, has the tensor.
struct Place {
  int64_t layer = -1;          // global index; negative: in no layer
  bool before_layers = false;  // on the first stage
  bool after_layers = false;   // on the last stage

  bool operator==(const Place&) const = default;
};

inline constexpr Place kBeforeLayers = {.before_layers = true};
inline constexpr Place kAfterLayers = {.after_layers = true};
inline constexpr Place kBothEnds = {.before_layers = true, .after_layers = true};
constexpr Place InLayer(int64_t layer) { return {.layer = layer}; }

// How a logical tensor may be cut among ranks. A model declares it; the trainer cuts by it, and
// checkpoints record it.
struct Partition {
  int dim = -1;         // that tensor parallelism cuts; negative: none, every rank has the whole
  int sections = 1;     // equal parts of `dim`, each of which is cut: q, k and v in one matrix
  bool padded = false;  // rows are padded in memory before they are cut
  Place place;

  bool operator==(const Partition&) const = default;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_PARTITION_H_
