#include "layout/foreign_parameter.h"

#include <utility>

namespace tessera {

ForeignParameter SameTensor(std::string name, std::string logical_name, Shape shape,
                            int tensor_parallel_dim) {
  const Shape zeros(shape.size(), 0);
  return {.name = std::move(name),
          .shape = shape,
          .tensor_parallel_dim = tensor_parallel_dim,
          .blocks = {{.name = std::move(logical_name),
                      .offset = zeros,
                      .shape = std::move(shape),
                      .foreign_offset = zeros}}};
}

ForeignParameter TransposedMatrix(std::string name, std::string logical_name, int64_t rows,
                                  int64_t columns, int tensor_parallel_dim) {
  return {.name = std::move(name),
          .shape = {columns, rows},
          .tensor_parallel_dim = tensor_parallel_dim,
          .blocks = {{.name = std::move(logical_name),
                      .offset = {0, 0},
                      .shape = {rows, columns},
                      .foreign_offset = {0, 0},
                      .transposed = true}}};
}

ForeignParameter StackLayers(std::string name, const std::vector<ForeignParameter>& layers) {
  ForeignParameter stack = layers.front();
  stack.name = std::move(name);
  stack.shape.insert(stack.shape.begin(), static_cast<int64_t>(layers.size()));
  if (stack.tensor_parallel_dim >= 0) ++stack.tensor_parallel_dim;
  stack.blocks.clear();
  stack.other_names.clear();
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (ForeignBlock block : layers[layer].blocks) {
      block.foreign_offset.insert(block.foreign_offset.begin(), static_cast<int64_t>(layer));
      if (!block.foreign_step.empty()) block.foreign_step.insert(block.foreign_step.begin(), 1);
      stack.blocks.push_back(std::move(block));
    }
  }
  return stack;
}

}  // namespace tessera
