#ifndef TESSERA_MODELS_LAYERS_STAGE_H_
#define TESSERA_MODELS_LAYERS_STAGE_H_

#include <cstdint>
#include <optional>

namespace tessera {

// The part of a model on one pipeline stage: layers [first_layer, last_layer) by global index, with
// or without the parts before the first and after the last layer.
struct StageLayers {
  int64_t first_layer = 0;
  std::optional<int64_t> last_layer;  // unset: the model's last
  bool has_embedding = true;
  bool has_head = true;  // final norm, head and loss
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_STAGE_H_
