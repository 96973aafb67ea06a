#ifndef TESSERA_TRAINER_STEP_TRAINER_H_
#define TESSERA_TRAINER_STEP_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "compute/kernels/backend.h"
#include "compute/parallel/mesh.h"
#include "models/layers/parameter.h"
#include "tensor/tensor.h"
#include "trainer/config/config.pb.h"
#include "trainer/data/batch_loader.h"
#include "trainer/optim/adamw.h"

namespace tessera {

// This rank's part of a pipeline chunk: its virtual tensor shards of the layers, and the optimizer
// state that it owns.
struct TrainedChunk {
  ParameterSet* parameters = nullptr;
  AdamW* optimizer = nullptr;  // null without training
};

// The position of a step in the run.
struct StepPosition {
  int64_t step = 0;              // completed optimizer steps
  int64_t consumed_samples = 0;  // sequences read before this step
};

struct StepResult {
  double loss = 0;  // mean per token of the global batch
  double grad_norm = 0;
  double learning_rate = 0;
  bool updated = true;  // false: gradients not finite, no state changed
  // Share of the forward and backward passes that this rank spent waiting for its pipeline
  // neighbours.
  double pipeline_wait_share = 0;
};

struct EvaluationResult {
  double loss = 0;  // mean per token
  int64_t tokens = 0;
  bool stopped = false;  // before its end: the others are 0
};

// Returns how many of `there` samples an evaluation of `wanted` takes: whole global batches, or all
// if there are fewer. The number does not depend on the size of micro-batches.
int64_t EvaluatedSamples(int64_t wanted, int64_t global_batch, int64_t there);

// Returns whether an evaluation stops. Every rank calls it at the same times, and gets the same.
using StopEvaluation = std::function<absl::StatusOr<bool>()>;

// Trains one model on all ranks of a mesh: implements an optimizer step, an evaluation and a
// sampled token for any topology. Every rank makes the same calls with the same arguments and gets
// bitwise the same results; in EXACT numerics the results are the same on every topology, too.
//
// Errors: those of the data, and those of a Communicator, which end the run on every rank. Not
// thread-safe.
class Trainer {
 public:
  struct Options {
    bool trains = true;  // false: no gradients, no optimizer, Step() must not be called
    uint64_t seed = 0;   // seed of dropout
  };
  // Creates a trainer. `config` must be resolved; mesh and backend must outlive the trainer.
  // Weights are zero until they are initialised or loaded into chunks(). Then call
  // ResetOptimizer(), unless the optimizer's state is loaded, too.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const TrainConfig& config,
                                                         const Options& options, Mesh& mesh,
                                                         Backend& backend);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Returns the chunks of this rank, in model order.
  const std::vector<TrainedChunk>& chunks() const { return chunks_; }

  // Sets initial weights, the same on every topology.
  void InitializeWeights(uint64_t seed);
  // Copies the weights to the master weights and zeroes the moments.
  void ResetOptimizer();
  // Sets the number of updates that the bias correction counts.
  void set_updates(int64_t updates);
  int64_t updates() const;
  int64_t skipped_in_a_row() const;

  // Reads the global batch at `position`, runs the forward and backward passes, clips and updates.
  // Errors:
  // - DataLoss, before anything is updated, if ranks' copies of a gradient or (checked every so
  //   many steps) of a weight differ, or a micro-batch and its repetition (replay_check.h). The
  //   config may ask for a warning instead;
  // - on a device, the backend's errors.
  absl::StatusOr<StepResult> Step(const BatchLoader& data, const StepPosition& position);

  // Registers a check that every rank makes in Step() once the passes are over, before anything is
  // updated. Its error, which must be the same on every rank, ends the step.
  void set_before_update(std::function<absl::Status()> check);

  // Registers a callback for memory of chunks(), called right before an update overwrites the
  // memory, to wait for pending reads of it. Null removes the callback. `needed`, called once per
  // update, returns whether there may be such reads (null: always); without them the update is made
  // at once, not in pieces.
  void set_before_overwrite(BeforeOverwrite before, std::function<bool()> needed = nullptr);

  // Returns the mean loss over the first EvaluatedSamples() sequences of `data`, the same every
  // time, without dropout. With `stop`, asks after each global batch, or after several, so that the
  // pipeline is not filled anew too often.
  absl::StatusOr<EvaluationResult> Evaluate(const BatchLoader& data, int64_t samples,
                                            const StopEvaluation& stop = nullptr);

  // Returns the logits [vocab_size] of the token after `context`.
  absl::StatusOr<std::vector<float>> NextLogits(std::span<const int32_t> context);
  // Returns the logarithm of the probability of `token` after a context with these logits. In EXACT
  // numerics the result has the bits of the token's loss in a pass over the whole text.
  absl::StatusOr<float> LogProbability(std::span<const float> logits, int32_t token);

  // Returns the floating-point operations of the whole model per token of training.
  double FlopsPerToken() const;
  // Memory held by this rank, in bytes.
  struct Memory {
    int64_t weights = 0;
    int64_t gradients = 0;
    int64_t optimizer = 0;
    int64_t activations = 0;
    // On a GPU, in addition; see GpuMemory() in trainer/app/host_share.h.
    int64_t evaluation = 0;
    int64_t workspace = 0;
    int64_t driver = 0;
  };
  Memory memory() const;
  // Returns the activations of an evaluation, which are allocated while it runs.
  int64_t EvaluationBytes() const;

 private:
  class Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
  std::vector<TrainedChunk> chunks_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_STEP_TRAINER_H_
