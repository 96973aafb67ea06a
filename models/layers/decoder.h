#ifndef TESSERA_MODELS_LAYERS_DECODER_H_
#define TESSERA_MODELS_LAYERS_DECODER_H_

// Legend: B batch, T sequence, R = B*T rows, r of them on this rank (Pass), C channels,
// V vocabulary.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compute/parallel/tensor_parallel.h"
#include "models/layers/attention.h"
#include "models/layers/declare.h"
#include "models/layers/embedding.h"
#include "models/layers/lm_head.h"
#include "models/layers/model.h"
#include "models/layers/transformer_block.h"

namespace tessera {

// The parts of a decoder, as a model family assembles them. All parameters belong to `parameters`,
// which the family has allocated.
struct DecoderParts {
  std::unique_ptr<ParameterSet> parameters;
  std::vector<std::string> names;  // of the whole model's tensors, in torch's order
  int64_t hidden_size = 0;         // C
  TensorParallel tensor_parallel;
  bool sums_by_unit = false;
  std::optional<Embedding> embedding;    // first stage
  std::vector<TransformerBlock> blocks;  // of this stage
  std::optional<LmHead> head;            // last stage
  DecoderLayout layout;
  std::shared_ptr<Rope> rope;     // shared by the blocks' attention; null for none
  int64_t matrix_weights = 0;     // of the whole model: weights in matrix products
  int64_t attention_columns = 0;  // of the whole model: sum over layers of heads * head size
};

// A decoder-only transformer, or the consecutive layers of it on one pipeline stage, or some
// virtual shards of these: embedding, blocks, final norm and head.
//
// An observer is called with the head's gradients, and the tied-embedding gradient of the head if
// it is separate. Then come the gradients of each block, from the last to the first, then the
// embedding's. A table to which both ends contribute is prepared before the head, and ready with
// the embedding.
//
// Memory of one Activations, in one allocation:
//   inputs  each block's input and the last one's output
//   saved   what a block's backward pass reads: one set per block, or a single one with
//           recomputation
//   shared temporary memory of one block's forward or backward pass. In the same place are the
//           buffers of the embedding, and those of the head, between whose forward and backward
//           pass no block runs
class Decoder final : public Model {
 public:
  Decoder(DecoderParts parts, Backend& backend);

  ParameterSet& parameters() override { return *parts_.parameters; }
  const ParameterSet& parameters() const override { return *parts_.parameters; }
  Module module() const override { return Module(*parts_.parameters, parts_.names); }
  std::unique_ptr<Activations> NewActivations(int64_t batch, int64_t sequence,
                                              ActivationUse use) override;
  int64_t ActivationBytes(int64_t batch, int64_t sequence, ActivationUse use) const override;
  int64_t BoundaryRows(int64_t batch, int64_t sequence) const override;
  absl::StatusOr<double> Forward(const MicroBatch& batch, Activations& activations,
                                 TensorView input, TensorView output) override;
  absl::Status Backward(const MicroBatch& batch, Activations& activations, double loss_scale,
                        bool accumulate, TensorView d_output, TensorView d_input,
                        GradientObserver* observer) override;
  absl::Status LastLogits(const MicroBatch& batch, Activations& activations,
                          TensorView logits) override;
  KeyValueCache NewCache(int64_t tokens) override;
  double FlopsPerToken(int64_t sequence) const override;

 private:
  struct Buffers;
  Buffers LayOut(const Pass& pass, ActivationUse use, Arena& arena) const;
  // Returns the place of the norm with which layer `i` of this stage begins; the head, if there is
  // one, comes after the blocks.
  NormPlace InputNorm(const Buffers& buffers, size_t i) const;
  Pass MakePass(const MicroBatch& batch) const;
  Pass MakePass(int64_t batch, int64_t sequence) const;
  // Prepares the observer's gradients; called before the head writes them.
  absl::Status PrepareHead(GradientObserver* observer) const;
  absl::Status BackwardHead(const Pass& pass, const MicroBatch& batch, const Buffers& buffers,
                            double loss_scale, bool accumulate, const TensorView& d,
                            GradientObserver* observer) const;
  absl::Status BackwardBlock(const Pass& pass, size_t i, const Buffers& buffers, bool accumulate,
                             const TensorView& d, GradientObserver* observer) const;
  absl::Status BackwardEmbedding(const Pass& pass, const MicroBatch& batch, const Buffers& buffers,
                                 bool accumulate, const TensorView& d,
                                 GradientObserver* observer) const;
  bool FusesHead(const Pass& pass, const MicroBatch& batch, const Buffers& buffers) const;
  DType dtype() const { return parts_.parameters->values().view().dtype(); }

  DecoderParts parts_;
  Backend& backend_;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_DECODER_H_
