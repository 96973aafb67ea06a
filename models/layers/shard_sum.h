#ifndef TESSERA_MODELS_LAYERS_SHARD_SUM_H_
#define TESSERA_MODELS_LAYERS_SHARD_SUM_H_

// Sums over virtual shards, at the end of a tensor-parallel region: forward (row-parallel products)
// and backward (gradients of the inputs of column-parallel products). Terms are rounded to fp32 and
// added in the tree T(0, S), first within the rank and then over ranks; the sum is rounded to the
// compute dtype once. With one shard there is a single product, computed directly in the compute
// dtype.
//
// Legend: R rows, r of them on this rank, C channels.

#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "models/layers/pass.h"

namespace tessera {

// Whether a sum needs memory besides its result.
bool NeedsSumScratch(const Pass& pass, DType compute_dtype);

// out [r,C] = the sum over all ranks' `products` [R,C], one per shard, plus `bias` [C] (may be
// empty). `scratch` [R,C] in SumDType, if NeedsSumScratch.
absl::Status SumOverShards(const Pass& pass, std::span<const MatMulOperands> products,
                           const TensorView& bias, const TensorView& scratch, const TensorView& out,
                           std::string_view what);

// The same in two steps, for products that are computed in chunks of rows.
//
// The memory for this rank's part of the sum [R,C]: `scratch`, or `out` itself.
TensorView PartialSumPlace(const Pass& pass, const TensorView& scratch, const TensorView& out);
// partial [rows,C] = the sum of this rank's products.
void AddLocalShards(const Pass& pass, std::span<const MatMulOperands> products,
                    const TensorView& partial);
// Precondition: `partial` [R,C] is the result of PartialSumPlace.
absl::Status FinishShardSum(const Pass& pass, const TensorView& partial, const TensorView& bias,
                            const TensorView& out, std::string_view what);

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_SHARD_SUM_H_
