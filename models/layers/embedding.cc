#include "models/layers/embedding.h"

namespace tessera {

void Embedding::Forward(const Pass& pass, const TensorView& ids, const TensorView& x) const {
  pass.backend.EmbeddingForward(table_->value, ids, /*first_id=*/0, x);
  if (positions_ != nullptr) {
    pass.backend.AddPositions(positions_->value.Slice(0, 0, pass.sequence), pass.sequence, x);
  }
  dropout_.Apply(pass, x);
}

void Embedding::Backward(const Pass& pass, const TensorView& ids, const TensorView& d_x,
                         bool table_has_gradient, bool accumulate) const {
  dropout_.Apply(pass, d_x);
  if (!table_has_gradient) pass.backend.Fill(table_->grad, 0);
  pass.backend.EmbeddingBackward(d_x, ids, /*first_id=*/0, table_->grad);
  if (positions_ == nullptr) return;
  const TensorView& d_positions = positions_->grad;
  pass.backend.AddPositionsBackward(d_x, pass.sequence, d_positions.Slice(0, 0, pass.sequence),
                                    accumulate);
  // Positions beyond this micro-batch's sequence have no gradient, and nobody else would say so.
  if (!accumulate && pass.sequence < d_positions.dim(0)) {
    pass.backend.Fill(d_positions.Slice(0, pass.sequence, d_positions.dim(0)), 0);
  }
}

}  // namespace tessera
