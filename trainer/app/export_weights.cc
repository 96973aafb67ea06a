#include "trainer/app/export_weights.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "compute/device/training_device.h"
#include "compute/tensor/tensor.h"
#include "layout/dtype.h"
#include "trainer/state/device_mirror.h"
#include "trainer/state/llmc_file.h"

namespace tessera {

absl::Status CheckExport(const TrainConfig& config) {
  const std::string& path = config.checkpoint().export_llmc();
  if (path.empty()) return absl::OkStatus();
  const DType dtype = config.training().bf16() ? DType::kBF16 : DType::kF32;
  const absl::Status status = CheckLlmcFile(path, config.model(), dtype);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("export_llmc: ", status.message()));
}

absl::Status ExportWeights(const Session& session, const std::string& path) {
  std::vector<StateChunk> chunks = session.state();
  // The weights on a GPU, in host memory. The session's mirror may be in use by a save.
  std::unique_ptr<DeviceMirror> mirror;
  if (TrainingDevice* const gpu = session.device->gpu(); gpu != nullptr) {
    std::vector<TensorView> weights;
    for (const StateChunk& chunk : chunks) weights.push_back(chunk.parameters->values());
    TESSERA_ASSIGN_OR_RETURN(mirror, DeviceMirror::Create(*gpu->compute, weights));
    mirror->StartDownload();
    TESSERA_RETURN_IF_ERROR(mirror->FinishDownload());
    for (StateChunk& chunk : chunks) chunk.mirror = mirror.get();
  }
  return WriteLlmcFile(path, session.config.model(), chunks, session.group());
}

std::string ExportPathOfStep(const std::string& export_llmc, int64_t step) {
  const std::filesystem::path path(export_llmc);
  const std::string name =
      path.stem().string() + absl::StrFormat("-%08d", step) + path.extension().string();
  return (path.parent_path() / name).string();
}

}  // namespace tessera
