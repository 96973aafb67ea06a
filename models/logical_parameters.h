#ifndef TESSERA_MODELS_LOGICAL_PARAMETERS_H_
#define TESSERA_MODELS_LOGICAL_PARAMETERS_H_

#include <string>
#include <vector>

#include "compute/tensor/tensor.h"
#include "models/config/config.pb.h"
#include "models/layers/partition.h"

namespace tessera {

// A trainable logical tensor of a model, whatever its sharding.
struct LogicalParameter {
  std::string name;
  Shape shape;  // unpadded
  Partition partition;
  bool weight_decay = true;
  std::string tied_name;  // a second name of the same tensor, or empty
};

// All of a model, in its order. Nothing is allocated in proportion to their sizes. Precondition: a
// resolved config.
std::vector<LogicalParameter> LogicalParameters(const ModelConfig& config);

}  // namespace tessera

#endif  // TESSERA_MODELS_LOGICAL_PARAMETERS_H_
