#ifndef TESSERA_MODELS_LAYERS_ATTENTION_H_
#define TESSERA_MODELS_LAYERS_ATTENTION_H_

// Legend: R = B*T rows, H query heads of one virtual shard, K key/value heads of it, D head size.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "compute/kernels/backend.h"
#include "models/layers/pass.h"
#include "tensor/tensor.h"

namespace tessera {

// Llama-3.1's scaling of the low frequencies to contexts longer than trained.
struct RopeScaling {
  bool enabled = false;
  double factor = 8;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  double original_max_positions = 8192;
};

// Rotary position embedding (Su et al., 2021), in the convention of Hugging Face's Llama: pairs (i,
// i + D/2). Holds the angles of all prepared positions, computed in fp64.
class Rope {
 public:
  Rope(int64_t head_size, double base, const RopeScaling& scaling);

  // Returns the angle by which each pair turns from one position to the next, in radians.
  const std::vector<double>& frequencies() const { return frequencies_; }

  // Computes the tables for sequences up to this length, in the backend's memory. Must not be
  // called during a pass.
  void Prepare(int64_t sequence, Backend& backend);
  // Return tables [end - begin, D/2] fp32, of the positions [begin, end). Precondition: prepared
  // for `end`.
  TensorView cos(int64_t begin, int64_t end) const { return cos_.view().Slice(0, begin, end); }
  TensorView sin(int64_t begin, int64_t end) const { return sin_.view().Slice(0, begin, end); }

 private:
  std::vector<double> frequencies_;  // [D/2]
  Tensor cos_;
  Tensor sin_;
};

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
