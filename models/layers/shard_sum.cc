#include "models/layers/shard_sum.h"

#include "base/status_macros.h"

namespace tessera {

bool NeedsSumScratch(const Pass& pass, DType compute_dtype) {
  return pass.shards() > 1 && (pass.splits_rows() || compute_dtype != SumDType(compute_dtype));
}

TensorView PartialSumPlace(const Pass& pass, const TensorView& scratch, const TensorView& out) {
  return NeedsSumScratch(pass, out.dtype()) ? scratch : out;
}

void AddLocalShards(const Pass& pass, std::span<const MatMulOperands> products,
                    const TensorView& partial) {
  if (pass.shards() == 1) {
    pass.backend.MatMul({products[0].a, products[0].b, partial, /*accumulate=*/false});
  } else {
    pass.backend.MatMulTree({products, partial});
  }
}

absl::Status FinishShardSum(const Pass& pass, const TensorView& partial, const TensorView& bias,
                            const TensorView& out, std::string_view what) {
  if (pass.shards() == 1) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(pass.splits_rows() ? pass.tensor_parallel.ReduceScatter(partial, what)
                                             : pass.tensor_parallel.AllReduce(partial, what));
  const TensorView own = pass.OwnRows(partial);
  if (own.data() != out.data() || !bias.empty()) pass.backend.AddBias({own, bias, out});
  return absl::OkStatus();
}

absl::Status SumOverShards(const Pass& pass, std::span<const MatMulOperands> products,
                           const TensorView& bias, const TensorView& scratch, const TensorView& out,
                           std::string_view what) {
  if (pass.shards() == 1) {
    pass.backend.MatMul({products[0].a, products[0].b, out, /*accumulate=*/false, bias});
    return absl::OkStatus();
  }
  const TensorView partial = PartialSumPlace(pass, scratch, out);
  AddLocalShards(pass, products, partial);
  return FinishShardSum(pass, partial, bias, out, what);
}

}  // namespace tessera
