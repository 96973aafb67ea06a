#include "trainer/app/import_weights.h"

#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/memory.h"
#include "compute/tensor/tensor.h"
#include "models/layers/parameter.h"
#include "models/llmc.h"
#include "trainer/optim/adamw.h"

namespace tessera {
namespace {

// Where the backend computes.
absl::StatusOr<Tensor> Moved(Tensor host, Backend& backend) {
  if (backend.device().type == DeviceType::kCpu) return host;
  const TensorView view = host;
  AllocationScope allocations;
  Tensor moved(view.dtype(), view.shape(), backend.device());
  TESSERA_RETURN_IF_ERROR(allocations.End());
  backend.Upload(view.data(), moved);
  return moved;
}

}  // namespace

absl::Status ImportWeights(const std::string& llmc_file, const ModelConfig& model,
                           std::span<const TrainedChunk> chunks, Backend& backend) {
  // The buffer of a chunk is freed before the next one is allocated.
  for (const TrainedChunk& chunk : chunks) {
    const ParameterSet& parameters = *chunk.parameters;
    const TensorView values = parameters.values();
    const bool has_master = chunk.optimizer != nullptr && chunk.optimizer->has_master();
    if (!has_master && backend.device().type == DeviceType::kCpu) {
      TESSERA_RETURN_IF_ERROR(ImportLlmc(llmc_file, model, parameters, values));
      continue;
    }
    Tensor read(has_master ? DType::kF32 : values.dtype(), {parameters.flat_elements()});
    TESSERA_RETURN_IF_ERROR(ImportLlmc(llmc_file, model, parameters, read));
    TESSERA_ASSIGN_OR_RETURN(const Tensor full, Moved(std::move(read), backend));
    backend.Copy({full, values});
    if (has_master) chunk.optimizer->SetMaster(full);
  }
  return absl::OkStatus();
}

}  // namespace tessera
