#include "models/layers/embedding.h"

#include <algorithm>

#include "base/status_macros.h"
#include "models/layers/declare.h"

namespace tessera {

Embedding::Scratch Embedding::LayOutScratch(Arena& arena, const Pass& pass, DType dtype) const {
  const Shape shape = {pass.rows(), channels()};
  Scratch scratch;
  if (shards_.size() > 1) scratch.shard = arena.Take(dtype, shape);
  if (pass.splits_rows()) scratch.all = arena.Take(dtype, shape);
  return scratch;
}

absl::Status Embedding::Forward(const Pass& pass, const TensorView& ids, const Scratch& scratch,
                                const TensorView& x) const {
  Backend& backend = pass.backend;
  const TensorView& all = pass.splits_rows() ? scratch.all : x;
  // Every row is in one shard and zero in the others, so the sum is exact.
  for (size_t i = 0; i < shards_.size(); ++i) {
    const VocabularyShard& shard = shards_[i];
    const TensorView& found = i == 0 ? all : scratch.shard;
    backend.EmbeddingForward({shard.table->value, ids, shard.first_id, found});
    if (i > 0) backend.Add({all, found, all});
  }
  if (pass.splits_rows()) {
    TESSERA_RETURN_IF_ERROR(pass.tensor_parallel.ReduceScatter(all, "embeddings"));
    backend.Copy({pass.OwnRows(all), x});
  } else {
    TESSERA_RETURN_IF_ERROR(pass.tensor_parallel.AllReduce(all, "embeddings"));
  }
  if (positions_ != nullptr) AddPositions(pass, x);
  dropout_.Apply(pass, x);
  return absl::OkStatus();
}

// This rank's rows may begin and end within a sequence: whole sequences are added in one call.
void Embedding::AddPositions(const Pass& pass, const TensorView& x) const {
  const int64_t rows = x.dim(0), sequence = pass.sequence;
  for (int64_t row = 0; row < rows;) {
    const int64_t first = (pass.first_own_row() + row) % sequence;
    const int64_t whole = first == 0 ? (rows - row) / sequence * sequence : 0;
    const int64_t count = whole > 0 ? whole : std::min(sequence - first, rows - row);
    const int64_t positions = std::min(count, sequence);
    const int64_t begin = pass.first_position + first;
    pass.backend.AddPositions({positions_->value.Slice(0, begin, begin + positions), positions,
                               x.Slice(0, row, row + count)});
    row += count;
  }
}

absl::Status Embedding::Backward(const Pass& pass, const TensorView& ids, const Scratch& scratch,
                                 const TensorView& d_x, bool table_has_gradient,
                                 bool accumulate) const {
  Backend& backend = pass.backend;
  dropout_.Apply(pass, d_x);
  TensorView all = d_x;
  if (pass.splits_rows()) {
    all = scratch.all;
    backend.Copy({d_x, pass.OwnRows(all)});
    TESSERA_RETURN_IF_ERROR(pass.GatherRows(all, "gradient of embeddings"));
  }
  for (const VocabularyShard& shard : shards_) {
    if (!table_has_gradient) backend.Fill({shard.table->grad, 0});
    backend.EmbeddingBackward({all, ids, shard.first_id, shard.table->grad, pass.units});
  }
  if (positions_ != nullptr) BackwardPositions(pass, all, accumulate);
  return absl::OkStatus();
}

void Embedding::BackwardPositions(const Pass& pass, const TensorView& d_x, bool accumulate) const {
  const TensorView& d_positions = positions_->grad;
  pass.backend.AddPositionsBackward(
      {d_x, pass.sequence, d_positions.Slice(0, 0, pass.sequence), accumulate, pass.units});
  // Positions beyond this micro-batch's sequence have no gradient; it must be set to zero here.
  if (!accumulate && pass.sequence < d_positions.dim(0)) {
    pass.backend.Fill({d_positions.Slice(0, pass.sequence, d_positions.dim(0)), 0});
  }
}

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
