#include "models/gpt2/foreign.h"

#include <cstdint>
#include <utility>

#include "models/gpt2/sharding.h"

namespace tessera::gpt2 {

std::vector<LayerTensor> LayerTensors(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  return {{kNorm1Weight, {c}}, {kNorm1Bias, {c}},           {kQkvWeight, {c, 3 * c}},
          {kQkvBias, {3 * c}}, {kProjectionWeight, {c, c}}, {kProjectionBias, {c}},
          {kNorm2Weight, {c}}, {kNorm2Bias, {c}},           {kUpWeight, {c, f}},
          {kUpBias, {f}},      {kDownWeight, {f, c}},       {kDownBias, {c}}};
}

ForeignParameter OutByIn(std::string name, std::string logical_name, const Shape& logical_shape) {
  if (logical_shape.size() == 1) {
    return SameTensor(std::move(name), std::move(logical_name), logical_shape);
  }
  return TransposedMatrix(std::move(name), std::move(logical_name), logical_shape[0],
                          logical_shape[1]);
}

}  // namespace tessera::gpt2
