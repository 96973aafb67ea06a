#ifndef TESSERA_MODELS_LAYERS_MODEL_H_
#define TESSERA_MODELS_LAYERS_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute/parallel/gradient_buckets.h"
#include "compute/parallel/tensor_parallel.h"
#include "layout/dtype.h"
#include "layout/topology.h"
#include "models/layers/module.h"
#include "models/layers/parameter.h"
#include "tensor/tensor.h"

namespace tessera {

// The arguments with which Backward() will be called.
struct BackwardCall {
  double loss_scale = 1;
  bool accumulate = false;
  GradientObserver* observer = nullptr;  // null for none
};

// The keys and values of the tokens of one sequence, for the layers of a stage, so that later
// tokens are computed alone. Made by Model::NewCache(), filled by the forward passes of batches
// that refer to it.
struct KeyValueCache {
  int64_t tokens = 0;    // so far
  int64_t capacity = 0;  // at most
  // [1,capacity,2K,D], first the keys of K heads, rotated, then the values; by virtual shard of
  // this rank, by block.
  std::vector<std::vector<Tensor>> blocks;
};

// One micro-batch of token ids.
struct MicroBatch {
  TensorView ids;      // int32 [B,T]
  TensorView targets;  // int32 [B,T], negative: ignored; empty: no loss (sampling)
  // Coordinates for dropout: every sample of a step has a global index, which does not depend on
  // the rank that computes it.
  int64_t step = 0;
  int64_t first_sample = 0;
  bool training = false;  // dropout on
  // Promises that Backward() of this micro-batch, with these arguments, is the next call of the
  // model after Forward(), which may then compute the gradients of the head. The results are the
  // same. Must be set alike for both calls.
  std::optional<BackwardCall> backward_follows = {};
  // If set, the loss is there when the backend has been synchronized, and what Forward() returns
  // has no meaning: it need not wait.
  std::shared_ptr<double> late_loss = nullptr;
  // The earlier tokens of one sequence, which `ids` continue; null: `ids` begin one. Forward only.
  KeyValueCache* cache = nullptr;
};

// The activations of one micro-batch that the forward pass saves for the backward pass. A pipeline
// schedule holds several at once.
class Activations {
 public:
  virtual ~Activations() = default;
  virtual int64_t bytes() const = 0;
};

// The activations that are saved.
// - kTrainingWithNorms: those of kTraining and the outputs of norms, which the backward pass then
//   does not compute again. The bits are the same.
// - kTrainingRecompute: only the inputs of layers. The backward pass computes the rest again.
enum class ActivationUse { kTraining, kTrainingWithNorms, kTrainingRecompute, kForwardOnly };

// The layers of one pipeline stage, or this rank's shards of them, with explicit forward and
// backward.
//
// Under tensor parallelism every rank of the axis makes the same calls with the same micro-batch.
// Forward(), Backward() and LastLogits() return an error only if a collective operation or the
// observer does; the activations and gradients are then unusable.
class Model {
 public:
  virtual ~Model() = default;

  virtual ParameterSet& parameters() = 0;
  virtual const ParameterSet& parameters() const = 0;

  // Returns the root of the tree of modules, whose NamedParameters() have torch's order and names.
  virtual Module module() const = 0;

  // Allocates buffers for micro-batches of [batch, sequence], reusable for any number of
  // forward/backward pairs of that shape.
  virtual std::unique_ptr<Activations> NewActivations(int64_t batch, int64_t sequence,
                                                      ActivationUse use) = 0;

  // Returns the size of NewActivations().
  virtual int64_t ActivationBytes(int64_t batch, int64_t sequence, ActivationUse use) const = 0;

  // Returns the rows of the activations that this rank sends to the next stage: R = batch *
  // sequence, or, if sequence parallelism splits them, R / size of the tensor axis. Micro-batches
  // whose R is not divisible by the number of shards are not split.
  virtual int64_t BoundaryRows(int64_t batch, int64_t sequence) const = 0;

  // Runs the forward pass. `input` [BoundaryRows,C] are the activations of the previous stage,
  // empty on the first; `output` [BoundaryRows,C] are this stage's, empty on the last. On the last
  // stage, with targets, returns the SUM of the token losses (fp64 tree over rows) on every
  // tensor-parallel rank; 0 elsewhere.
  virtual absl::StatusOr<double> Forward(const MicroBatch& batch, Activations& activations,
                                         TensorView input, TensorView output) = 0;

  // Runs the backward pass of the last Forward() with these activations. loss_scale multiplies
  // every token's loss (1 / tokens of the global batch). Accumulates parameter gradients, or
  // overwrites them when `accumulate` is false (first micro-batch). d_output is empty on the last
  // stage, d_input on the first. `observer` is called as gradients are computed; null for none.
  virtual absl::Status Backward(const MicroBatch& batch, Activations& activations,
                                double loss_scale, bool accumulate, TensorView d_output,
                                TensorView d_input, GradientObserver* observer) = 0;

  // Computes the logits [B,V] (fp32, the whole vocabulary, padding excluded) of the last position
  // of each sequence, after Forward() without targets, on every tensor-parallel rank. For sampling.
  virtual absl::Status LastLogits(const MicroBatch& batch, Activations& activations,
                                  TensorView logits) = 0;

  // Makes a cache for sequences of up to `tokens`. A forward pass with it has the logits and losses
  // of a pass over the whole sequence, bit for bit in EXACT numerics. On the CPU only.
  virtual KeyValueCache NewCache(int64_t tokens) = 0;

  // Returns the floating-point operations of forward and backward per token at this sequence
  // length, for the WHOLE model, whichever part of it this rank holds: 6 per weight in a matrix
  // product, plus the lower triangle of attention. Excludes recomputation.
  virtual double FlopsPerToken(int64_t sequence) const = 0;
};

// Options of the computation, apart from the definition of the model.
struct ModelOptions {
  DType compute_dtype = DType::kF32;  // or kBF16; kF64 with the reference backend
  // Whether to allocate memory for gradients. If not: forward only (evaluation, sampling), or
  // gradients in memory bound by ParameterSet::BindGradients().
  bool with_gradients = true;
  uint64_t seed = 1234;              // for dropout; ParameterSet::Initialize has its own
  std::optional<ChunkLayers> stage;  // which layers; all of them by default
  // The shards of the layers; null: one rank, one shard. Its communicator must outlive the model.
  const TensorParallel* tensor_parallel = nullptr;
  // Whether a stage that uses a tied table at both ends keeps the head's tied-embedding gradient
  // separate (Parameter::second_grad).
  bool separate_tied_gradients = false;
  // Whether rows are summed by canonical unit (Pass). A backward pass then overwrites the
  // gradients.
  bool sums_by_unit = false;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_MODEL_H_
