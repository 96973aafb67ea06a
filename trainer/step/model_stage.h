#ifndef TESSERA_TRAINER_STEP_MODEL_STAGE_H_
#define TESSERA_TRAINER_STEP_MODEL_STAGE_H_

// Pipeline stages that train, evaluate and sample with a model's chunks.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute/parallel/micro_batches.h"
#include "compute/parallel/pipeline.h"
#include "trainer/data/batch_loader.h"
#include "trainer/step/model_chunk.h"
#include "trainer/step/pass_trace.h"

namespace tessera {

// Runs the forward and backward passes of one optimizer step, and accumulates gradients in the
// chunks' reducers; or repeats the pass of one of its micro-batches (Pipeline::TrainOne).
class TrainingStage final : public PipelineStage {
 public:
  struct Step {
    const BatchLoader* data = nullptr;
    int64_t step = 0;
    int64_t consumed_samples = 0;
    MicroBatchSplit split;
    int data_rank = 0;
    int64_t micro_batch_size = 1;
    double loss_scale = 1;
    // Gets the digests of the pass of micro-batch `traced`, by its index on `data_rank`; null: not
    // traced.
    PassTrace* trace = nullptr;
    int64_t traced = 0;
    // Whether to compute micro-batch `traced` alone, with its gradients in memory of their own, not
    // in the reducers. Requires a trace.
    bool replays = false;
  };
  TrainingStage(std::vector<ModelChunk>& chunks, const Step& step) : chunks_(chunks), step_(step) {}

  // Returns the losses of the micro-batches behind the last layers, in their order. Valid once the
  // backend has been synchronized after the run of the pipeline, whose own losses mean nothing: the
  // host need not wait for each.
  std::vector<double> Losses() const;

  absl::StatusOr<double> Forward(const PipelinePass& pass, TensorView input,
                                 TensorView output) override;
  absl::Status Backward(const PipelinePass& pass, TensorView d_output, TensorView d_input) override;

 private:
  int64_t LocalMicroBatch(const PipelinePass& pass) const {
    return step_.replays ? step_.traced : pass.micro_batch;
  }
  // Returns the trace of a pass; null if it is not traced.
  PassTrace* TraceOf(const PipelinePass& pass) const {
    return LocalMicroBatch(pass) == step_.traced ? step_.trace : nullptr;
  }
  MicroBatch Batch(const PipelinePass& pass);
  // Returns whether the forward pass may write the head's gradients: the backward pass, untraced,
  // follows at once, because no other micro-batch of the chunk is under way.
  bool BackwardFollows(const PipelinePass& pass) const {
    return chunks_[pass.chunk].has_head() && chunks_[pass.chunk].slots() == 1 && !step_.replays &&
           TraceOf(pass) == nullptr;
  }
  absl::Status Backward(const PipelinePass& pass, TensorView d_output, TensorView d_input,
                        bool accumulate, GradientObserver& gradients);

  std::vector<ModelChunk>& chunks_;
  const Step step_;
  std::map<int64_t, std::shared_ptr<double>> losses_;  // by micro-batch
};

// Computes the losses of some of the first micro-batches of a data set.
class EvaluationStage final : public PipelineStage {
 public:
  struct BatchShape {
    int64_t batch = 1;
    int64_t sequence = 1;
  };
  // `micro_batches` maps a position in the pipeline's run to a micro-batch of the data set.
  EvaluationStage(std::vector<ModelChunk>& chunks, const BatchLoader& data, const BatchShape& shape,
                  std::span<const int64_t> micro_batches);

  // Sets the position in `micro_batches` at which the next run begins.
  void set_first(int64_t first) { first_ = first; }

  absl::StatusOr<double> Forward(const PipelinePass& pass, TensorView input,
                                 TensorView output) override;
  absl::Status Backward(const PipelinePass& pass, TensorView d_output, TensorView d_input) override;

 private:
  std::vector<ModelChunk>& chunks_;
  const BatchLoader& data_;
  const BatchShape shape_;
  const std::span<const int64_t> micro_batches_;
  int64_t first_ = 0;
  std::vector<BatchSlot> slots_;  // by chunk
};

// Computes the logits of the token after one context, on the last stage.
class SamplingStage final : public PipelineStage {
 public:
  // `tokens` are the tokens of the context that are not in `caches`, to which they are added;
  // without caches, the whole context. `caches` has one for each chunk. `logits` [1,V] is fp32.
  SamplingStage(std::vector<ModelChunk>& chunks, std::vector<KeyValueCache>& caches,
                std::span<const int32_t> tokens, const TensorView& logits)
      : chunks_(chunks), caches_(caches), tokens_(tokens), logits_(logits) {}

  absl::StatusOr<double> Forward(const PipelinePass& pass, TensorView input,
                                 TensorView output) override;
  absl::Status Backward(const PipelinePass& pass, TensorView d_output, TensorView d_input) override;

 private:
  std::vector<ModelChunk>& chunks_;
  std::vector<KeyValueCache>& caches_;
  const std::span<const int32_t> tokens_;
  const TensorView logits_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_STEP_MODEL_STAGE_H_
