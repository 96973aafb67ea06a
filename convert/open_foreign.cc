#include "convert/open_foreign.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/record_checks.h"
#include "convert/formats.h"
#include "convert/source_place.h"
#include "convert/step_folders.h"
#include "models/foreign/format.h"

namespace tessera::ckpt::convert {

namespace {

bool IsCalled(const Format& format, std::string_view name) {
  return format.name == name || (!name.empty() && format.other_name == name);
}

absl::StatusOr<const Format*> FindFormat(const SourcePlace& place,
                                         const OpenForeignOptions& options) {
  std::string name = options.format;
  if (!options.parameter_names_file.empty()) {
    if (!name.empty() && name != kPaddle) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter_to_structured_name=", options.parameter_names_file,
                       " is for the format ", kPaddle, ", and the format ", name, " was stated"));
    }
    name = kPaddle;
  }
  bool is_known = name.empty();
  for (const Format& format : Formats()) {
    if (!name.empty() && !IsCalled(format, name)) continue;
    is_known = true;
    TESSERA_ASSIGN_OR_RETURN(const bool matches, format.matches(place));
    if (matches) return &format;
  }
  const std::string known = absl::StrJoin(FormatNames(), ", ");
  if (!is_known) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown format \"", name, "\"; known are ", known));
  }
  if (!name.empty()) {
    return absl::NotFoundError(
        absl::StrCat(place.storage->Describe(place.file), ": no checkpoint in the format ", name));
  }
  return absl::NotFoundError(absl::StrCat(place.storage->Describe(place.file),
                                          ": no checkpoint in any of the formats ", known));
}

// Returns the first of these folders of `run`, or the first with this step, that is a checkpoint;
// nullopt where none is.
absl::StatusOr<std::optional<FoundForeign>> FirstCheckpoint(std::string run,
                                                            std::span<const StepFolder> folders,
                                                            std::optional<int64_t> step,
                                                            const OpenForeignOptions& options) {
  if (run.ends_with('/')) run.pop_back();
  std::vector<std::string> skipped;
  for (const StepFolder& folder : folders) {
    if (step.has_value() && folder.step != *step) continue;
    FoundForeign found = {absl::StrCat(run, "/", folder.name), {}};
    TESSERA_ASSIGN_OR_RETURN(const SourcePlace place, FindPlace(found.name, options.stores));
    const absl::Status format = FindFormat(place, options).status();
    // What was sealed is a checkpoint, whatever has become of it.
    if (format.ok() || place.storage->Open(kSealFileName).ok()) {
      if (!step.has_value()) {
        found.notes = {absl::StrCat("The newest checkpoint in ", run, " is ", folder.name, ".")};
      }
      if (!skipped.empty()) {
        found.notes.push_back(absl::StrCat(
            "Skipped, since they are not in a known format: ", JoinFirst(skipped, ", "), "."));
      }
      return found;
    }
    if (!absl::IsNotFound(format)) return format;
    skipped.push_back(folder.name);
  }
  return std::nullopt;
}

// Turns NotFound into DataLoss: the checkpoint exists, but is incomplete.
absl::Status MissingIsDamage(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::DataLossError(status.message()) : status;
}

// Gives the tensors the digests that they had when they were sealed.
void TakeDigests(Storage& storage, const Seal& seal, ForeignCheckpoint& checkpoint) {
  std::map<std::string_view, uint64_t> file_bytes;
  for (const SealedFile& file : seal.files())
    file_bytes[file.file().path()] = file.file().size_bytes();
  std::set<std::string> files;
  for (const ForeignTensor& tensor : checkpoint.tensors) {
    for (const StoredPiece& piece : tensor.pieces) files.insert(piece.file);
  }
  for (const std::string& name : files) {
    const auto sealed = file_bytes.find(name);
    const absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage.Open(name);
    if (!file.ok() || (sealed != file_bytes.end() && (*file)->size_bytes() == sealed->second)) {
      continue;
    }
    checkpoint.notes.push_back(absl::StrCat(
        "The seal is not used: ", name,
        sealed == file_bytes.end()
            ? std::string(" is not in it.")
            : absl::StrCat(" had ", sealed->second, " bytes when it was sealed and has ",
                           (*file)->size_bytes(), "; ckpt verify shows what has changed.")));
    return;
  }
  std::map<std::string_view, const SealedTensor*> tensors;
  for (const SealedTensor& tensor : seal.tensors()) tensors[tensor.name()] = &tensor;
  for (ForeignTensor& tensor : checkpoint.tensors) {
    const auto sealed = tensors.find(tensor.name);
    if (sealed == tensors.end() || !sealed->second->has_digest()) continue;
    const auto& shape = sealed->second->global_shape();
    if (FromProto(sealed->second->dtype()) == tensor.dtype && tensor.alias_of.empty() &&
        tensor.shape == Shape(shape.begin(), shape.end())) {
      tensor.digest = sealed->second->digest();
    }
  }
}

