#ifndef TESSERA_TRAINER_STEP_PASS_TRACE_H_
#define TESSERA_TRAINER_STEP_PASS_TRACE_H_

// Digests of everything that leaves one micro-batch's pass through a model, and memory for
// gradients that are needed only for their digests.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "compute/parallel/gradient_buckets.h"
#include "compute/parallel/mesh.h"
#include "models/layers/parameter.h"
#include "tensor/tensor.h"

namespace tessera {

// The digests (CRC-32C) of one micro-batch's pass on one rank, in the order of computation:
// - of the output that each stage's forward pass sends on, and of the loss;
// - of each parameter's gradient as it becomes ready;
// - of the gradient that each stage's backward pass sends back.
//
// Ranks at the same position of the tensor and pipeline axes that compute the same micro-batch with
// the same weights have equal traces, unless one of them is faulty.
class PassTrace {
 public:
  struct Event {
    int64_t order = 0;  // of all ranks' events, where one rank's result depends on another's
    int64_t digest = 0;
    std::string what;  // "the gradient of 'h.0.ln_1.weight'"
  };

  PassTrace(const Mesh& mesh, Backend& backend) : mesh_(&mesh), backend_(&backend) {}

  // Adds the result of a forward pass. After the model's last layers, `output` is empty and `loss`
  // is the micro-batch's.
  void AddForward(int chunk, const TensorView& output, double loss);
  void AddGradient(int chunk, const TensorView& gradient, std::string what);
  // Adds the result of a backward pass. `d_input` is empty for the model's first layers.
  void AddBackward(int chunk, const TensorView& d_input);

  const std::vector<Event>& events() const { return events_; }
  // Returns a digest of all digests.
  int64_t Summary() const;

 private:
  int Stages() const;
  int Stage(int chunk) const;  // among the chunks of all ranks
  void Add(int64_t phase, int64_t digest, std::string what);

  const Mesh* mesh_;
  Backend* backend_;
  std::vector<Event> events_;
};

// Adds the gradients of a chunk's backward pass to a trace before `next` learns that they are
// ready. Precondition: the pass overwrites gradients.
class TracedGradients final : public GradientObserver {
 public:
  TracedGradients(PassTrace& trace, int chunk, const ParameterSet& parameters,
                  GradientObserver& next)
      : trace_(trace), chunk_(chunk), parameters_(parameters), next_(next) {}

  absl::Status Prepare(int64_t begin, int64_t end) override { return next_.Prepare(begin, end); }
  absl::Status Ready(int64_t begin, int64_t end) override;

 private:
  PassTrace& trace_;
  const int chunk_;
  const ParameterSet& parameters_;
  GradientObserver& next_;
};

// Memory for the gradients of a backward pass from Prepare() to Ready(). Binds the gradients to
// this memory, and on destruction to their former memory.
class ScratchGradients final : public GradientObserver {
 public:
  ScratchGradients(ParameterSet& parameters, Device device);
  ~ScratchGradients() override;

  absl::Status Prepare(int64_t begin, int64_t end) override;
  absl::Status Ready(int64_t begin, int64_t end) override;

  // Returns the most bytes that are held at once: one layer, or one end of the model, and the table
  // of tied embeddings, which stays from the head's backward pass to the embedding's.
  static int64_t MaxBytes(const ParameterSet& parameters);

 private:
  struct Held {
    int64_t begin, end;
    Tensor memory;
  };
  ParameterSet& parameters_;
  const Device device_;
  std::vector<std::pair<TensorView, TensorView>> before_;  // gradients, by parameter
  std::vector<Held> held_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_STEP_PASS_TRACE_H_
