#ifndef TESSERA_CONVERT_MEGATRON_LAYER_NAME_H_
#define TESSERA_CONVERT_MEGATRON_LAYER_NAME_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::ckpt::convert {

// A tensor's name with the number of its layer taken out: the first part that is a number.
struct LayerName {
  std::string before;  // "decoder.layers."
  int64_t layer = -1;  // -1: the tensor is of no layer, and `before` is the whole name
  std::string after;   // ".mlp.linear_fc1.weight"
};

LayerName SplitLayer(std::string_view name);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_LAYER_NAME_H_