absl::StatusOr<std::unique_ptr<ForeignStorage>> OpenPlace(SourcePlace place,
                                                          const OpenForeignOptions& options) {
  const auto checked = std::make_shared<CheckedStorage>(std::move(place.storage), place.file);
  place.storage = checked;
  TESSERA_ASSIGN_OR_RETURN(const Format* const format, FindFormat(place, options));
  absl::StatusOr<ForeignCheckpoint> checkpoint = format->read(place, options);
  if (!checkpoint.ok()) return MissingIsDamage(checkpoint.status());
  if (options.seal != nullptr) TakeDigests(*place.storage, *options.seal, *checkpoint);
  absl::StatusOr<std::unique_ptr<ForeignStorage>> storage =
      ForeignStorage::Create(checked, "", *std::move(checkpoint), checked);
  if (!storage.ok()) return MissingIsDamage(storage.status());
  return storage;
}

}  // namespace

std::vector<std::string> FormatNames() {
  std::vector<std::string> names;
  for (const Format& format : Formats()) names.emplace_back(format.name);
  return names;
}

bool IsFormatName(std::string_view name) {
  return std::ranges::any_of(Formats(),
                             [&](const Format& format) { return IsCalled(format, name); });
}

std::string DescribeUnread(std::string_view format) {
  const bool is_unread = std::ranges::any_of(Formats(), [&](const Format& known) {
    return known.name == format && known.has_unread_values;
  });
  return is_unread ? "Left out: what the files have besides tensors, the step and the position in "
                     "the data, such as schedules and random numbers."
                   : "";
}

absl::StatusOr<FoundForeign> FindForeign(std::string_view name, std::optional<int64_t> step,
                                         const OpenForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const SourcePlace place, FindPlace(name, options.stores));
  FoundForeign itself = {std::string(name), {}};
  if (!place.file.empty()) return itself;
  const absl::Status format = FindFormat(place, options).status();
  if (format.ok() && !step.has_value()) return itself;
  if (!format.ok() && !absl::IsNotFound(format)) return format;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<StepFolder> folders, ListStepFolders(*place.storage));
  TESSERA_ASSIGN_OR_RETURN(std::optional<FoundForeign> found,
                           FirstCheckpoint(itself.name, folders, step, options));
  if (found.has_value()) return *std::move(found);
  if (format.ok()) return itself;
  if (step.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(found, FirstCheckpoint(itself.name, folders, std::nullopt, options));
  }
  if (!found.has_value()) return format;
  return absl::FailedPreconditionError(absl::StrCat(place.storage->Describe(""),
                                                    ": no checkpoint of step ", *step,
                                                    "; the newest one is ", found->name));
}

absl::StatusOr<std::unique_ptr<ForeignStorage>> OpenForeign(std::string_view name,
                                                            const OpenForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(SourcePlace place, FindPlace(name, options.stores));
  return OpenPlace(std::move(place), options);
}

absl::StatusOr<std::unique_ptr<ForeignStorage>> OpenForeignFolder(std::shared_ptr<Storage> folder,
                                                                  const OpenForeignOptions& options,
                                                                  std::string file) {
  return OpenPlace({std::move(folder), std::move(file)}, options);
}

absl::StatusOr<ForeignDescription> DescribeForeign(std::string_view name,
                                                   const OpenForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(SourcePlace place, FindPlace(name, options.stores));
  place.storage = std::make_shared<CheckedStorage>(std::move(place.storage), place.file);
  TESSERA_ASSIGN_OR_RETURN(const Format* const format, FindFormat(place, options));
  absl::StatusOr<ForeignCheckpoint> checkpoint = format->read(place, options);
  if (!checkpoint.ok()) return MissingIsDamage(checkpoint.status());
  return ForeignDescription{std::move(checkpoint->description), std::move(checkpoint->mismatch),
                            std::move(checkpoint->notes)};
}

}  // namespace tessera::ckpt::convert
