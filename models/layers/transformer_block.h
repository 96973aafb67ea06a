#ifndef TESSERA_MODELS_LAYERS_TRANSFORMER_BLOCK_H_
#define TESSERA_MODELS_LAYERS_TRANSFORMER_BLOCK_H_

// Legend: B batch, T sequence, R = B*T rows, C channels, H query heads, K key/value heads, D head
// size, U columns before the activation, F after it.

#include <memory>

#include "models/layers/activation.h"
#include "models/layers/arena.h"
#include "models/layers/attention.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/pass.h"

namespace tessera {

// One layer of a decoder:
//   mid = x   + dropout(projection(attention(qkv(norm1(x)))))
//   y   = mid + dropout(down(activation(up(norm2(mid)))))
// GPT-2 and Llama differ only in the parts.
struct TransformerBlockParts {
  std::unique_ptr<Norm> attention_norm;
  Linear qkv;
  Attention attention;
  Linear projection;
  DropoutSite attention_dropout;
  std::unique_ptr<Norm> mlp_norm;
  Linear up;
  Activation activation;
  Linear down;
  DropoutSite mlp_dropout;
};

class TransformerBlock {
 public:
  // What the backward pass reads, besides the block's input.
  struct Kept {
    TensorView attention_norm_stats;  // [1|2, R]
    TensorView qkv;                   // [R,(H+2K)D], q and k rotated
    TensorView attention_out;         // [R,HD]
    TensorView log_sum_exp;           // [B,H,T]
    TensorView mid;                   // [R,C]
    TensorView mlp_norm_stats;        // [1|2, R]
    TensorView up;                    // [R,U]
    TensorView act;                   // [R,F]
  };
  // What lives only inside one Forward or one Backward.
  struct Scratch {
    TensorView normed;           // [R,C]
    TensorView d_branch;         // [R,C]: gradient of a branch's end, then of its beginning
    TensorView d_attention_out;  // [R,HD], shares memory with the two below
    TensorView d_qkv;            // [R,(H+2K)D]
    TensorView d_act;            // [R,F]
    TensorView d_up;  // [R,U]; d_act itself where the activation's backward works in place
  };

  explicit TransformerBlock(TransformerBlockParts parts) : parts_(std::move(parts)) {}

  Kept LayOutKept(Arena& arena, const Pass& pass, DType dtype) const;
  // `backward`: false leaves out what only Backward uses.
  Scratch LayOutScratch(Arena& arena, const Pass& pass, DType dtype, bool backward) const;

  // x, y [R,C], distinct.
  void Forward(const Pass& pass, const TensorView& x, const Kept& kept, const Scratch& scratch,
               const TensorView& y) const;
  // Forward without its end, which nothing in Backward reads: fills `kept` again from x.
  void ForwardKept(const Pass& pass, const TensorView& x, const Kept& kept,
                   const Scratch& scratch) const;
  // d [R,C]: on entry the gradient of y, on return that of x.
  void Backward(const Pass& pass, const TensorView& x, const Kept& kept, const Scratch& scratch,
                bool accumulate, const TensorView& d) const;

  const AttentionShape& attention_shape() const { return parts_.attention.shape(); }

 private:
  void BackwardMlp(const Pass& pass, const Kept& kept, const Scratch& scratch, bool accumulate,
                   const TensorView& d) const;
  void BackwardAttention(const Pass& pass, const TensorView& x, const Kept& kept,
                         const Scratch& scratch, bool accumulate, const TensorView& d) const;

  TransformerBlockParts parts_;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_TRANSFORMER_BLOCK_H_
