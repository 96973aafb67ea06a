#ifndef TESSERA_MODELS_LAYERS_EMBEDDING_H_
#define TESSERA_MODELS_LAYERS_EMBEDDING_H_

// Legend: R = B*T rows, C channels, V padded vocabulary.

#include "models/layers/parameter.h"
#include "models/layers/pass.h"

namespace tessera {

// x[R,C] = dropout(table[ids] + positions[r % T]). Positions are GPT-2's; null for none.
class Embedding {
 public:
  Embedding(Parameter& table, Parameter* positions, DropoutSite dropout)
      : table_(&table), positions_(positions), dropout_(dropout) {}

  void Forward(const Pass& pass, const TensorView& ids, const TensorView& x) const;
  // d_x [R,C] is overwritten (the dropout). The table's gradient is always added to:
  // `table_has_gradient` says whether it already holds something (a tied head's part, an earlier
  // micro-batch) or must be cleared first.
  void Backward(const Pass& pass, const TensorView& ids, const TensorView& d_x,
                bool table_has_gradient, bool accumulate) const;

 private:
  Parameter* table_;
  Parameter* positions_;
  DropoutSite dropout_;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_EMBEDDING_H_
