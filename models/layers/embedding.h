#ifndef TESSERA_MODELS_LAYERS_EMBEDDING_H_
#define TESSERA_MODELS_LAYERS_EMBEDDING_H_

// Legend: T sequence, R = B*T rows, r of them on this rank, C channels.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "compute/parallel/tensor_parallel.h"
#include "layout/partition.h"
#include "models/layers/arena.h"
#include "models/layers/parameter.h"
#include "models/layers/pass.h"

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

// The embedding x[r,C] = dropout(table[ids] + positions[r % T]). Positions are as in GPT-2; null
// for none.
class Embedding {
 public:
  // Temporary memory of one Forward or Backward; empty for one shard.
  struct Scratch {
    TensorView shard;  // [R,C]: rows of one virtual shard, if there are several here
    TensorView all;    // [R,C]: all rows, if they are split
  };

  // `shards` are this rank's virtual shards of the table.
  Embedding(std::vector<VocabularyShard> shards, Parameter* positions, DropoutSite dropout)
      : shards_(std::move(shards)), positions_(positions), dropout_(dropout) {}

  Scratch LayOutScratch(Arena& arena, const Pass& pass, DType dtype) const;

  absl::Status Forward(const Pass& pass, const TensorView& ids, const Scratch& scratch,
                       const TensorView& x) const;
  // Computes the gradients of the parameters. d_x [r,C] is overwritten (by the dropout). The
  // table's gradient is always accumulated: `table_has_gradient` is true if it already holds a
  // contribution (of a tied head or an earlier micro-batch), and false if it must be cleared first.
  absl::Status Backward(const Pass& pass, const TensorView& ids, const Scratch& scratch,
                        const TensorView& d_x, bool table_has_gradient, bool accumulate) const;

 private:
  int64_t channels() const { return shards_[0].table->shape[1]; }
  void AddPositions(const Pass& pass, const TensorView& x) const;
  void BackwardPositions(const Pass& pass, const TensorView& d_x, bool accumulate) const;

  std::vector<VocabularyShard> shards_;
  Parameter* positions_;
  DropoutSite dropout_;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_EMBEDDING_H_
