#ifndef TESSERA_MODELS_LAYERS_SPLIT_NORM_H_
#define TESSERA_MODELS_LAYERS_SPLIT_NORM_H_

// Norms between tensor-parallel regions, over a rank's own rows.
//
// The gradient of a norm's weights is a sum over rows, which sequence parallelism splits. To make
// its bits independent of the split, it is always computed over S blocks of the rows of a canonical
// unit (fewer if it has fewer rows), which are added in the tree over all blocks of all units.
//
// Legend: R rows, r of them on this rank, C channels, W weight vectors of a norm (1 or 2).

#include <span>

#include "absl/status/status.h"
#include "models/layers/arena.h"
#include "models/layers/norm.h"
#include "models/layers/pass.h"

namespace tessera {

// A norm and the memory of its results.
struct NormPlace {
  const Norm* norm = nullptr;
  TensorView out;    // [R,C], the rows of every rank
  TensorView stats;  // [1|2, r]
};

// The norm of the rows x [r,C] of every rank.
absl::Status NormForward(const Pass& pass, const TensorView& x, const NormPlace& to);
// sum [r,C] = a + b, either of which it may be, and the norm of the sum: the same bits as one after
// the other.
absl::Status AddNormForward(const Pass& pass, const TensorView& a, const TensorView& b,
                            const TensorView& sum, const NormPlace& to);

// Memory for the backward passes of norms whose weight gradients are completed together, in one
// message. All norms have the same C and W.
class NormGradients {
 public:
  NormGradients() = default;
  // For `count` norms like this one. Empty for one block.
  NormGradients(Arena& arena, const Pass& pass, DType dtype, const Norm& norm, int count);

  // Backward of norm number `index` over this rank's rows.
  void Backward(const Pass& pass, const Norm& norm, int index, const TensorView& d_out,
                const TensorView& x, const TensorView& stats, const TensorView& d_x,
                bool accumulate_dx, bool accumulate) const;
  // Accumulates the results of the Backward calls into the parameters' gradients, or overwrites
  // them. `norms`: all, by index.
  absl::Status Finish(const Pass& pass, std::span<const Norm* const> norms, bool accumulate) const;

 private:
  TensorView blocks_;  // [blocks of this rank, W, C]
  TensorView sums_;    // [norms, W, C]
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_SPLIT_NORM_H_
