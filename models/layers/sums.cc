#include "models/layers/sums.h"

#include <bit>
#include <vector>

#include "base/status_macros.h"
#include "glog/logging.h"

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

void AddInTree(Backend& backend, const TensorView& parts, int64_t begin, int64_t end) {
  if (end - begin == 1) return;
  const int64_t middle =
      begin + static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(end - begin - 1)));
  AddInTree(backend, parts, begin, middle);
  AddInTree(backend, parts, middle, end);
  const TensorView sum = PartOf(parts, begin);
  backend.Add({sum, PartOf(parts, middle), sum});
}

void MultiplyOverRows(Backend& backend, const TensorView& a, const TensorView& b, int64_t units,
                      const TensorView& c, bool accumulate) {
  if (units == 1) {
    backend.MatMul({a.Transpose(0, 1), b, c, accumulate});
    return;
  }
  CHECK(!accumulate);
  const int64_t rows = a.dim(0) / units;
  std::vector<MatMulOperands> products;
  for (int64_t row = 0; row < a.dim(0); row += rows) {
    products.push_back({a.Slice(0, row, row + rows).Transpose(0, 1), b.Slice(0, row, row + rows)});
  }
  backend.MatMulTree({products, c});
}

TensorView UnitSums(Arena& arena, const Pass& pass, DType dtype, int64_t columns) {
  if (pass.units == 1) return TensorView();
  return arena.Take(SumDType(dtype), {pass.units * columns});
}

void SumRows(const Pass& pass, const TensorView& x, const TensorView& sums, const TensorView& sum,
             bool accumulate) {
  if (pass.units == 1) {
    pass.backend.SumRows({x, sum, accumulate});
    return;
  }
  CHECK(!accumulate);
  const int64_t columns = x.dim(1), rows = pass.unit_rows();
  const TensorView parts = sums.Slice(0, 0, pass.units * columns).Reshape({pass.units, columns});
  for (int64_t unit = 0; unit < pass.units; ++unit) {
    pass.backend.SumRows(
        {x.Slice(0, unit * rows, (unit + 1) * rows), PartOf(parts, unit), /*accumulate=*/false});
  }
  AddInTree(pass.backend, parts, 0, pass.units);
  pass.backend.Copy({PartOf(parts, 0), sum});
}

}  // namespace tessera
