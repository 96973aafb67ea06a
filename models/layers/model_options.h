#ifndef TESSERA_MODELS_LAYERS_MODEL_OPTIONS_H_
#define TESSERA_MODELS_LAYERS_MODEL_OPTIONS_H_

#include <cstdint>

#include "models/layers/stage.h"
#include "trainer/parallel/tensor_parallel.h"
#include "trainer/tensor/dtype.h"

namespace tessera {

// How a model is computed, apart from what it is.
struct ModelOptions {
  DType compute_dtype = DType::kF32;  // or kBF16; kF64 with the reference backend
  // Memory for gradients. Without it: forward only (evaluation, sampling), or gradients in memory
  // that ParameterSet::BindGradients gives.
  bool with_gradients = true;
  uint64_t seed = 1234;  // of dropout; initial weights take theirs in ParameterSet::Initialize
  StageLayers stage;     // which layers; all of them by default
  // Which shards of them; null: one rank, one shard. Its communicator must outlive the model.
  const TensorParallel* tensor_parallel = nullptr;
  // Where one stage uses a tied table at both ends: the head's contribution to its gradient is kept
  // apart (Parameter::second_grad).
  bool separate_tied_gradients = false;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_MODEL_OPTIONS_H_
