#ifndef TESSERA_MODELS_LAYERS_ATTENTION_H_
#define TESSERA_MODELS_LAYERS_ATTENTION_H_

// Legend: R = B*T rows, H query heads of one virtual shard, K key/value heads of it, D head size.

#include <memory>

#include "models/layers/pass.h"
#include "models/layers/rope.h"

namespace tessera {

struct AttentionShape {
  int64_t heads = 0;            // H
  int64_t key_value_heads = 0;  // K, divides H
  int64_t head_size = 0;        // D
  int64_t first_head = 0;       // of the model's query heads, the shard's first
};

// Causal self-attention between the two projections, for the heads of one virtual shard. qkv
// [R,(H+2K)D]: q, k and v are adjacent.
class Attention {
 public:
  // `rope` rotates q and k; null for no rotation.
  Attention(const AttentionShape& shape, DropoutSite dropout, std::shared_ptr<const Rope> rope)
      : shape_(shape), dropout_(dropout), rope_(std::move(rope)) {}

  // Computes out [R,HD] and log_sum_exp [B,H,T]. Rotates q and k in place, as Backward() expects
  // them. `cache` is of one shard in a KeyValueCache, or empty.
  void Forward(const Pass& pass, const TensorView& qkv, const TensorView& cache,
               const TensorView& out, const TensorView& log_sum_exp) const;
  // Computes the gradient d_qkv [R,(H+2K)D], which is overwritten.
  void Backward(const Pass& pass, const TensorView& d_out, const TensorView& qkv,
                const TensorView& out, const TensorView& log_sum_exp,
                const TensorView& d_qkv) const;

  const AttentionShape& shape() const { return shape_; }

 private:
  struct Heads {
    TensorView q, k, v;  // [B,T,H|K,D]
  };
  Heads Split(const Pass& pass, const TensorView& qkv) const;
  AttentionOptions Options(const Pass& pass) const;
  void Rotate(const Pass& pass, const Heads& heads, bool inverse) const;

  AttentionShape shape_;
  DropoutSite dropout_;
  std::shared_ptr<const Rope> rope_;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_ATTENTION_H_
