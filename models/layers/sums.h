#ifndef TESSERA_MODELS_LAYERS_SUMS_H_
#define TESSERA_MODELS_LAYERS_SUMS_H_

// Sums over virtual shards, at the end of a tensor-parallel region: forward (row-parallel products)
// and backward (gradients of the inputs of column-parallel products). Terms are rounded to fp32 and
// added in the tree T(0, S), first within the rank and then over ranks; the sum is rounded to the
// compute dtype once. With one shard there is a single product, computed directly in the compute
// dtype.
//
// Legend: R rows, r of them on this rank, C channels.

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "models/layers/arena.h"
#include "models/layers/pass.h"

namespace tessera {

// Returns whether a sum needs memory besides its result.
bool NeedsSumScratch(const Pass& pass, DType compute_dtype);

// Sets out [r,C] to the sum over all ranks' `products` [R,C], one per shard, plus `bias` [C] (may
// be empty). `scratch` [R,C] in SumDType, if NeedsSumScratch.
absl::Status SumOverShards(const Pass& pass, std::span<const MatMulOperands> products,
                           const TensorView& bias, const TensorView& scratch, const TensorView& out,
                           std::string_view what);

// SumOverShards() in steps, for products that are computed in chunks of rows.
//
// Returns the memory for this rank's part of the sum [R,C]: `scratch`, or `out` itself.
TensorView PartialSumPlace(const Pass& pass, const TensorView& scratch, const TensorView& out);
// Sets partial [rows,C] to the sum of this rank's products.
void AddLocalShards(const Pass& pass, std::span<const MatMulOperands> products,
                    const TensorView& partial);
// Completes the sum. Precondition: `partial` [R,C] is the result of PartialSumPlace().
absl::Status FinishShardSum(const Pass& pass, const TensorView& partial, const TensorView& bias,
                            const TensorView& out, std::string_view what);

// Sums over the rows of a micro-batch by canonical unit (Pass). With one unit, each function is the
// plain operation; with several units, it overwrites its result.

// Returns part i of the first dim of x, without that dim.
inline TensorView PartOf(const TensorView& x, int64_t i) {
  return x.Slice(0, i, i + 1).Reshape(Shape(x.shape().begin() + 1, x.shape().end()));
}

// Replaces part `begin` of the first dim by T(begin, end) of the parts.
void AddInTree(Backend& backend, const TensorView& parts, int64_t begin, int64_t end);

// Computes c[M,N] = a^T b for a [rows,M] and b [rows,N], whose rows are `units` units.
void MultiplyOverRows(Backend& backend, const TensorView& a, const TensorView& b, int64_t units,
                      const TensorView& c, bool accumulate);
inline void MultiplyOverRows(const Pass& pass, const TensorView& a, const TensorView& b,
                             const TensorView& c, bool accumulate) {
  MultiplyOverRows(pass.backend, a, b, pass.units, c, accumulate);
}

// Returns memory for SumRows() of up to `columns`; empty for one unit.
TensorView UnitSums(Arena& arena, const Pass& pass, DType dtype, int64_t columns);
// Computes sum[N], the sum of the rows of x [R,N].
void SumRows(const Pass& pass, const TensorView& x, const TensorView& sums, const TensorView& sum,
             bool accumulate);

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_SUMS_H_
