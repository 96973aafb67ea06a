#include "trainer/app/export_weights.h"

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "compute/comm/communicator.h"
#include "compute/kernels/backend.h"
#include "compute/parallel/mesh.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"
#include "models/layers/parameter.h"
#include "models/llmc.h"

namespace tessera {
namespace {

// The first of the ranks with a copy of a parameter contributes it: data ranks have the same
// weights, tensor ranks the same unsharded ones, and the first and the last stage the same tied
// table.
bool IsFirstCopy(const Mesh& mesh, const Parameter& parameter) {
  if (mesh.coordinate().data != 0) return false;
  if (parameter.shard < 0 && mesh.coordinate().tensor != 0) return false;
  return parameter.tied_name.empty() || mesh.first_stage();
}

}  // namespace

absl::Status CheckExport(const TrainConfig& config) {
  const std::string& path = config.checkpoint().export_llmc();
  if (path.empty()) return absl::OkStatus();
  const DType dtype = config.training().bf16() ? DType::kBF16 : DType::kF32;
  const absl::Status status = CheckLlmcExport(path, config.model(), {.dtype = dtype});
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("export_llmc: ", status.message()));
}

absl::Status ExportWeights(const Session& session, const std::string& path) {
  const Mesh& mesh = *session.mesh;
  Backend& backend = session.backend();
  std::vector<Tensor> copies;  // of a GPU's weights
  std::vector<LlmcPart> parts;
  for (const TrainedChunk& chunk : session.trainer->chunks()) {
    TensorView values = chunk.parameters->values();
    if (backend.device().type != DeviceType::kCpu) {
      copies.emplace_back(values.dtype(), values.shape());
      backend.Download(values, copies.back().view().data());
      values = copies.back();
    }
    parts.push_back({.parameters = chunk.parameters, .flat = values});
  }
  TESSERA_RETURN_IF_ERROR(backend.Synchronize());
  LlmcRanks ranks;
  if (Communicator* world = mesh.world(); world != nullptr) {
    ranks.gives = [&mesh](const Parameter& parameter) { return IsFirstCopy(mesh, parameter); };
    ranks.sum = [world](std::span<float> values) {
      return world->AllReduce(values, ReduceOp::kSum, {.what = "weights for an llm.c file"});
    };
  }
  const LlmcFileOptions options{.dtype = parts.front().flat.dtype()};
  return ExportLlmc(path, session.config.model(), options, parts, ranks, session.first_rank());
}

std::string ExportPathOfStep(const std::string& export_llmc, int64_t step) {
  const std::filesystem::path path(export_llmc);
  const std::string name =
      path.stem().string() + absl::StrFormat("-%08d", step) + path.extension().string();
  return (path.parent_path() / name).string();
}

}  // namespace tessera
