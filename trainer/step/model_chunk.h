#ifndef TESSERA_TRAINER_STEP_MODEL_CHUNK_H_
#define TESSERA_TRAINER_STEP_MODEL_CHUNK_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "compute/kernels/backend.h"
#include "compute/parallel/gradient_norm.h"
#include "compute/parallel/gradient_reducer.h"
#include "compute/parallel/mesh.h"
#include "compute/parallel/tensor_parallel.h"
#include "models/layers/model.h"
#include "tensor/tensor.h"
#include "trainer/config/config.pb.h"
#include "trainer/optim/adamw.h"

namespace tessera {

// The buffers of one micro-batch. Made in an AllocationScope (memory.h).
struct BatchSlot {
  BatchSlot(Model& model, Device device, int64_t batch, int64_t sequence, ActivationUse use);

  Tensor ids;      // int32 [B,T]
  Tensor targets;  // int32 [B,T]
  std::unique_ptr<Activations> activations;
};

// The layers of one pipeline chunk on this rank, with all state needed to train them.
class ModelChunk {
 public:
  static absl::StatusOr<ModelChunk> Create(const TrainConfig& config, uint64_t dropout_seed,
                                           const Mesh& mesh, const TensorParallel& tensor_parallel,
                                           int chunk, Backend& backend);

  // Allocates gradients, optimizer state and `slots` sets of activations, for `micro_batches` per
  // step; on a GPU with the outputs of norms, if all ranks of the tensor axis have memory for them.
  // ResourceExhausted if a GPU has no memory left for activations. Collective on the tensor axis.
  absl::Status PrepareTraining(int64_t micro_batches, int64_t slots);

  Model& model() const { return *model_; }
  Backend& backend() const { return *backend_; }
  ParameterSet& parameters() const { return model_->parameters(); }
  GradientReducer& reducer() const { return *reducer_; }
  bool has_optimizer() const { return optimizer_ != nullptr; }
  AdamW& optimizer() const { return *optimizer_; }
  BatchSlot& slot(int64_t i) { return slots_[i]; }
  int64_t slots() const { return static_cast<int64_t>(slots_.size()); }

  // Returns whether the chunk reads data: only the first layers use token ids, and only the last
  // ones use targets.
  bool reads_data() const { return layers_.has_embedding || layers_.has_head; }
  bool has_head() const { return layers_.has_head; }

  void AppendGradientParts(std::vector<GradientPart>* parts) const;
  int64_t activation_bytes() const;

 private:
  ModelChunk(const TrainConfig& config, const Mesh& mesh, const ChunkLayers& layers,
             std::unique_ptr<Model> model, Backend& backend)
      : config_(&config),
        mesh_(&mesh),
        layers_(layers),
        model_(std::move(model)),
        backend_(&backend) {}

  absl::StatusOr<ActivationUse> ChooseActivationUse(int64_t slots) const;
  GradientLayout Layout() const;
  void MakeReducer(int64_t micro_batches);
  void MakeOptimizer();

  const TrainConfig* config_;
  const Mesh* mesh_;
  ChunkLayers layers_;
  std::unique_ptr<Model> model_;
  Backend* backend_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<AdamW> optimizer_;
  std::vector<BatchSlot> slots_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_STEP_MODEL_CHUNK_H_
