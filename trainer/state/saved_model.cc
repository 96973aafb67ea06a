#include "trainer/state/saved_model.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "convert/core/reading.h"
#include "convert/open_foreign.h"
#include "models/model_config.h"
#include "trainer/state/describe_saved.h"
#include "trainer/state/save_storage.h"
#include "trainer/state/saved_settings.h"

namespace tessera {
namespace {

std::optional<SavedModel> ModelOf(const ckpt::Manifest& manifest, const std::string& place) {
  ModelConfig config;
  if (!ParseSettings(manifest.model().text(), &config) || !config.has_num_layers()) {
    return std::nullopt;
  }
  const absl::StatusOr<ModelConfig> resolved = ResolveModelConfig(config);
  if (!resolved.ok()) return std::nullopt;
  return SavedModel{.config = *resolved, .place = place};
}

// Returns the model of the newest checkpoint in a folder, or of the folder itself, whose manifest
// can be read; if the checkpoint of `step` exists, its model. FindNamed() reports a checkpoint that
// cannot be read. `is_there` gets whether there is any checkpoint of ours, readable or not.
std::optional<SavedModel> ModelIn(const std::string& folder, std::optional<int64_t> step,
                                  const CheckpointConfig& config, bool* is_there) {
  const absl::StatusOr<std::unique_ptr<Storage>> storage = OpenStorage(folder, StoresOf(config));
  *is_there = false;  // a file is another framework's
  if (!storage.ok()) return std::nullopt;
  const absl::StatusOr<ckpt::Manifest> single = ckpt::ReadManifest(**storage, "");
  if (single.ok()) return ModelOf(*single, folder);
  const absl::StatusOr<std::vector<ckpt::CheckpointInfo>> saved = ckpt::ListForResume(**storage);
  *is_there = !absl::IsNotFound(single.status()) || !saved.ok() || !saved->empty();
  if (!saved.ok()) return std::nullopt;
  std::optional<SavedModel> newest;
  for (const ckpt::CheckpointInfo& checkpoint : *saved) {
    const bool is_wanted = !step.has_value() || checkpoint.step == *step;
    if (!is_wanted && newest.has_value()) continue;
    const absl::StatusOr<ckpt::Manifest> manifest =
        ckpt::ReadManifest(**storage, checkpoint.directory);
    if (!manifest.ok()) continue;
    std::optional<SavedModel> model =
        ModelOf(*manifest, (*storage)->Describe(checkpoint.directory));
    if (is_wanted) return model;
    newest = std::move(model);
  }
  return newest;
}

// Returns the model of another framework's checkpoint in `load`, that of `step` in the folder of a
// run.
absl::StatusOr<std::optional<SavedModel>> ForeignModelIn(const CheckpointConfig& config,
                                                         std::optional<int64_t> step) {
  const ckpt::convert::OpenForeignOptions options = {
      .format = config.load_format(),
      .stores = StoresOf(config),
      .parameter_names_file = config.parameter_to_structured_name(),
      .needs_trainer_files = false};
  const absl::StatusOr<ckpt::convert::FoundForeign> found =
      ckpt::convert::FindForeign(config.load(), step, options);
  if (absl::IsNotFound(found.status())) return NothingToLoad(config);
  TESSERA_RETURN_IF_ERROR(found.status());
  const absl::StatusOr<ckpt::convert::ForeignCheckpoint> files =
      ckpt::convert::DescribeForeign(found->name, options);
  if (absl::IsNotFound(files.status())) return NothingToLoad(config);
  TESSERA_RETURN_IF_ERROR(files.status());
  std::optional<SavedModel> model = ModelOf(files->description, found->name);
  const bool needs_all = !config.allow_missing() && config.load_tensors().empty();
  if (!needs_all) return model;
  if (!files->mismatch.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("load=", config.load(), ": ", found->name, ": ", files->mismatch,
                     "; restore the file from a copy, or give --allow-missing"));
  }
  if (model.has_value() || files->notes.empty()) return model;
  return ckpt::convert::WithNotes(
      absl::InvalidArgumentError(absl::StrCat(
          "load=", config.load(), ": ", found->name,
          " does not describe a known model, and neither do the settings: give --size")),
      files->notes);
}

}  // namespace

absl::StatusOr<std::optional<SavedModel>> FindSavedModel(const CheckpointConfig& config) {
  std::optional<SavedModel> model;
  bool is_there = false;
  if (!config.save().empty() && config.auto_resume()) {
    model = ModelIn(config.save(), std::nullopt, config, &is_there);
  }
  if (model.has_value() || config.load().empty()) return model;
  const std::optional<int64_t> step =
      config.has_ckpt_step() ? std::optional(config.ckpt_step()) : std::nullopt;
  const std::string& format = config.load_format();
  if (format.empty() || format == kTesseraFormat) {
    model = ModelIn(config.load(), step, config, &is_there);
    if (model.has_value() || is_there) return model;
    if (!format.empty()) return NothingToLoad(config);
  }
  TESSERA_RETURN_IF_ERROR(CheckLoadFormat(config));
  return ForeignModelIn(config, step);
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
