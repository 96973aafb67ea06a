#ifndef TESSERA_MODELS_LAYERS_TRANSFORMER_BLOCK_H_
#define TESSERA_MODELS_LAYERS_TRANSFORMER_BLOCK_H_

// Legend: B batch, T sequence, R = B*T rows, r of them on this rank between tensor-parallel
// regions, C channels; of one virtual shard: H query heads, K key/value heads, D head size, U
// columns before the activation, F after it.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/layers/arena.h"
#include "models/layers/attention.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/pass.h"

namespace tessera {

// A virtual shard of attention: some of the heads, with their part of both projections.
struct AttentionShard {
  Linear qkv;  // column-parallel
  Attention attention;
  Linear projection;  // row-parallel

  // The activations that the backward pass reads.
  struct SavedActivations {
    TensorView qkv;          // [R,(H+2K)D], q and k rotated
    TensorView out;          // [R,HD]
    TensorView log_sum_exp;  // [B,H,T]
  };
};

// A virtual shard of the MLP: some of its columns.
struct MlpShard {
  Linear up;    // column-parallel
  Linear down;  // row-parallel

  struct SavedActivations {
    TensorView up;   // [R,U]
    TensorView act;  // [R,F]
  };
};

// The residual add at the end of a branch.
struct ResidualAdd {
  Parameter* bias = nullptr;  // [C]; null for none
  DropoutSite dropout;
};

// One layer of a decoder:
//   mid = x   + dropout(bias + sum over shards of projection(attention(qkv(norm1(x)))))
//   y   = mid + dropout(bias + sum over shards of down(activation(up(norm2(mid)))))
// GPT-2 and Llama differ only in these parts.
struct TransformerBlockParts {
  std::unique_ptr<Norm> attention_norm;
  std::vector<AttentionShard> attention;  // this rank's virtual shards, in order
  ResidualAdd attention_residual;
  std::unique_ptr<Norm> mlp_norm;
  std::vector<MlpShard> mlp;
  Activation activation = Activation::kGelu;
  ResidualAdd mlp_residual;
};

class TransformerBlock {
 public:
  // The activations that the backward pass reads, besides the block's input.
  struct SavedActivations {
    TensorView attention_norm_stats;  // [1|2, r]
    TensorView attention_normed;      // [R,C]; empty: the backward pass computes it again
    std::vector<AttentionShard::SavedActivations> attention;
    TensorView mid;             // [r,C]
    TensorView mlp_norm_stats;  // [1|2, r]
    TensorView mlp_normed;      // [R,C]; empty: the backward pass computes it again
    std::vector<MlpShard::SavedActivations> mlp;
  };
  // Temporary memory of one Forward or one Backward.
  struct Scratch {
    TensorView normed;    // [R,C], if it is not saved
    TensorView sum;       // [R,C] in SumDType, where NeedsSumScratch; in the place of `normed`,
                          // which is dead by then
    TensorView d_branch;  // [R,C]: gradient of a branch's end, then of its beginning
    // Memory of one branch or the other:
    TensorView d_attention_out;     // [R,HD]
    std::vector<TensorView> d_qkv;  // [R,(H+2K)D], by shard
    std::vector<TensorView> d_act;  // [R,F], by shard; shared where d_up is not in its place
    std::vector<TensorView> d_up;   // [R,U], by shard
    NormGradients norms;            // for both norms
    TensorView unit_sums;           // see UnitSums()
  };

  explicit TransformerBlock(TransformerBlockParts parts) : parts_(std::move(parts)) {}

  // Takes memory for saved activations; with `norms`, the outputs of norms are among them.
  SavedActivations LayOutSaved(Arena& arena, const Pass& pass, DType dtype, bool norms) const;
  // Takes temporary memory; without `backward`, only what Forward() uses.
  Scratch LayOutScratch(Arena& arena, const Pass& pass, DType dtype, bool backward) const;

  // Returns where Forward() expects the norm of its input x.
  NormPlace InputNorm(const SavedActivations& saved, const Scratch& scratch) const {
    return {parts_.attention_norm.get(),
            saved.attention_normed.empty() ? scratch.normed : saved.attention_normed,
            saved.attention_norm_stats};
  }
  // Runs the forward pass from x to y [r,C], distinct. Precondition: InputNorm() has been computed.
  // If `next` has a norm, with which the next layer begins, computes the norm of y in the same pass
  // over memory as y; its memory may be this block's scratch. `cache` is NewCache() with the tokens
  // before x, to which the tokens of x are added; null for none.
  absl::Status Forward(const Pass& pass, const TensorView& x, const SavedActivations& saved,
                       const Scratch& scratch, const TensorView& y, const NormPlace& next,
                       const std::vector<Tensor>* cache) const;
  // Makes this block's part of a KeyValueCache.
  std::vector<Tensor> NewCache(int64_t tokens, DType dtype, Device device) const;
  // Recomputes `saved` from x: InputNorm(), and Forward() without its last step, whose result
  // Backward() does not read.
  absl::Status Recompute(const Pass& pass, const TensorView& x, const SavedActivations& saved,
                         const Scratch& scratch) const;
  // Runs the backward pass. d [r,C] is the gradient of y on entry, and the gradient of x on return.
  absl::Status Backward(const Pass& pass, const TensorView& x, const SavedActivations& saved,
                        const Scratch& scratch, bool accumulate, const TensorView& d) const;

 private:
  NormPlace MlpNorm(const SavedActivations& saved, const Scratch& scratch) const {
    return {parts_.mlp_norm.get(), saved.mlp_normed.empty() ? scratch.normed : saved.mlp_normed,
            saved.mlp_norm_stats};
  }
  int64_t WidestSum() const;
  absl::Status ForwardSaved(const Pass& pass, const TensorView& x, const SavedActivations& saved,
                            const Scratch& scratch, const std::vector<Tensor>* cache) const;
  absl::Status AddResidual(const Pass& pass, const ResidualAdd& add,
                           std::span<const MatMulOperands> products, const TensorView& residual,
                           const TensorView& sum, const TensorView& out,
                           const NormPlace& next) const;
  absl::StatusOr<TensorView> BackwardResidual(const Pass& pass, const ResidualAdd& add,
                                              const TensorView& d, const TensorView& buffer) const;
  absl::Status BackwardMlp(const Pass& pass, const SavedActivations& saved, const Scratch& scratch,
                           bool accumulate, const TensorView& d) const;
  absl::Status BackwardAttention(const Pass& pass, const TensorView& x,
                                 const SavedActivations& saved, const Scratch& scratch,
                                 bool accumulate, const TensorView& d) const;
  absl::Status BackwardNorm(const Pass& pass, int norm, std::span<const MatMulOperands> products,
                            const TensorView& x, const TensorView& stats, const Scratch& scratch,
                            bool accumulate, const TensorView& d) const;

  TransformerBlockParts parts_;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_TRANSFORMER_BLOCK_H_
