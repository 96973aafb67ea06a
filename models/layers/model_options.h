#ifndef TESSERA_MODELS_LAYERS_MODEL_OPTIONS_H_
#define TESSERA_MODELS_LAYERS_MODEL_OPTIONS_H_

#include <cstdint>
#include <optional>

#include "compute/parallel/tensor_parallel.h"
#include "layout/dtype.h"
#include "layout/topology.h"

namespace tessera {

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

#endif  // TESSERA_MODELS_LAYERS_MODEL_OPTIONS_H_
