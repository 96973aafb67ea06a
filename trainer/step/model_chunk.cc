#include "trainer/step/model_chunk.h"

#include <span>

#include "base/status_macros.h"
#include "comm/communicator.h"
#include "layout/topology.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "tensor/device_runtime.h"
#include "tensor/device_tensors.h"
#include "tensor/memory.h"

namespace tessera {
namespace {

bool Exact(const TrainConfig& config) { return config.parallel().numerics() == Numerics::EXACT; }

}  // namespace

BatchSlot::BatchSlot(Model& model, Device device, int64_t batch, int64_t sequence,
                     ActivationUse use)
    : ids(DType::kI32, {batch, sequence}, device),
      targets(DType::kI32, {batch, sequence}, device),
      activations(model.NewActivations(batch, sequence, use)) {}

absl::StatusOr<ModelChunk> ModelChunk::Create(const TrainConfig& config, uint64_t dropout_seed,
                                              const Mesh& mesh,
                                              const TensorParallel& tensor_parallel, int chunk,
                                              Backend& backend) {
  const ChunkLayers layers =
      mesh.LayersOf(config.model().num_layers(), HeadInLayers(config.model()), chunk);
  const ModelOptions options{.compute_dtype = config.training().bf16() ? DType::kBF16 : DType::kF32,
                             .with_gradients = false,  // the reducer allocates them
                             .seed = dropout_seed,
                             .stage = layers,
                             .tensor_parallel = &tensor_parallel,
                             .separate_tied_gradients = Exact(config),
                             .sums_by_unit = Exact(config)};
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                           MakeModel(config.model(), options, backend));
  return ModelChunk(config, mesh, layers, std::move(model), backend);
}

absl::Status ModelChunk::PrepareTraining(int64_t micro_batches, int64_t slots) {
  MakeReducer(micro_batches);
  MakeOptimizer();
  const TrainingConfig& training = config_->training();
  TESSERA_ASSIGN_OR_RETURN(const ActivationUse use, ChooseActivationUse(slots));
  AllocationScope allocations;
  for (int64_t i = 0; i < slots; ++i) {
    slots_.emplace_back(*model_, backend_->device(), training.micro_batch_size(),
                        training.seq_length(), use);
  }
  return allocations.End();
}

// Outputs of norms are kept where they leave room for the activations of an evaluation and an
// eighth of the memory: workspaces, NCCL's buffers, pieces of gradients. Where they are not, the
// tensor axis exchanges them again, so that its ranks must agree. With several chunks on a stage,
// the later ones have not been allocated yet.
absl::StatusOr<ActivationUse> ModelChunk::ChooseActivationUse(int64_t slots) const {
  const TrainingConfig& training = config_->training();
  if (training.recompute_activations()) return ActivationUse::kTrainingRecompute;
  if (backend_->device().type == DeviceType::kCpu || mesh_->topology().virtual_pipeline > 1) {
    return ActivationUse::kTraining;
  }
  const auto bytes = [&](ActivationUse use) {
    return model_->ActivationBytes(training.micro_batch_size(), training.seq_length(), use);
  };
  const DeviceRuntime::MemoryInfo memory = DeviceMemory(backend_->device());
  int64_t exceeds = slots * bytes(ActivationUse::kTrainingWithNorms) +
                        bytes(ActivationUse::kForwardOnly) + memory.total_bytes / 8 >
                    memory.free_bytes;
  if (Communicator* const tensor = mesh_->host().tensor; tensor != nullptr) {
    TESSERA_RETURN_IF_ERROR(tensor->AllReduce(std::span(&exceeds, 1), ReduceOp::kMax,
                                              {.what = "memory for outputs of norms"}));
  }
  return exceeds != 0 ? ActivationUse::kTraining : ActivationUse::kTrainingWithNorms;
}

GradientLayout ModelChunk::Layout() const {
  GradientLayout layout;
  layout.value_elements = parameters().flat_elements();
  layout.gradient_elements = parameters().gradient_elements();
  for (const Parameter* parameter : parameters().parameters()) {
    const bool tied = !parameter->tied_name.empty();
    layout.parameters.push_back(
        {.key = parameter->key,
         .begin = parameter->flat_offset,
         .elements = parameter->elements(),
         .weight_decay = parameter->weight_decay,
         .tied = tied,
         .second_begin = parameter->second_grad_offset,
         // The embedding and the head are in different chunks.
         .on_two_stages = tied && layers_.has_embedding != layers_.has_head});
  }
  return layout;
}

void ModelChunk::MakeReducer(int64_t micro_batches) {
  GradientReducerOptions options;
  options.data_parallel = mesh_->data();
  options.tie = mesh_->tied();
  options.zero_stage = mesh_->topology().zero_stage;
  options.exact = Exact(*config_);
  options.bucket_elements = config_->parallel().ddp_bucket_size();
  options.micro_batches = micro_batches;
  options.dtype = parameters().grad_dtype();
  options.bind = [set = &parameters()](int64_t begin, int64_t end, const TensorView& memory) {
    set->BindGradients(begin, end, memory);
  };
  reducer_ = std::make_unique<GradientReducer>(*backend_, Layout(), std::move(options));
}

void ModelChunk::MakeOptimizer() {
  std::vector<OwnedRange> ranges;
  const TensorView values = parameters().values();
  for (const OwnedGradient& owned : reducer_->owned()) {
    ranges.push_back({.begin = owned.begin,
                      .end = owned.end,
                      .values = values.Slice(0, owned.begin, owned.end),
                      .grads = owned.grad});
  }
  MemoryScope scope(MemoryCategory::kOptimizer);
  optimizer_ =
      std::make_unique<AdamW>(*backend_, config_->optimizer(), reducer_->layout().parameters,
                              std::move(ranges), values.dtype());
}

void ModelChunk::AppendGradientParts(std::vector<GradientPart>* parts) const {
  tessera::AppendGradientParts(reducer_->layout(), reducer_->owned(), parts);
}

int64_t ModelChunk::activation_bytes() const {
  int64_t bytes = 0;
  for (const BatchSlot& slot : slots_) bytes += slot.activations->bytes();
  return bytes;
}

}  // namespace tessera
