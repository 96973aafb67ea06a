#include "trainer/state/llmc_file.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/output.h"
#include "convert/llmc/llmc.h"
#include "trainer/state/run_state.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kConvertedFile[] = "converted.bin";

// Removes what WriteLlmcFile() puts into the folder, and the folder if nothing else is in it.
void RemoveUnfinished(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder / ckpt::StepDirectoryName(0), error);
  fs::remove(folder / kConvertedFile, error);
  fs::remove(folder, error);
}

// On rank 0: makes the file of the checkpoint in the folder.
absl::Status Convert(const std::string& folder, const std::string& checkpoint,
                     const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ckpt::Storage> storage, ckpt::OpenStorage(folder));
  TESSERA_ASSIGN_OR_RETURN(const ckpt::Checkpoint source,
                           ckpt::Checkpoint::Open(*storage, checkpoint));
  TESSERA_ASSIGN_OR_RETURN(std::vector<ckpt::convert::OutputFile> files,
                           ckpt::convert::PlanLlmc(source.manifest(), {.weights_only = true}));
  files.resize(1);  // the model's
  files[0].name = kConvertedFile;
  TESSERA_RETURN_IF_ERROR(ckpt::convert::WriteOutput(source, files, *storage, "", {}).status());
  std::error_code error;
  fs::rename(fs::path(folder) / kConvertedFile, path, error);
  if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
  const fs::path parent = fs::path(path).parent_path();
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ckpt::Storage> above,
                           ckpt::OpenStorage(parent.empty() ? "." : parent.string()));
  return above->SyncDirectory("");
}

}  // namespace

absl::Status CheckLlmcFile(const std::string& path, const ModelConfig& model, DType dtype) {
  TESSERA_RETURN_IF_ERROR(ckpt::convert::WriteLlmcHeader(ToProto(model), dtype).status());
  if (std::error_code error; fs::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a folder"));
  }
  return FileReplacement::Create(path).status();
}

absl::Status WriteLlmcFile(const std::string& path, const ModelConfig& model, StateChunks chunks,
                           const RankGroup& group) {
  const std::string folder = path + ".unfinished";
  const auto agree = [&](const absl::Status& mine) {
    return ckpt::AgreeOnStatus(group.ranks, mine, group.deadline);
  };
  // What a run that was killed has left would mix with this one's files.
  const bool is_first = group.ranks.rank() == 0;
  if (is_first) RemoveUnfinished(folder);
  TESSERA_RETURN_IF_ERROR(agree(absl::OkStatus()));
  absl::StatusOr<std::unique_ptr<ckpt::Storage>> storage =
      ckpt::OpenStorage(folder, {.create_root = true});
  TESSERA_RETURN_IF_ERROR(agree(storage.status()));
  ckpt::Manifest run;
  *run.mutable_model() = ToProto(model);
  ckpt::SaveOptions options;
  options.group = &group.ranks;
  options.deadline = group.deadline;
  options.metadata = ckpt::ToMetadata(std::move(run));
  absl::Status status =
      ckpt::CheckpointFolder(**storage).Save(/*step=*/0, WeightState(chunks), options).status();
  storage->reset();
  if (status.ok() && is_first) status = Convert(folder, ckpt::StepDirectoryName(0), path);
  if (is_first) RemoveUnfinished(folder);
  return agree(status);
}

}  // namespace tessera
