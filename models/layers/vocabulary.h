#ifndef TESSERA_MODELS_LAYERS_VOCABULARY_H_
#define TESSERA_MODELS_LAYERS_VOCABULARY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "compute/parallel/tensor_parallel.h"
#include "layout/partition.h"
#include "models/layers/parameter.h"

namespace tessera {

// One virtual shard of a table over the vocabulary: rows [first_id, first_id + rows), including the
// padding at the end of the vocabulary.
struct VocabularyShard {
  Parameter* table = nullptr;  // [rows,C]
  int64_t first_id = 0;
  int64_t valid = 0;  // rows that are tokens; may be 0
};

struct TableDeclaration {
  std::string name;
  int64_t vocab_size = 0;
  int64_t padded_rows = 0;  // a multiple of the number of virtual shards
  int64_t channels = 0;
  Place place;
  Initialization init;
  std::string tied_name;
  bool has_second_grad = false;
};

// Declares this rank's virtual shards, in order.
std::vector<VocabularyShard> DeclareTable(const TableDeclaration& declaration,
                                          const TensorParallel& tensor_parallel, ParameterSet& set);

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_VOCABULARY_H_
