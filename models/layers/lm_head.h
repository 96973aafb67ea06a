#ifndef TESSERA_MODELS_LAYERS_LM_HEAD_H_
#define TESSERA_MODELS_LAYERS_LM_HEAD_H_

// Legend: B batch, T sequence, R = B*T rows, r rows of a chunk, C channels, V vocabulary, Vp
// padded.

#include <memory>

#include "models/layers/arena.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/pass.h"

namespace tessera {

// Final norm, projection to the vocabulary and cross-entropy. Logits have the compute dtype, losses
// fp32. They are made in chunks of rows of at most `max_logits_bytes`: where one chunk holds all
// rows (the usual case) they are kept for the backward pass, which turns them into their gradient
// in place; otherwise it computes every chunk but the last again.
class LmHead {
 public:
  struct Buffers {
    TensorView normed;      // [R,C]
    TensorView d_normed;    // [R,C]
    TensorView norm_stats;  // [1|2, R]
    TensorView logits;      // [r,Vp]
    TensorView stats;       // [1,R,3]
    TensorView combined;    // [R,3]
    TensorView losses;      // [R]
  };

  // weight [Vp,C], of which `vocab_size` rows are real.
  LmHead(std::unique_ptr<Norm> norm, Parameter& weight, int64_t vocab_size)
      : norm_(std::move(norm)),
        weight_(&weight),
        linear_(weight, nullptr, WeightLayout::kOutIn),
        vocab_size_(vocab_size) {}

  Buffers LayOut(Arena& arena, const Pass& pass, DType dtype, bool backward,
                 int64_t max_logits_bytes) const;

  // Sum of the losses of the rows of x [R,C] against targets [R].
  double Forward(const Pass& pass, const TensorView& x, const TensorView& targets,
                 const Buffers& buffers) const;
  // d [R,C] is overwritten with loss_scale times the gradient of x.
  void Backward(const Pass& pass, const TensorView& x, const TensorView& targets,
                const Buffers& buffers, double loss_scale, bool accumulate,
                const TensorView& d) const;
  // logits [B,V] fp32 of the last row of each sequence of x [R,C].
  void LastLogits(const Pass& pass, const TensorView& x, const Buffers& buffers,
                  const TensorView& logits) const;

 private:
  std::unique_ptr<Norm> norm_;
  Parameter* weight_;
  Linear linear_;
  int64_t vocab_size_;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_LM_HEAD_H_
