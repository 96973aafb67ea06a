#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "checkpoint/include/process_group.h"
#include "compute/device/training_device.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"
#include "trainer/app/session.h"
#include "trainer/app/start.h"
#include "trainer/state/device_mirror.h"
#include "trainer/state/foreign_weights.h"
#include "trainer/state/state_chunks.h"
#include "trainer/state/state_health.h"

namespace tessera {
namespace {

absl::Status CheckOne(const Session& session, const char* setting, const ForeignWeights& weights) {
  const DType dtype = session.config.training().bf16() ? DType::kBF16 : DType::kF32;
  return InSetting(setting, CheckForeignWeights(weights, session.config.model(), dtype));
}

DType ExportedDType(const Session& session) {
  switch (session.config.checkpoint().export_dtype()) {
    case ExportDtype::FLOAT32:
      return DType::kF32;
    case ExportDtype::BFLOAT16:
      return DType::kBF16;
    case ExportDtype::FLOAT16:
      return DType::kF16;
    default:
      return DType::kUnspecified;
  }
}

// The export of export_llmc_interval: "weights.bin" becomes "weights-00000100.bin".
ForeignWeights LlmcExportOfStep(const Session& session) {
  const std::filesystem::path path(session.config.checkpoint().export_llmc());
  const std::string name = path.stem().string() + absl::StrFormat("-%08d", session.progress.step) +
                           path.extension().string();
  return {.format = "llmc",
          .path = (path.parent_path() / name).string(),
          .dtype = ExportedDType(session)};
}

// A file beside weights that a start makes up for. It is there until they are written, or until all
// ranks have found that they cannot be.
std::string MarkOfRetry(const ForeignWeights& weights) { return weights.path + ".retried"; }

}  // namespace

absl::Status CheckExport(const Session& session) {
  const CheckpointConfig& checkpoint = session.config.checkpoint();
  if (!checkpoint.export_llmc().empty()) {
    TESSERA_RETURN_IF_ERROR(CheckOne(session, "export_llmc", LlmcExport(session)));
  }
  const bool at_end = checkpoint.last_save_in_hf();
  if (checkpoint.export_hf_interval() == 0 && !at_end) return absl::OkStatus();
  return CheckOne(session, at_end ? "last_save_in_hf" : "export_hf_interval",
                  HuggingFaceExportOfStep(session));
}

absl::Status ExportWeights(const Session& session, const ForeignWeights& weights) {
  std::vector<StateChunk> chunks = session.state();
  const RankGroup group = session.group();
  if (weights.is_retry && session.first_rank()) ReplaceFile(MarkOfRetry(weights), "").IgnoreError();
  absl::Status written;
  // The weights on a GPU, in host memory. The session's mirror may be in use by a save.
  std::unique_ptr<DeviceMirror> mirror;
  if (TrainingDevice* const gpu = session.device->gpu(); gpu != nullptr) {
    const auto download = [&]() -> absl::Status {
      std::vector<TensorView> weights;
      for (const StateChunk& chunk : chunks) weights.push_back(chunk.parameters->values());
      TESSERA_ASSIGN_OR_RETURN(mirror, DeviceMirror::Create(*gpu->compute, weights));
      mirror->StartDownload();
      return mirror->FinishDownload();
    };
    written = download();
    for (StateChunk& chunk : chunks) chunk.mirror = mirror.get();
  }
  // An error on one rank is one on all, because the run continues after it.
  if (written.ok() && !IsFinite(WeightState(chunks))) {
    written =
        absl::AbortedError(absl::StrCat("no weights written to ", weights.path, ": those of step ",
                                        session.progress.step, " are not finite"));
  }
  written = ckpt::AgreeOnStatus(group.ranks, written, group.timeout);
  if (written.ok()) written = WriteForeignWeights(weights, session.config.model(), chunks, group);
  const bool all_are_here =
      written.ok() || ckpt::AgreeOnStatus(group.ranks, absl::OkStatus(), group.timeout).ok();
  std::error_code none;
  if (session.first_rank() && all_are_here) std::filesystem::remove(MarkOfRetry(weights), none);
  return written;
}

ForeignWeights LlmcExport(const Session& session) {
  return {.format = "llmc",
          .path = session.config.checkpoint().export_llmc(),
          .dtype = ExportedDType(session)};
}

std::vector<ForeignWeights> DueExports(const Session& session) {
  const CheckpointConfig& checkpoint = session.config.checkpoint();
  const auto is_due = [&](int64_t interval) {
    return interval > 0 && session.progress.step % interval == 0;
  };
  std::vector<ForeignWeights> due;
  if (is_due(checkpoint.export_llmc_interval())) due.push_back(LlmcExportOfStep(session));
  if (is_due(checkpoint.export_hf_interval())) due.push_back(HuggingFaceExportOfStep(session));
  return due;
}

absl::StatusOr<std::vector<ForeignWeights>> OwedExports(const Session& session,
                                                        const NoteSink& notes) {
  std::vector<ForeignWeights> due = DueExports(session);
  const bool is_whole = session.resumed_own && session.loaded.has_value();
  std::vector<ForeignWeights> owed;
  if (due.empty() || !is_whole || !session.resumed_healthy) return owed;
  std::string states;
  for (const ForeignWeights& weights : due) {
    std::error_code error;
    const bool is_there = std::filesystem::exists(weights.path, error);
    const bool was_retried = std::filesystem::exists(MarkOfRetry(weights), error);
    states += is_there ? 'T' : was_retried ? 'R' : 'M';
  }
  const RankGroup group = session.group();
  TESSERA_ASSIGN_OR_RETURN(states, group.ranks.Broadcast(states, group.timeout));
  for (size_t i = 0; i < due.size(); ++i) {
    if (states.at(i) == 'R') {
      notes(absl::StrCat("no weights written to ", due[i].path,
                         ": a process has died while an earlier start made up for them; without ",
                         MarkOfRetry(due[i]), " the next start tries again"));
    }
    due[i].is_retry = true;
    if (states.at(i) == 'M') owed.push_back(std::move(due[i]));
  }
  return owed;
}

ForeignWeights HuggingFaceExportOfStep(const Session& session) {
  const std::string& save = session.config.checkpoint().save();
  return {.format = "hf",
          .path = absl::StrCat(save, save.ends_with('/') ? "" : "/",
                               absl::StrFormat("hf-%08d", session.progress.step)),
          .dtype = ExportedDType(session),
          .tokenizer = session.tokenizer.get(),
          .tokenizer_path = session.config.data().tokenizer_model()};
}

}  // namespace tessera
