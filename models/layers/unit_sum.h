#ifndef TESSERA_MODELS_LAYERS_UNIT_SUM_H_
#define TESSERA_MODELS_LAYERS_UNIT_SUM_H_

// Sums over the rows of a micro-batch by canonical unit (Pass). With one unit each is the plain
// operation; with several it overwrites its result.

#include <cstdint>

#include "models/layers/arena.h"
#include "models/layers/pass.h"

namespace tessera {

// Part i of the first dim of x, without that dim.
inline TensorView PartOf(const TensorView& x, int64_t i) {
  return x.Slice(0, i, i + 1).Reshape(Shape(x.shape().begin() + 1, x.shape().end()));
}

// Replaces part `begin` of the first dim by T(begin, end) of the parts.
void AddInTree(Backend& backend, const TensorView& parts, int64_t begin, int64_t end);

// c[M,N] = a^T b for a [rows,M] and b [rows,N], whose rows are `units` units.
void MultiplyOverRows(Backend& backend, const TensorView& a, const TensorView& b, int64_t units,
                      const TensorView& c, bool accumulate);
inline void MultiplyOverRows(const Pass& pass, const TensorView& a, const TensorView& b,
                             const TensorView& c, bool accumulate) {
  MultiplyOverRows(pass.backend, a, b, pass.units, c, accumulate);
}

// Memory for SumRows() of up to `columns`; empty for one unit.
TensorView UnitSums(Arena& arena, const Pass& pass, DType dtype, int64_t columns);
// sum[N] = the rows of x [R,N].
void SumRows(const Pass& pass, const TensorView& x, const TensorView& sums, const TensorView& sum,
             bool accumulate);

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_UNIT_SUM_H_
