#include "models/layers/transformer_block.h"

#include <algorithm>

#include "base/status_macros.h"
#include "glog/logging.h"
#include "models/layers/sums.h"

namespace tessera {
namespace {

enum NormIndex { kAttentionNorm, kMlpNorm, kNorms };

}  // namespace

TransformerBlock::SavedActivations TransformerBlock::LayOutSaved(Arena& arena, const Pass& pass,
                                                                 DType dtype, bool norms) const {
  const int64_t rows = pass.rows(), own_rows = pass.own_rows();
  const DType stats = SumDType(dtype);
  SavedActivations saved;
  if (norms) {
    saved.attention_normed = arena.Take(dtype, {rows, parts_.attention_norm->channels()});
    saved.mlp_normed = arena.Take(dtype, {rows, parts_.mlp_norm->channels()});
  }
  saved.attention_norm_stats = arena.Take(stats, {parts_.attention_norm->statistics(), own_rows});
  for (const AttentionShard& shard : parts_.attention) {
    saved.attention.push_back(
        {.qkv = arena.Take(dtype, {rows, shard.qkv.out_features()}),
         .out = arena.Take(dtype, {rows, shard.projection.in_features()}),
         .log_sum_exp =
             arena.Take(stats, {pass.batch, shard.attention.shape().heads, pass.sequence})});
  }
  saved.mid = arena.Take(dtype, {own_rows, parts_.mlp_norm->channels()});
  saved.mlp_norm_stats = arena.Take(stats, {parts_.mlp_norm->statistics(), own_rows});
  for (const MlpShard& shard : parts_.mlp) {
    saved.mlp.push_back({.up = arena.Take(dtype, {rows, shard.up.out_features()}),
                         .act = arena.Take(dtype, {rows, shard.down.in_features()})});
  }
  return saved;
}

// Returns the length of the longest bias, or of a vector as long.
int64_t TransformerBlock::WidestSum() const {
  return std::max({parts_.attention_norm->channels(), parts_.mlp.front().up.out_features(),
                   parts_.attention.front().qkv.out_features()});
}

TransformerBlock::Scratch TransformerBlock::LayOutScratch(Arena& arena, const Pass& pass,
                                                          DType dtype, bool backward) const {
  const int64_t rows = pass.rows();
  const Shape hidden = {rows, parts_.attention_norm->channels()};
  Scratch scratch;
  int64_t mark = arena.Mark();
  scratch.normed = arena.Take(dtype, hidden);
  if (NeedsSumScratch(pass, dtype)) {
    arena.Rewind(mark);
    scratch.sum = arena.Take(SumDType(dtype), hidden);
  }
  if (!backward) return scratch;
  scratch.d_branch = arena.Take(dtype, hidden);
  scratch.norms = NormGradients(arena, pass, dtype, *parts_.attention_norm, kNorms);
  scratch.unit_sums = UnitSums(arena, pass, dtype, WidestSum());
  mark = arena.Mark();
  scratch.d_attention_out =
      arena.Take(dtype, {rows, parts_.attention.front().projection.in_features()});
  for (const AttentionShard& shard : parts_.attention) {
    scratch.d_qkv.push_back(arena.Take(dtype, {rows, shard.qkv.out_features()}));
  }
  arena.Rewind(mark);
  const bool in_place = parts_.activation == Activation::kGelu;
  for (const MlpShard& shard : parts_.mlp) {
    const bool own = in_place || scratch.d_act.empty();
    scratch.d_act.push_back(own ? arena.Take(dtype, {rows, shard.down.in_features()})
                                : scratch.d_act.front());
    scratch.d_up.push_back(in_place ? scratch.d_act.back()
                                    : arena.Take(dtype, {rows, shard.up.out_features()}));
  }
  return scratch;
}

absl::Status TransformerBlock::Forward(const Pass& pass, const TensorView& x,
                                       const SavedActivations& saved, const Scratch& scratch,
                                       const TensorView& y, const NormPlace& next,
                                       const std::vector<Tensor>* cache) const {
  TESSERA_RETURN_IF_ERROR(ForwardSaved(pass, x, saved, scratch, cache));
  std::vector<MatMulOperands> products;
  for (size_t i = 0; i < parts_.mlp.size(); ++i) {
    products.push_back(parts_.mlp[i].down.ForwardTerm(saved.mlp[i].act));
  }
  return AddResidual(pass, parts_.mlp_residual, products, saved.mid, scratch.sum, y, next);
}

std::vector<Tensor> TransformerBlock::NewCache(int64_t tokens, DType dtype, Device device) const {
  std::vector<Tensor> cache;
  for (const AttentionShard& shard : parts_.attention) {
    const AttentionShape& shape = shard.attention.shape();
    cache.emplace_back(dtype, Shape{1, tokens, 2 * shape.key_value_heads, shape.head_size}, device);
  }
  return cache;
}

absl::Status TransformerBlock::Recompute(const Pass& pass, const TensorView& x,
                                         const SavedActivations& saved,
                                         const Scratch& scratch) const {
  TESSERA_RETURN_IF_ERROR(NormForward(pass, x, InputNorm(saved, scratch)));
  return ForwardSaved(pass, x, saved, scratch, /*cache=*/nullptr);
}

// Computes all of `saved` from the norm of x.
absl::Status TransformerBlock::ForwardSaved(const Pass& pass, const TensorView& x,
                                            const SavedActivations& saved, const Scratch& scratch,
                                            const std::vector<Tensor>* cache) const {
  std::vector<MatMulOperands> products;
  for (size_t i = 0; i < parts_.attention.size(); ++i) {
    const AttentionShard& shard = parts_.attention[i];
    const AttentionShard::SavedActivations& own = saved.attention[i];
    shard.qkv.Forward(pass.backend, InputNorm(saved, scratch).out, own.qkv);
    shard.attention.Forward(pass, own.qkv, cache == nullptr ? TensorView() : (*cache)[i].view(),
                            own.out, own.log_sum_exp);
    products.push_back(shard.projection.ForwardTerm(own.out));
  }
  TESSERA_RETURN_IF_ERROR(AddResidual(pass, parts_.attention_residual, products, x, scratch.sum,
                                      saved.mid, MlpNorm(saved, scratch)));
  for (size_t i = 0; i < parts_.mlp.size(); ++i) {
    ForwardActivated(parts_.activation, pass.backend, parts_.mlp[i].up, MlpNorm(saved, scratch).out,
                     saved.mlp[i].up, saved.mlp[i].act);
  }
  return absl::OkStatus();
}

// out [r,C] = residual + dropout(sum over shards + bias), and its norm if there is a next one.
absl::Status TransformerBlock::AddResidual(const Pass& pass, const ResidualAdd& add,
                                           std::span<const MatMulOperands> products,
                                           const TensorView& residual, const TensorView& sum,
                                           const TensorView& out, const NormPlace& next) const {
  const TensorView bias = add.bias == nullptr ? TensorView() : add.bias->value;
  TESSERA_RETURN_IF_ERROR(SumOverShards(pass, products, bias, sum, out, "output of a branch"));
  add.dropout.Apply(pass, out);
  if (next.norm != nullptr) return AddNormForward(pass, residual, out, out, next);
  pass.backend.Add({residual, out, out});
  return absl::OkStatus();
}

// Returns the gradient [R,C] of the sum over shards, given that of the block's output, d [r,C]. It
// is d itself, or a copy in `buffer` [R,C] with dropped elements zeroed and with the rows of other
// ranks.
absl::StatusOr<TensorView> TransformerBlock::BackwardResidual(const Pass& pass,
                                                              const ResidualAdd& add,
                                                              const TensorView& d,
                                                              const TensorView& buffer) const {
  TensorView d_sum = d;
  if (add.dropout.active(pass) || pass.splits_rows()) {
    pass.backend.Copy({d, pass.OwnRows(buffer)});
    add.dropout.Apply(pass, pass.OwnRows(buffer));
    TESSERA_RETURN_IF_ERROR(pass.GatherRows(buffer, "gradient of a branch"));
    d_sum = buffer;
  }
  return d_sum;
}

// d [r,C] += the gradient of x, the norm's input; `products` [R,C] are the shards' parts of that of
// the norm's output.
absl::Status TransformerBlock::BackwardNorm(const Pass& pass, int norm,
                                            std::span<const MatMulOperands> products,
                                            const TensorView& x, const TensorView& stats,
                                            const Scratch& scratch, bool accumulate,
                                            const TensorView& d) const {
  const TensorView d_normed = scratch.d_branch.Slice(0, 0, pass.own_rows());
  TESSERA_RETURN_IF_ERROR(SumOverShards(pass, products, /*bias=*/{}, scratch.sum, d_normed,
                                        "gradient of normalised rows"));
  scratch.norms.Backward(pass, norm == kMlpNorm ? *parts_.mlp_norm : *parts_.attention_norm, norm,
                         d_normed, x, stats, d, /*accumulate_dx=*/true, accumulate);
  return absl::OkStatus();
}

absl::Status TransformerBlock::Backward(const Pass& pass, const TensorView& x,
                                        const SavedActivations& saved, const Scratch& scratch,
                                        bool accumulate, const TensorView& d) const {
  TESSERA_RETURN_IF_ERROR(BackwardMlp(pass, saved, scratch, accumulate, d));
  TESSERA_RETURN_IF_ERROR(BackwardAttention(pass, x, saved, scratch, accumulate, d));
  const Norm* norms[kNorms] = {parts_.attention_norm.get(), parts_.mlp_norm.get()};
  return scratch.norms.Finish(pass, norms, accumulate);
}

absl::Status TransformerBlock::BackwardMlp(const Pass& pass, const SavedActivations& saved,
                                           const Scratch& scratch, bool accumulate,
                                           const TensorView& d) const {
  bool has_up_bias = false;  // its gradient; of all shards
  TESSERA_ASSIGN_OR_RETURN(const TensorView d_sum,
                           BackwardResidual(pass, parts_.mlp_residual, d, scratch.d_branch));
  for (size_t i = 0; i < parts_.mlp.size(); ++i) {
    const Linear& down = parts_.mlp[i].down;
    down.BackwardWeight(pass, saved.mlp[i].act, d_sum, scratch.unit_sums, accumulate,
                        i == 0 ? parts_.mlp_residual.bias : nullptr);
    const bool has_bias =
        BackwardActivated(parts_.activation, pass, down, d_sum, saved.mlp[i].up, scratch.d_act[i],
                          scratch.d_up[i], parts_.mlp[i].up.bias(), accumulate);
    CHECK(i == 0 || has_bias == has_up_bias);  // shards are alike
    has_up_bias = has_bias;
  }
  const NormPlace norm = MlpNorm(saved, scratch);
  if (saved.mlp_normed.empty()) TESSERA_RETURN_IF_ERROR(NormForward(pass, saved.mid, norm));
  std::vector<MatMulOperands> products;
  for (size_t i = 0; i < parts_.mlp.size(); ++i) {
    const Linear& up = parts_.mlp[i].up;
    up.BackwardWeight(pass, norm.out, scratch.d_up[i], scratch.unit_sums, accumulate,
                      has_up_bias ? nullptr : up.bias());
    products.push_back(up.BackwardInputTerm(scratch.d_up[i]));
  }
  return BackwardNorm(pass, kMlpNorm, products, saved.mid, saved.mlp_norm_stats, scratch,
                      accumulate, d);
}

absl::Status TransformerBlock::BackwardAttention(const Pass& pass, const TensorView& x,
                                                 const SavedActivations& saved,
                                                 const Scratch& scratch, bool accumulate,
                                                 const TensorView& d) const {
  Backend& backend = pass.backend;
  TESSERA_ASSIGN_OR_RETURN(const TensorView d_sum,
                           BackwardResidual(pass, parts_.attention_residual, d, scratch.d_branch));
  for (size_t i = 0; i < parts_.attention.size(); ++i) {
    const AttentionShard& shard = parts_.attention[i];
    const AttentionShard::SavedActivations& own = saved.attention[i];
    shard.projection.BackwardWeight(pass, own.out, d_sum, scratch.unit_sums, accumulate,
                                    i == 0 ? parts_.attention_residual.bias : nullptr);
    shard.projection.BackwardInput(backend, d_sum, scratch.d_attention_out);
    shard.attention.Backward(pass, scratch.d_attention_out, own.qkv, own.out, own.log_sum_exp,
                             scratch.d_qkv[i]);
  }
  const NormPlace norm = InputNorm(saved, scratch);
  if (saved.attention_normed.empty()) TESSERA_RETURN_IF_ERROR(NormForward(pass, x, norm));
  std::vector<MatMulOperands> products;
  for (size_t i = 0; i < parts_.attention.size(); ++i) {
    const Linear& qkv = parts_.attention[i].qkv;
    qkv.BackwardWeight(pass, norm.out, scratch.d_qkv[i], scratch.unit_sums, accumulate, qkv.bias());
    products.push_back(qkv.BackwardInputTerm(scratch.d_qkv[i]));
  }
  return BackwardNorm(pass, kAttentionNorm, products, x, saved.attention_norm_stats, scratch,
                      accumulate, d);
}

}  // namespace tessera
