#include "trainer/state/saved_model.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "convert/open_foreign.h"
#include "google/protobuf/text_format.h"
#include "models/model_config.h"

namespace tessera {
namespace {

std::optional<SavedModel> ModelOf(const ckpt::Manifest& manifest, const std::string& place) {
  ModelConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(manifest.model().text(), &config) ||
      !config.has_num_layers()) {
    return std::nullopt;
  }
  const absl::StatusOr<ModelConfig> resolved = ResolveModelConfig(config);
  if (!resolved.ok()) return std::nullopt;
  return SavedModel{.config = *resolved, .place = place};
}

// The model of the first checkpoint in a folder, or of the folder itself, whose manifest can be
// read. What cannot be read is left to FindSavedRun(), which reports it.
std::optional<SavedModel> ModelIn(const std::string& folder, std::optional<int64_t> step,
                                  const CheckpointConfig& config) {
  const absl::StatusOr<std::unique_ptr<ckpt::Storage>> storage =
      ckpt::OpenStorage(folder, {.s3_endpoint = config.s3_endpoint()});
  if (!storage.ok()) return std::nullopt;
  const absl::StatusOr<ckpt::Manifest> single = ckpt::ReadManifest(**storage, "");
  if (single.ok()) return ModelOf(*single, folder);
  const absl::StatusOr<std::vector<ckpt::CheckpointInfo>> saved = ckpt::ListForResume(**storage);
  if (!saved.ok()) return std::nullopt;
  for (const ckpt::CheckpointInfo& checkpoint : *saved) {
    if (step.has_value() && checkpoint.step != *step) continue;
    const absl::StatusOr<ckpt::Manifest> manifest =
        ckpt::ReadManifest(**storage, checkpoint.directory);
    if (manifest.ok()) return ModelOf(*manifest, (*storage)->Describe(checkpoint.directory));
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::optional<SavedModel>> FindSavedModel(const CheckpointConfig& config) {
  std::optional<SavedModel> model;
  if (!config.save().empty() && config.auto_resume()) {
    model = ModelIn(config.save(), std::nullopt, config);
  }
  if (model.has_value() || config.load().empty()) return model;
  const std::optional<int64_t> step =
      config.has_ckpt_step() ? std::optional(config.ckpt_step()) : std::nullopt;
  const std::string& format = config.load_format();
  if (format.empty() || format == kTesseraFormat) {
    model = ModelIn(config.load(), step, config);
    if (model.has_value() || !format.empty()) return model;
  }
  TESSERA_RETURN_IF_ERROR(CheckLoadFormat(config));
  const ckpt::convert::OpenForeignOptions options = {
      .format = format,
      .s3_endpoint = config.s3_endpoint(),
      .parameter_names_file = config.parameter_to_structured_name(),
      .needs_trainer_files = false};
  const absl::StatusOr<ckpt::convert::FoundForeign> found =
      ckpt::convert::FindForeign(config.load(), step, options);
  if (absl::IsNotFound(found.status())) return std::nullopt;
  TESSERA_RETURN_IF_ERROR(found.status());
  std::string mismatch;
  const absl::StatusOr<ckpt::Manifest> description =
      ckpt::convert::DescribeForeign(found->name, options, &mismatch);
  if (absl::IsNotFound(description.status())) return std::nullopt;
  TESSERA_RETURN_IF_ERROR(description.status());
  const bool needs_all = !config.allow_missing() && config.load_tensors().empty();
  if (!mismatch.empty() && needs_all) {
    return absl::FailedPreconditionError(
        absl::StrCat("load=", config.load(), ": ", found->name, ": ", mismatch,
                     "; restore the file from a copy, or give --allow-missing"));
  }
  return ModelOf(*description, found->name);
}

absl::Status CheckLoadFormat(const CheckpointConfig& config) {
  const std::string& format = config.load_format();
  if (format.empty() || format == kTesseraFormat) return absl::OkStatus();
  if (ckpt::convert::IsFormatName(format)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("load_format=", format, ": expected one of ", kTesseraFormat, ", ",
                   absl::StrJoin(ckpt::convert::FormatNames(), ", ")));
}

}  // namespace tessera
