#include "models/layers/vocabulary.h"

#include <utility>

#include "models/layers/declare.h"

namespace tessera {

std::vector<VocabularyShard> DeclareTable(const TableDeclaration& declaration,
                                          const TensorParallel& tensor_parallel,
                                          ParameterSet& set) {
  std::vector<VocabularyShard> shards;
  for (const VirtualShard& shard : LocalShards(tensor_parallel)) {
    Parameter table =
        TableParameter(declaration.name, {declaration.vocab_size, declaration.channels},
                       declaration.padded_rows, declaration.place, shard, declaration.init);
    table.tied_name = declaration.tied_name;
    table.has_second_grad = declaration.has_second_grad;
    const int64_t first_id = shard.index * table.shape[0], valid = table.pieces[0].shape[0];
    shards.push_back({&set.Add(std::move(table)), first_id, valid});
  }
  return shards;
}

}  // namespace tessera
