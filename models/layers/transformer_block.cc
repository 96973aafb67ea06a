#include "models/layers/transformer_block.h"

namespace tessera {
namespace {

DType StatisticsDType(DType compute) { return compute == DType::kF64 ? DType::kF64 : DType::kF32; }

// The gradient that enters a branch: d itself, or a copy with the branch's dropped elements
// cleared.
TensorView BranchGradient(const Pass& pass, const DropoutSite& dropout, const TensorView& d,
                          const TensorView& buffer) {
  if (!dropout.active(pass)) return d;
  pass.backend.Copy(d, buffer);
  dropout.Apply(pass, buffer);
  return buffer;
}

}  // namespace

TransformerBlock::Kept TransformerBlock::LayOutKept(Arena& arena, const Pass& pass,
                                                    DType dtype) const {
  const int64_t rows = pass.rows();
  const DType stats = StatisticsDType(dtype);
  Kept kept;
  kept.attention_norm_stats = arena.Take(stats, {parts_.attention_norm->statistics(), rows});
  kept.qkv = arena.Take(dtype, {rows, parts_.qkv.out_features()});
  kept.attention_out = arena.Take(dtype, {rows, parts_.projection.in_features()});
  kept.log_sum_exp = arena.Take(stats, {pass.batch, attention_shape().heads, pass.sequence});
  kept.mid = arena.Take(dtype, {rows, parts_.projection.out_features()});
  kept.mlp_norm_stats = arena.Take(stats, {parts_.mlp_norm->statistics(), rows});
  kept.up = arena.Take(dtype, {rows, parts_.up.out_features()});
  kept.act = arena.Take(dtype, {rows, parts_.down.in_features()});
  return kept;
}

TransformerBlock::Scratch TransformerBlock::LayOutScratch(Arena& arena, const Pass& pass,
                                                          DType dtype, bool backward) const {
  const int64_t rows = pass.rows();
  Scratch scratch;
  scratch.normed = arena.Take(dtype, {rows, parts_.qkv.in_features()});
  if (!backward) return scratch;
  scratch.d_branch = arena.Take(dtype, {rows, parts_.qkv.in_features()});
  const int64_t mark = arena.Mark();
  scratch.d_attention_out = arena.Take(dtype, {rows, parts_.projection.in_features()});
  scratch.d_qkv = arena.Take(dtype, {rows, parts_.qkv.out_features()});
  arena.Rewind(mark);
  scratch.d_act = arena.Take(dtype, {rows, parts_.down.in_features()});
  scratch.d_up = parts_.activation == Activation::kGelu
                     ? scratch.d_act
                     : arena.Take(dtype, {rows, parts_.up.out_features()});
  return scratch;
}

void TransformerBlock::Forward(const Pass& pass, const TensorView& x, const Kept& kept,
                               const Scratch& scratch, const TensorView& y) const {
  ForwardKept(pass, x, kept, scratch);
  parts_.down.Forward(pass.backend, kept.act, y);
  parts_.mlp_dropout.Apply(pass, y);
  pass.backend.Add(kept.mid, y, y);
}

void TransformerBlock::ForwardKept(const Pass& pass, const TensorView& x, const Kept& kept,
                                   const Scratch& scratch) const {
  Backend& backend = pass.backend;
  parts_.attention_norm->Forward(backend, x, scratch.normed, kept.attention_norm_stats);
  parts_.qkv.Forward(backend, scratch.normed, kept.qkv);
  parts_.attention.Forward(pass, kept.qkv, kept.attention_out, kept.log_sum_exp);
  parts_.projection.Forward(backend, kept.attention_out, kept.mid);
  parts_.attention_dropout.Apply(pass, kept.mid);
  backend.Add(x, kept.mid, kept.mid);

  parts_.mlp_norm->Forward(backend, kept.mid, scratch.normed, kept.mlp_norm_stats);
  parts_.up.Forward(backend, scratch.normed, kept.up);
  ActivationForward(parts_.activation, backend, kept.up, kept.act);
}

void TransformerBlock::Backward(const Pass& pass, const TensorView& x, const Kept& kept,
                                const Scratch& scratch, bool accumulate,
                                const TensorView& d) const {
  BackwardMlp(pass, kept, scratch, accumulate, d);
  BackwardAttention(pass, x, kept, scratch, accumulate, d);
}

void TransformerBlock::BackwardMlp(const Pass& pass, const Kept& kept, const Scratch& scratch,
                                   bool accumulate, const TensorView& d) const {
  Backend& backend = pass.backend;
  const TensorView d_end = BranchGradient(pass, parts_.mlp_dropout, d, scratch.d_branch);
  parts_.down.BackwardWeight(backend, kept.act, d_end, accumulate);
  parts_.down.BackwardInput(backend, d_end, scratch.d_act);
  ActivationBackward(parts_.activation, backend, scratch.d_act, kept.up, scratch.d_up);
  parts_.mlp_norm->Forward(backend, kept.mid, scratch.normed, kept.mlp_norm_stats);
  parts_.up.BackwardWeight(backend, scratch.normed, scratch.d_up, accumulate);
  parts_.up.BackwardInput(backend, scratch.d_up, scratch.d_branch);
  parts_.mlp_norm->Backward(backend, scratch.d_branch, kept.mid, kept.mlp_norm_stats, d,
                            /*accumulate_dx=*/true, accumulate);
}

void TransformerBlock::BackwardAttention(const Pass& pass, const TensorView& x, const Kept& kept,
                                         const Scratch& scratch, bool accumulate,
                                         const TensorView& d) const {
  Backend& backend = pass.backend;
  const TensorView d_end = BranchGradient(pass, parts_.attention_dropout, d, scratch.d_branch);
  parts_.projection.BackwardWeight(backend, kept.attention_out, d_end, accumulate);
  parts_.projection.BackwardInput(backend, d_end, scratch.d_attention_out);
  parts_.attention.Backward(pass, scratch.d_attention_out, kept.qkv, kept.attention_out,
                            kept.log_sum_exp, scratch.d_qkv);
  parts_.attention_norm->Forward(backend, x, scratch.normed, kept.attention_norm_stats);
  parts_.qkv.BackwardWeight(backend, scratch.normed, scratch.d_qkv, accumulate);
  parts_.qkv.BackwardInput(backend, scratch.d_qkv, scratch.d_branch);
  parts_.attention_norm->Backward(backend, scratch.d_branch, x, kept.attention_norm_stats, d,
                                  /*accumulate_dx=*/true, accumulate);
}

}  // namespace tessera
