#ifndef TESSERA_MODELS_LAYERS_SHARD_SUM_H_
#define TESSERA_MODELS_LAYERS_SHARD_SUM_H_

// Sums over virtual shards: what ends a tensor-parallel region, forward (row-parallel products) and
// backward (gradients of what column-parallel products read). Terms are rounded to fp32 and added
// in the tree T(0, S), inside the rank and then over ranks; the sum is rounded to the compute dtype
// once. With one shard there is one product, and it goes straight to the compute dtype.
//
// Legend: R rows, r of them on this rank, C channels.

#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "models/layers/pass.h"

namespace tessera {

// Whether a sum needs memory besides its result.
bool NeedsSumScratch(const Pass& pass, DType compute_dtype);

// out [r,C] = the sum over all ranks' `products` [R,C], one a shard, plus `bias` [C] (may be
// empty). `scratch` [R,C] in SumDType, where NeedsSumScratch.
absl::Status SumOverShards(const Pass& pass, std::span<const MatMulOperands> products,
                           const TensorView& bias, const TensorView& scratch, const TensorView& out,
                           std::string_view what);

// The same in two steps, for products that come in chunks of rows.
//
// Where this rank's part of the sum [R,C] goes: `scratch`, or `out` itself.
TensorView PartialSumPlace(const Pass& pass, const TensorView& scratch, const TensorView& out);
// partial [rows,C] = the sum of this rank's products.
void AddLocalShards(const Pass& pass, std::span<const MatMulOperands> products,
                    const TensorView& partial);
// `partial` [R,C] lies in PartialSumPlace.
absl::Status FinishShardSum(const Pass& pass, const TensorView& partial, const TensorView& bias,
                            const TensorView& out, std::string_view what);

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_SHARD_SUM_H_
