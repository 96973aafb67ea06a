#ifndef TESSERA_COMPUTE_PARALLEL_PIPELINE_H_
#define TESSERA_COMPUTE_PARALLEL_PIPELINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace tessera {

// One action of a pipeline rank: the forward or backward pass of one micro-batch through one of its
// chunks of layers.
struct PipelineAction {
  enum Kind { kForward, kBackward } kind = kForward;
  int64_t micro_batch = 0;
  int chunk = 0;  // virtual stage chunk * pipeline size + rank

  bool operator==(const PipelineAction&) const = default;
};

struct PipelineShape {
  int ranks = 1;
  int chunks = 1;  // per rank; above 1 the schedule is interleaved
  int64_t micro_batches = 1;
};

// Returns the actions of one rank in one step, in order. With one chunk: 1F1B (Narayanan et al.,
// PipeDream-Flush, ICML 2021). With several: interleaved 1F1B (Narayanan et al., "Efficient
// large-scale language model training on GPU clusters using Megatron-LM", SC 2021).
//
// Every (micro-batch, chunk) has one forward and, later, one backward pass; backward passes of one
// chunk come in the order of micro-batches, which fixes the order of gradient sums. Precondition:
// interleaved schedules need micro_batches to be a multiple of ranks.
std::vector<PipelineAction> PipelineSchedule(const PipelineShape& shape, int rank);

// Returns the actions of each rank, in order, when all micro-batches, of any number, run forward
// only.
std::vector<PipelineAction> ForwardSchedule(const PipelineShape& shape);

// Returns the maximum number of (micro-batch, chunk) pairs between their forward and backward
// passes: the number of sets of activations that the rank must hold.
int64_t MaxInFlight(const std::vector<PipelineAction>& actions);
// Returns MaxInFlight() of one chunk only.
int64_t MaxInFlight(const std::vector<PipelineAction>& actions, int chunk);

// One micro-batch's pass through one chunk of this rank's layers.
struct PipelinePass {
  int chunk = 0;
  int64_t micro_batch = 0;  // index within this run of this data-parallel rank
  int64_t slot = 0;         // index of the chunk's set of activations
};

// The layers of one rank, as run by a pipeline. For sampling, the stage with the last layers reads
// the logits in its Forward().
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  // Runs the forward pass. `input` [R,C] is empty for the first layers of the model, and may be
  // overwritten. `output` [R,C] is empty for the last layers. Both belong to the pipeline and are
  // valid during the call. Returns the loss of the micro-batch after the last layers; ignored
  // elsewhere.
  virtual absl::StatusOr<double> Forward(const PipelinePass& pass, TensorView input,
                                         TensorView output) = 0;
  // Runs the backward pass of the last Forward() with this chunk and slot. `d_output` is empty for
  // the last layers, `d_input` for the first ones.
  virtual absl::Status Backward(const PipelinePass& pass, TensorView d_output,
                                TensorView d_input) = 0;
};

struct PipelineOptions {
  int chunks = 1;             // chunks of layers on each rank
  int64_t micro_batches = 1;  // per Train()
  bool trains = true;         // false: Train() must not be called
  // Shape of the messages between stages: [R,C].
  int64_t rows = 0;
  int64_t columns = 0;
  DType dtype = DType::kF32;
  Device device;
  // Clock in seconds for the measurements below. Empty: the steady clock.
  std::function<double()> clock;
};

struct PipelineRun {
  // Losses by micro-batch, on the rank that has the last layers; empty elsewhere.
  std::vector<double> losses;
  double total_s = 0;
  // The part of total_s spent waiting for messages. On the first stage, whose run is the longest,
  // waited_s / total_s is the pipeline bubble, (ranks - 1) / (chunks * micro_batches + ranks - 1),
  // plus the cost of messages and unequal stages. Other stages end earlier, and have the rest of
  // their bubble after that.
  double waited_s = 0;
  int64_t max_in_flight = 0;  // sets of activations in use at once

  double waiting_share() const { return total_s > 0 ? waited_s / total_s : 0; }
};

// One rank's part in a pipeline: moves micro-batches through all stages.
//
// Training follows PipelineSchedule(): forward and backward passes of one chunk come in the order
// of micro-batches. Messages never block a rank that has work: receives are posted as soon as their
// buffers are free, and a send is waited for only when its buffer is needed again. Each chunk has
// kBuffers buffers for receiving and as many for sending, in each direction, kept from run to run.
// With these, no shape of pipeline waits longer than in theory, or can deadlock, even if no send
// completes before it is received.
//
// Errors: those of the stage or the communicator. An error of the stage aborts all ranks of the
// world with it (Communicator::Abort).
//
// Threads: one at a time. Bytes on the wire: each boundary over which this rank sends costs R*C
// elements for each micro-batch and direction.
class Pipeline {
 public:
  static constexpr int kBuffers = 2;

  // `pipeline` has the stages in order, including this rank, and must outlive the pipeline; null
  // for one stage. InvalidArgument for inconsistent sizes.
  static absl::StatusOr<std::unique_ptr<Pipeline>> Create(Communicator* pipeline,
                                                          PipelineOptions options);
  ~Pipeline();

  // Returns the number of sets of activations that a chunk needs for Train(), the bound of
  // PipelinePass::slot. Micro-batch m uses set m % slots(chunk).
  int64_t slots(int chunk) const { return slots_[chunk]; }
  // Returns whether this rank has the model's first layers (in its first chunk) or last (in its
  // last).
  bool first() const { return rank_ == 0; }
  bool last() const { return rank_ == shape_.ranks - 1; }

  // Runs every micro-batch forward and backward through all layers. Every stage calls Train().
  absl::StatusOr<PipelineRun> Train(PipelineStage& stage);

  // Runs one micro-batch, number 0 with slot 0, forward and backward through all layers, between
  // calls of Train(). Every stage calls TrainOne().
  absl::StatusOr<PipelineRun> TrainOne(PipelineStage& stage);

  // Runs every micro-batch forward only, all with slot 0, in order per chunk: for evaluation, and
  // with one micro-batch for sampling. `rows` is the number of rows of these micro-batches; 0: as
  // in the options. If there are more rows (which cannot be split over tensor ranks), buffers grow
  // permanently. Every stage calls Forward() with the same numbers.
  absl::StatusOr<PipelineRun> Forward(PipelineStage& stage, int64_t micro_batches,
                                      int64_t rows = 0);

  int64_t buffer_bytes() const;  // of this rank's message buffers

 private:
  class Run;
  // The message buffers of a chunk: kBuffers tensors each; none if nothing is received or sent.
  struct ChunkBuffers {
    std::vector<Tensor> input, output, d_output, d_input;
  };

  Pipeline(Communicator* pipeline, PipelineOptions options);
  Tensor MakeBuffer(int64_t rows) const;
  void GrowForwardBuffers(int64_t rows);
  absl::StatusOr<PipelineRun> Execute(PipelineStage& stage,
                                      const std::vector<PipelineAction>& actions, bool backward,
                                      int64_t micro_batches, int64_t rows);

  Communicator* const communicator_;
  const PipelineOptions options_;
  const int rank_;
  const PipelineShape shape_;
  const std::vector<PipelineAction> schedule_;  // of Train()
  std::vector<int64_t> slots_;                  // by chunk
  std::vector<ChunkBuffers> buffers_;           // by chunk
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_PIPELINE_H_
