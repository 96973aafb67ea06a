#ifndef TESSERA_MODELS_LAYERS_DECLARE_H_
#define TESSERA_MODELS_LAYERS_DECLARE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "models/layers/parameter.h"

namespace tessera {

inline constexpr Initialization kInitZeros = {Initialization::kZeros, 0};
inline constexpr Initialization kInitOnes = {Initialization::kOnes, 0};
inline Initialization InitNormal(double deviation) { return {Initialization::kNormal, deviation}; }

// A parameter that is one whole logical tensor; rows beyond it, up to `padded_rows`, are padding.
// Vectors do not decay.
inline Parameter WholeParameter(std::string name, Shape shape, Initialization init,
                                int64_t padded_rows = 0) {
  Parameter parameter;
  parameter.shape = shape;
  if (padded_rows > shape[0]) parameter.shape[0] = padded_rows;
  const std::vector<int64_t> origin(shape.size(), 0);
  parameter.weight_decay = shape.size() > 1;
  parameter.pieces.push_back({std::move(name), shape, origin, origin, shape});
  parameter.init = init;
  return parameter;
}

// Whole logical tensors [rows_i, columns] below each other in one buffer.
inline Parameter StackedParameter(
    const std::vector<std::pair<std::string, int64_t>>& names_and_rows, int64_t columns,
    Initialization init) {
  Parameter parameter;
  int64_t rows = 0;
  for (const auto& [name, count] : names_and_rows) {
    parameter.pieces.push_back({name, {count, columns}, {0, 0}, {rows, 0}, {count, columns}});
    rows += count;
  }
  parameter.shape = {rows, columns};
  parameter.init = init;
  return parameter;
}

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_DECLARE_H_
