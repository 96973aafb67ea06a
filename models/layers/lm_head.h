#ifndef TESSERA_MODELS_LAYERS_LM_HEAD_H_
#define TESSERA_MODELS_LAYERS_LM_HEAD_H_

// Legend: B batch, T sequence, R = B*T rows, r of them on this rank, n rows of a chunk, C channels,
// V vocabulary, S virtual shards, Vs rows of one, padding included.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/layers/arena.h"
#include "models/layers/embedding.h"
#include "models/layers/norm.h"
#include "models/layers/pass.h"

namespace tessera {

// Final norm, projection to the vocabulary and cross-entropy. Logits have the compute dtype, losses
// are fp32; a rank computes only the logits of its shards of the vocabulary, in chunks of rows. If
// the whole vocabulary is on this rank and the backward pass follows at once, the forward pass
// turns each chunk into its gradient, in place. Otherwise the last chunk, often the only one, is
// kept for the backward pass, which recomputes the others.
class LmHead {
 public:
  struct Buffers {
    TensorView normed;               // [R,C]
    TensorView d_normed;             // [r,C]
    TensorView sum;                  // [R,C] in SumDType, if NeedsSumScratch
    TensorView norm_stats;           // [1|2, r]
    std::vector<TensorView> logits;  // [n,Vs], by shard of this rank
    TensorView stats;                // [S,R,3]
    TensorView combined;             // [R,3]
    TensorView losses;               // [R]
    TensorView last;                 // [B,C]: the last row of each sequence
    TensorView last_logits;          // [S,B,Vs] fp32; not needed for one shard
    NormGradients norms;
    int64_t chunk_rows = 0;  // n at most: whole units, or a part of one
    // [levels,Vs,C] by shard, if a chunk does not have all units: see GroupSum().
    std::vector<TensorView> group_sums;
  };

  // `shards` are this rank's virtual shards of a vocabulary of `vocab_size` tokens. If the weights
  // have a second gradient, the gradient is accumulated there.
  LmHead(std::unique_ptr<Norm> norm, std::vector<VocabularyShard> shards, int64_t vocab_size)
      : norm_(std::move(norm)), shards_(std::move(shards)), vocab_size_(vocab_size) {}

  // Takes buffers from the arena. `max_logits_bytes` limits one chunk, over the whole vocabulary,
  // so that the chunks, on which sums over rows depend, are the same on every topology.
  Buffers LayOut(Arena& arena, const Pass& pass, DType dtype, bool backward,
                 int64_t max_logits_bytes) const;

  // Returns where Forward() expects the norm of the head's input x [r,C].
  NormPlace InputNorm(const Buffers& buffers) const {
    return {norm_.get(), buffers.normed, buffers.norm_stats};
  }
  // Returns the sum of the losses of the rows of x over all ranks, against targets [R].
  // Precondition: InputNorm() has been computed.
  absl::StatusOr<double> Forward(const Pass& pass, const TensorView& targets,
                                 const Buffers& buffers) const;
  // Overwrites d [r,C] with loss_scale times the gradient of x.
  absl::Status Backward(const Pass& pass, const TensorView& x, const TensorView& targets,
                        const Buffers& buffers, double loss_scale, bool accumulate,
                        const TensorView& d) const;

  // Returns whether ForwardFused() and BackwardFused() may replace Forward() and Backward(), with
  // the same results; ForwardFused() then writes the gradient of the vocabulary.
  bool Fuses(const Pass& pass) const;
  double ForwardFused(const Pass& pass, const TensorView& targets, const Buffers& buffers,
                      double loss_scale, bool accumulate) const;
  absl::Status BackwardFused(const Pass& pass, const TensorView& x, const Buffers& buffers,
                             bool accumulate, const TensorView& d) const;
  // Computes the logits [B,V] fp32 of the last row of each sequence of x [r,C].
  absl::Status LastLogits(const Pass& pass, const TensorView& x, const Buffers& buffers,
                          const TensorView& logits) const;

 private:
  int64_t channels() const { return norm_->channels(); }
  int64_t shard_rows() const { return shards_[0].table->shape[0]; }
  // Computes the logits of `normed` [n,C] in one shard.
  void Project(const Pass& pass, const VocabularyShard& shard, const TensorView& normed,
               const TensorView& logits) const;
  struct Chunk;
  // Returns all chunks, in order.
  static std::vector<Chunk> Chunks(const Pass& pass, const Buffers& buffers);
  // Adds the contribution of the logits' gradients of chunk i to the vocabulary's gradient, and
  // computes the gradient of the chunk's rows. Called from the last chunk on.
  void PropagateLogits(const Pass& pass, const Buffers& buffers, const std::vector<Chunk>& chunks,
                       size_t i, bool accumulate) const;
  // Returns a sum of groups of chunks that is not yet added to another. There is one for each bit
  // that is set in the number of groups so far; the sum of the most groups is in the table's
  // gradient.
  TensorView GroupSum(const Buffers& buffers, size_t shard, int open) const;
  absl::Status LastRows(const Pass& pass, const TensorView& x, const TensorView& last) const;

  std::unique_ptr<Norm> norm_;
  std::vector<VocabularyShard> shards_;
  int64_t vocab_size_;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_LM_HEAD_H_
