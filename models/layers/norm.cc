#include "models/layers/norm.h"

#include <algorithm>

#include "base/status_macros.h"
#include "models/layers/sums.h"

namespace tessera {
namespace {

// Row `i` of the [n, R] statistics, as [R].
TensorView Statistic(const TensorView& stats, int64_t i) {
  return stats.Slice(0, i, i + 1).Reshape({stats.dim(1)});
}

// The blocks [first, first + count) of `all`, which contain this rank's rows.
struct RowBlocks {
  int64_t all = 0;
  int64_t first = 0;
  int64_t count = 0;
};

int64_t BlocksPerUnit(const Pass& pass) {
  return std::min<int64_t>(pass.shards(), pass.unit_rows());
}

RowBlocks BlocksOf(const Pass& pass) {
  const int64_t all = pass.units * BlocksPerUnit(pass);
  if (!pass.splits_rows()) return {all, 0, all};
  const int64_t count = all / pass.tensor_parallel.size();
  return {all, count * pass.tensor_parallel.rank(), count};
}

// Returns whether there is a single block.
bool IsWhole(const Pass& pass) { return pass.units == 1 && pass.shards() == 1; }

Norm::Gradients VectorsOf(const TensorView& x) {
  return {PartOf(x, 0), x.dim(0) > 1 ? PartOf(x, 1) : TensorView()};
}

void AddOrCopy(Backend& backend, const TensorView& from, const TensorView& to, bool accumulate) {
  if (to.empty()) return;
  if (accumulate) {
    backend.Add({to, from, to});
  } else {
    backend.Copy({from, to});
  }
}

}  // namespace

LayerNorm::LayerNorm(Parameter& weight, Parameter* bias, double epsilon, const Device& device)
    : weight_(&weight), bias_(bias), epsilon_(epsilon) {
  if (bias != nullptr) return;
  const DType dtype = weight.value.dtype();
  no_bias_ = Tensor(dtype, weight.shape, device);
  unused_gradient_ = Tensor(SumDType(dtype), weight.shape, device);
}

void LayerNorm::Forward(Backend& backend, const TensorView& x, const TensorView& out,
                        const TensorView& stats) const {
  backend.LayerNormForward(
      {x, weight_->value, bias(), epsilon_, out, Statistic(stats, 0), Statistic(stats, 1)});
}

void LayerNorm::AddForward(Backend& backend, const TensorView& a, const TensorView& b,
                           const TensorView& sum, const TensorView& out,
                           const TensorView& stats) const {
  backend.AddLayerNormForward(
      {a, b, sum, weight_->value, bias(), epsilon_, out, Statistic(stats, 0), Statistic(stats, 1)});
}

void LayerNorm::Backward(Backend& backend, const TensorView& d_out, const TensorView& x,
                         const TensorView& stats, const TensorView& d_x, bool accumulate_dx,
                         const Gradients& gradients, bool accumulate) const {
  backend.LayerNormBackward({d_out, x, weight_->value, Statistic(stats, 0), Statistic(stats, 1),
                             d_x, accumulate_dx, gradients.weight, gradients.bias, accumulate});
}

void RmsNorm::Forward(Backend& backend, const TensorView& x, const TensorView& out,
                      const TensorView& stats) const {
  backend.RmsNormForward({x, weight_->value, epsilon_, out, Statistic(stats, 0)});
}

void RmsNorm::AddForward(Backend& backend, const TensorView& a, const TensorView& b,
                         const TensorView& sum, const TensorView& out,
                         const TensorView& stats) const {
  backend.AddRmsNormForward({a, b, sum, weight_->value, epsilon_, out, Statistic(stats, 0)});
}

void RmsNorm::Backward(Backend& backend, const TensorView& d_out, const TensorView& x,
                       const TensorView& stats, const TensorView& d_x, bool accumulate_dx,
                       const Gradients& gradients, bool accumulate) const {
  backend.RmsNormBackward({d_out, x, weight_->value, Statistic(stats, 0), d_x, accumulate_dx,
                           gradients.weight, accumulate});
}

absl::Status NormForward(const Pass& pass, const TensorView& x, const NormPlace& to) {
  to.norm->Forward(pass.backend, x, pass.OwnRows(to.out), to.stats);
  return pass.GatherRows(to.out, "normalised rows");
}

absl::Status AddNormForward(const Pass& pass, const TensorView& a, const TensorView& b,
                            const TensorView& sum, const NormPlace& to) {
  to.norm->AddForward(pass.backend, a, b, sum, pass.OwnRows(to.out), to.stats);
  return pass.GatherRows(to.out, "normalised rows");
}

NormGradients::NormGradients(Arena& arena, const Pass& pass, DType dtype, const Norm& norm,
                             int count) {
  if (IsWhole(pass)) return;
  const int64_t vectors = norm.gradient_vectors(), channels = norm.channels();
  blocks_ = arena.Take(SumDType(dtype), {BlocksOf(pass).count, vectors, channels});
  sums_ = arena.Take(SumDType(dtype), {count, vectors, channels});
}

void NormGradients::Backward(const Pass& pass, const Norm& norm, int index, const TensorView& d_out,
                             const TensorView& x, const TensorView& stats, const TensorView& d_x,
                             bool accumulate_dx, bool accumulate) const {
  if (IsWhole(pass)) {
    norm.Backward(pass.backend, d_out, x, stats, d_x, accumulate_dx, norm.gradients(), accumulate);
    return;
  }
  const RowBlocks blocks = BlocksOf(pass);
  const int64_t per_unit = BlocksPerUnit(pass);
  const auto first_row = [&](int64_t own_block) {
    const int64_t block = blocks.first + own_block, unit = block / per_unit;
    return unit * pass.unit_rows() + block % per_unit * pass.unit_rows() / per_unit -
           pass.first_own_row();
  };
  for (int64_t i = 0; i < blocks.count; ++i) {
    const int64_t begin = first_row(i), end = first_row(i + 1);
    norm.Backward(pass.backend, d_out.Slice(0, begin, end), x.Slice(0, begin, end),
                  stats.Slice(1, begin, end), d_x.Slice(0, begin, end), accumulate_dx,
                  VectorsOf(PartOf(blocks_, i)), /*accumulate=*/false);
  }
  AddInTree(pass.backend, blocks_, 0, blocks.count);
  pass.backend.Copy({PartOf(blocks_, 0), PartOf(sums_, index)});
}

absl::Status NormGradients::Finish(const Pass& pass, std::span<const Norm* const> norms,
                                   bool accumulate) const {
  if (IsWhole(pass)) return absl::OkStatus();
  if (pass.splits_rows()) {
    TESSERA_RETURN_IF_ERROR(pass.tensor_parallel.AllReduce(sums_, "gradients of norms"));
  }
  for (size_t i = 0; i < norms.size(); ++i) {
    const Norm::Gradients from = VectorsOf(PartOf(sums_, static_cast<int64_t>(i)));
    const Norm::Gradients to = norms[i]->gradients();
    AddOrCopy(pass.backend, from.weight, to.weight, accumulate);
    AddOrCopy(pass.backend, from.bias, to.bias, accumulate);
  }
  return absl::OkStatus();
}

}  // namespace tessera
