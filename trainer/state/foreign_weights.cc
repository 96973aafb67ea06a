#include "trainer/state/foreign_weights.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "convert/core/models.h"
#include "convert/formats/llmc/llmc.h"
#include "convert/write_foreign.h"
#include "tokenizer/files/hugging_face_files.h"
#include "trainer/state/run_state.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// One rank converts, for as long as it takes to read and write all weights. The others find out
// earlier if it is gone.
constexpr absl::Duration kConversionTimeout = absl::Hours(24);
constexpr char kConverted[] = "converted", kReplaced[] = "replaced";

// Removes what WriteForeignWeights() puts into the folder, and the folder if nothing else is in it.
void RemoveUnfinished(const fs::path& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    const bool is_ours = name.starts_with("step-") || name == kConverted || name == kReplaced;
    if (is_ours) fs::remove_all(entry.path(), error);
  }
  fs::remove(folder, error);
}

// Gives what was made in `folder` the name `path`. What had that name is then in the folder.
std::error_code PutInPlace(const fs::path& folder, const fs::path& made, const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(made, error) || !fs::exists(path, error)) {
    fs::rename(made, path, error);
    return error;
  }
  if (renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return {};
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) {
    return {errno, std::generic_category()};
  }
  fs::rename(path, folder / kReplaced, error);
  if (!error) fs::rename(made, path, error);
  return error;
}

absl::Status SyncAbove(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Storage> above,
                           OpenStorage(parent.empty() ? "." : parent.string()));
  return above->SyncDirectory("");
}

// Makes OutOfRange of the error for an element that is too large, and names the file or folder. A
// run has another remedy than allow_overflow.
absl::Status InWordsOfARun(const absl::Status& status, const std::string& path) {
  const std::string message(status.message());
  const size_t advice = message.find("; allow_overflow");
  if (!absl::IsFailedPrecondition(status) || advice == message.npos) return status;
  return absl::OutOfRangeError(absl::StrCat("no weights written to ", path, ": ",
                                            message.substr(0, advice),
                                            "; --export-dtype=float32 can"));
}

// Makes, on rank 0, the file or folder of the checkpoint in `folder`.
absl::Status Convert(const std::string& folder, const ForeignWeights& weights) {
  TESSERA_ASSIGN_OR_RETURN(const ckpt::CheckpointFolder opened,
                           ckpt::CheckpointFolder::Open(folder));
  TESSERA_ASSIGN_OR_RETURN(const ckpt::Checkpoint source, opened.Latest());
  const fs::path converted = fs::path(folder) / kConverted;
  const absl::StatusOr<ckpt::convert::WriteForeignReport> report =
      ckpt::convert::WriteForeign(source, converted.string(),
                                  {.format = weights.format,
                                   .plan = {.dtype = weights.dtype,
                                            .weights_only = true,
                                            .tokenizer = weights.tokenizer,
                                            .tokenizer_path = weights.tokenizer_path}});
  if (!report.ok()) return InWordsOfARun(report.status(), weights.path);
  // llm.c's first file is the model's.
  const fs::path made = weights.format == "llmc" ? converted / report->files.front() : converted;
  if (const std::error_code error = PutInPlace(folder, made, weights.path)) {
    return absl::UnavailableError(absl::StrCat(weights.path, ": ", error.message()));
  }
  return SyncAbove(weights.path);
}

}  // namespace

absl::Status CheckForeignWeights(const ForeignWeights& weights, const ModelConfig& model,
                                 DType dtype) {
  if (weights.dtype != DType::kUnspecified) dtype = weights.dtype;
  if (weights.format == "llmc") {
    TESSERA_RETURN_IF_ERROR(ckpt::convert::WriteLlmcHeader(ToProto(model), dtype).status());
    if (std::error_code error; fs::is_directory(weights.path, error)) {
      return absl::InvalidArgumentError(absl::StrCat(weights.path, " is a folder"));
    }
  } else {
    TESSERA_RETURN_IF_ERROR(ckpt::convert::WriteHuggingFaceConfig(ToProto(model), dtype).status());
    if (weights.tokenizer != nullptr) {
      const absl::Status files = HuggingFaceFiles(*weights.tokenizer).status();
      if (!files.ok()) {
        return absl::Status(files.code(),
                            absl::StrCat(weights.tokenizer_path, ": ", files.message()));
      }
    }
    if (!LocalPathOfName(weights.path).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(weights.path,
                       ": a run writes these folders to a file system only; ckpt "
                       "convert --to=hf writes to an object store"));
    }
    const fs::path folder = fs::path(weights.path).parent_path();
    TESSERA_RETURN_IF_ERROR(OpenStorage(folder.string(), {.create_root = true}).status());
  }
  return FileReplacement::Create(weights.path).status();
}

absl::Status WriteForeignWeights(const ForeignWeights& weights, const ModelConfig& model,
                                 StateChunks chunks, const RankGroup& group) {
  const std::string folder = weights.path + ".unfinished";
  const auto agree = [&](const absl::Status& mine) {
    return ckpt::AgreeOnStatus(group.ranks, mine, group.timeout);
  };
  // What a run that was killed has left would mix with this one's files.
  const bool is_first = group.ranks.rank() == 0;
  if (is_first) RemoveUnfinished(folder);
  TESSERA_RETURN_IF_ERROR(agree(absl::OkStatus()));
  absl::StatusOr<std::unique_ptr<Storage>> storage = OpenStorage(folder, {.create_root = true});
  TESSERA_RETURN_IF_ERROR(agree(storage.status()));
  ckpt::Manifest run;
  *run.mutable_model() = ToProto(model);
  ckpt::SaveOptions options;
  options.group = &group.ranks;
  options.timeout = group.timeout;
  absl::Status status =
      ckpt::CheckpointFolder(**storage)
          .Save({.metadata = ckpt::ToMetadata(std::move(run))}, WeightState(chunks), options)
          .status();
  storage->reset();
  if (status.ok() && is_first) status = Convert(folder, weights);
  if (is_first) RemoveUnfinished(folder);
  return ckpt::AgreeOnStatus(group.ranks, status, kConversionTimeout);
}

}  // namespace tessera
