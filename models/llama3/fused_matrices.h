#ifndef TESSERA_MODELS_LLAMA3_FUSED_MATRICES_H_
#define TESSERA_MODELS_LLAMA3_FUSED_MATRICES_H_

// Matrices in which frameworks fuse logical tensors, or reorder their rows.

#include <cstdint>
#include <string>
#include <string_view>

#include "layout/foreign_parameter.h"
#include "models/config/config.pb.h"

namespace tessera::llama3 {

// The order of the rows of a query's or a key's head.
enum class RotaryRows {
  kHalves,  // as here: the rotary embedding pairs row i with row i + head_size / 2
  kPairs,   // row 2i + j of the framework is row i + j * head_size / 2 here
};

// Adds `heads` heads, from row `row` on of a query's or key's logical tensor, to the parameter from
// its row `foreign_row` on.
void AddHeads(const ModelConfig& config, RotaryRows order, const std::string& logical_name,
              int64_t row, int64_t heads, int64_t foreign_row, ForeignParameter& parameter);

// Returns the parameter of a logical tensor of a layer in a framework that fuses none and has the
// rows of queries and keys in pairs.
ForeignParameter PairedTensor(const ModelConfig& config, int64_t layer, std::string_view tensor,
                              std::string name);

// Returns the matrix of queries, keys and values of a layer that has, for each query group, its
// queries, its key and its value, as rows or, in frameworks that transpose, as columns. Tensor
// parallelism cuts these rows or columns.
ForeignParameter FusedQkv(const ModelConfig& config, std::string name, int64_t layer,
                          RotaryRows order, bool transposed);

// Returns the matrix that has gate and up as its halves, by rows or columns. Tensor parallelism
// cuts each half.
ForeignParameter FusedGateUp(const ModelConfig& config, std::string name, int64_t layer,
                             bool transposed);

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_FUSED_MATRICES_H_
