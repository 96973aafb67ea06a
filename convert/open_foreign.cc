#include "convert/open_foreign.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/errors.h"
#include "base/file_descriptor.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/models.h"
#include "convert/core/name_state_dict.h"
#include "convert/core/reading.h"
#include "convert/formats.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/deepspeed/deepspeed.h"
#include "convert/formats/gguf/gguf.h"
#include "convert/formats/hugging_face/hugging_face.h"
#include "convert/formats/infinitrain/infinitrain.h"
#include "convert/formats/internevo/internevo.h"
#include "convert/formats/llmc/llmc.h"
#include "convert/formats/megatron/megatron.h"
#include "convert/formats/paddle/files.h"
#include "convert/formats/paddle/paddle.h"
#include "convert/formats/torch/read.h"
#include "convert/formats/torch/write.h"
#include "convert/source_place.h"
#include "convert/trainer_files.h"
#include "models/foreign/format.h"
#include "storage/checked/checked_storage.h"

namespace tessera::ckpt::convert {
namespace {

// Adapt the functions of formats that are folders.
template <absl::StatusOr<bool> (*matches)(Storage&)>
absl::StatusOr<bool> InFolder(const SourcePlace& place, std::string_view) {
  return place.file.empty() ? matches(*place.storage) : false;
}
template <absl::StatusOr<ForeignCheckpoint> (*read)(Storage&)>
absl::StatusOr<ForeignCheckpoint> FromFolder(const SourcePlace& place, const OpenForeignOptions&) {
  return read(*place.storage);
}

// Gives tensors the names of a model's, if these are known.
absl::StatusOr<ForeignCheckpoint> WithModelNames(const SourcePlace& place,
                                                 const OpenForeignOptions& options,
                                                 absl::StatusOr<ForeignCheckpoint> checkpoint) {
  TESSERA_RETURN_IF_ERROR(checkpoint.status());
  TESSERA_ASSIGN_OR_RETURN(const bool is_part, IsPartOfModel(*place.storage, place.file));
  // Beside safetensors there is the model's config.json. Files of torch describe a model, and tell
  // the step, only where this library has written them.
  const bool tells_step = TellsStep(checkpoint->description);
  if (is_part) {
    checkpoint->notes.push_back(
        "Names are those of the file, which is a part of a model: name the folder for all of it.");
  } else if (checkpoint->format == kHuggingFace || !checkpoint->description.has_model()) {
    TESSERA_RETURN_IF_ERROR(
        NameStateDict(*place.storage, options.model, /*framework=*/"", *checkpoint));
  }
  if (!tells_step) TakeTrainerValues(*checkpoint);
  return checkpoint;
}

// Adds the optimizer's and the trainer's files beside a model.
absl::StatusOr<ForeignCheckpoint> WithTrainerFiles(const SourcePlace& place,
                                                   const OpenForeignOptions& options,
                                                   absl::StatusOr<ForeignCheckpoint> checkpoint) {
  if (!checkpoint.ok() || !place.file.empty()) return checkpoint;
  TESSERA_RETURN_IF_ERROR(
      AddTrainerFiles(*place.storage, options.needs_trainer_files, *checkpoint));
  return checkpoint;
}

absl::StatusOr<ForeignCheckpoint> ReadHuggingFacePlace(const SourcePlace& place,
                                                       const OpenForeignOptions& options) {
  absl::StatusOr<ForeignCheckpoint> checkpoint =
      WithTrainerFiles(place, options, ReadHuggingFace(*place.storage));
  TESSERA_RETURN_IF_ERROR(checkpoint.status());
  const bool has_moments =
      std::ranges::any_of(checkpoint->tensors, BelongsToOptimizer, &ForeignTensor::role);
  if (has_moments) return WithModelNames(place, options, std::move(checkpoint));
  TakeTrainerValues(*checkpoint);
  return checkpoint;
}

absl::StatusOr<ForeignCheckpoint> ReadTorchPlace(const SourcePlace& place,
                                                 const OpenForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                           FindTorchFiles(*place.storage, place.file));
  // The first of several files of Meta's ranks.
  if (files.size() > 1 && files.front() == "consolidated.00.pth") {
    return ReadMetaParts(*place.storage, files);
  }
  absl::StatusOr<ForeignCheckpoint> checkpoint = ReadTorch(*place.storage, files);
  // Where a file of the trainer is all there is, it has been read.
  const bool is_model = !IsBesideModel(files.front());
  if (is_model) checkpoint = WithTrainerFiles(place, options, std::move(checkpoint));
  return WithModelNames(place, options, std::move(checkpoint));
}

absl::StatusOr<ForeignCheckpoint> ReadPaddlePlace(const SourcePlace& place,
                                                  const OpenForeignOptions& options) {
  const std::string& file = options.parameter_names_file;
  if (file.empty()) return ReadPaddle(*place.storage, {});
  const auto refused = [&](const absl::Status& status) {
    return InvalidArgument("parameter_to_structured_name=", file, ": ", status.message());
  };
  const absl::StatusOr<std::string> text = ReadFile(file, kMaxJsonBytes);
  if (!text.ok()) return refused(text.status());
  const auto names = ParsePaddleParameterNames(*text);
  if (!names.ok()) return refused(names.status());
  return ReadPaddle(*place.storage, *names);
}

absl::StatusOr<bool> IsDcpPlace(const SourcePlace& place, std::string_view named) {
  if (!place.file.empty()) return place.file.ends_with(".safetensors");
  Storage& storage = *place.storage;
  TESSERA_ASSIGN_OR_RETURN(const bool has_metadata, IsDcp(storage, ""));
  TESSERA_ASSIGN_OR_RETURN(const bool has_safetensors, HasSafetensors(storage));
  if (named == kSafetensors) return has_safetensors;
  if (has_metadata || !has_safetensors) return has_metadata;
  bool may_be_export = false;
  for (const std::string file : kWeightFiles) {
    TESSERA_ASSIGN_OR_RETURN(const bool is_file, Exists(storage, file));
    TESSERA_ASSIGN_OR_RETURN(const bool is_indexed, Exists(storage, file + ".index.json"));
    may_be_export = may_be_export || is_file || (is_indexed && file != kWeightFiles[0]);
  }
  if (!named.empty() || !may_be_export) return true;
  TESSERA_ASSIGN_OR_RETURN(const std::string llmc, FindLlmcModel(storage, ""));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> torch, FindTorchFiles(storage, ""));
  return llmc.empty() && torch.empty();  // else it is an export beside files that have more
}

absl::StatusOr<ForeignCheckpoint> ReadDcpPlace(const SourcePlace& place,
                                               const OpenForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const bool has_metadata, IsDcp(*place.storage, ""));
  const bool is_dcp = place.file.empty() && has_metadata && options.format != kSafetensors;
  auto checkpoint =
      is_dcp ? ReadDcp(*place.storage, "") : ReadSafetensors(*place.storage, place.file);
  return WithModelNames(place, options, WithTrainerFiles(place, options, std::move(checkpoint)));
}

// For formats of files, which `find` gives: the one of the place, or those in it.
template <auto find>
absl::StatusOr<bool> HasFiles(const SourcePlace& place, std::string_view) {
  TESSERA_ASSIGN_OR_RETURN(const auto files, find(*place.storage, place.file));
  return !files.empty();
}

// Returns the order of the model's modules; empty if the model is not known.
std::vector<std::string> ModuleOrder(const Manifest& manifest) {
  const absl::StatusOr<std::string> config = WriteHuggingFaceConfig(manifest.model(), DType::kF32);
  if (!config.ok()) return {};
  absl::StatusOr<HuggingFaceDescription> description =
      ReadHuggingFaceConfig(*config, manifest.tensors_size());
  return description.ok() ? std::move(description->order) : std::vector<std::string>();
}

// In the order in which they are tried.
constexpr Format kFormats[] = {
    // Before hf: trainers put the rounded weights in that format beside the state.
    {.name = kDeepSpeed,
     .matches = InFolder<IsDeepSpeed>,
     .read =
         [](const SourcePlace& place, const OpenForeignOptions& options) {
           return ReadDeepSpeed(*place.storage, options.needs_trainer_files);
         },
     .has_unread_values = true},
    {.name = kHuggingFace,
     .other_name = "hf_llama",
     .matches = InFolder<IsHuggingFace>,
     .read = ReadHuggingFacePlace,
     .plan = PlanHuggingFace,
     .without_tokenizer = "The folder has no tokenizer, with which programs make ids of text; "
                          "--tokenizer=PATH puts the model's into it."},
    // Before dcp, which its folders are, too.
    {.name = kMegatron,
     .matches = InFolder<IsMegatron>,
     .read = FromFolder<ReadMegatron>,
     .plan = PlanMegatron,
     .holds = Holds::kProgress,
     .has_unread_values = true},
    {.name = kPaddle,
     .matches = InFolder<IsPaddle>,
     .read = ReadPaddlePlace,
     .plan = PlanPaddle,
     .holds = Holds::kStep,
     .has_unread_values = true},
    // Before torch, whose files it consists of.
    {.name = kInternEvo,
     .other_name = "internlm",
     .matches = InFolder<IsInternEvo>,
     .read = FromFolder<ReadInternEvo>,
     .has_unread_values = true},
    {.name = kInfiniTrain,
     .matches = InFolder<IsInfiniTrain>,
     .read =
         [](const SourcePlace& place, const OpenForeignOptions& options) {
           return ReadInfiniTrain(*place.storage, options.model);
         },
     .has_unread_values = true},
    {.name = kDcp,
     .other_name = kSafetensors,
     .matches = IsDcpPlace,
     .read = ReadDcpPlace,
     .plan = PlanDcp,
     .holds = Holds::kEverything},
    {.name = kLlmc,
     .matches = HasFiles<FindLlmcModel>,
     .read = [](const SourcePlace& place,
                const OpenForeignOptions& options) -> absl::StatusOr<ForeignCheckpoint> {
       TESSERA_ASSIGN_OR_RETURN(const std::string model, FindLlmcModel(*place.storage, place.file));
       return ReadLlmc(*place.storage, model, options.model, place.file.empty());
     },
     .plan = PlanLlmc,
     .holds = Holds::kStep},
    // InternEvo calls Meta's files "llama".
    {.name = kTorch,
     .other_name = "llama",
     .matches = HasFiles<FindTorchFiles>,
     .read = ReadTorchPlace,
     .plan = [](const Manifest& manifest,
                const PlanOptions& options) -> absl::StatusOr<std::vector<OutputFile>> {
       return PlanTorch(manifest, options, ModuleOrder(manifest));
     },
     .holds = Holds::kEverything},
    // Last: beside a model there may be several files of this format that were made from it.
    {.name = kGguf,
     .matches = HasFiles<FindGguf>,
     .read = [](const SourcePlace& place,
                const OpenForeignOptions&) -> absl::StatusOr<ForeignCheckpoint> {
       TESSERA_ASSIGN_OR_RETURN(const std::string file, FindGguf(*place.storage, place.file));
       return ReadGguf(*place.storage, file);
     },
     .plan = PlanGguf,
     .is_file = true,
     .without_tokenizer = "The file has no tokenizer: llama.cpp runs it on ids alone, and Ollama "
                          "does not; --tokenizer=PATH puts the model's into it."},
};

bool IsCalled(const Format& format, std::string_view name) {
  return format.name == name || (!name.empty() && format.other_name == name);
}

absl::StatusOr<const Format*> FindFormat(const SourcePlace& place,
                                         const OpenForeignOptions& options) {
  std::string name = options.format;
  if (!options.parameter_names_file.empty()) {
    if (!name.empty() && name != kPaddle) {
      return InvalidArgument("parameter_to_structured_name=", options.parameter_names_file,
                             " is for the format ", kPaddle, ", and the format ", name,
                             " was stated");
    }
    name = kPaddle;
  }
  const std::string known = absl::StrJoin(FormatNames(), ", ");
  if (!name.empty() && !IsFormatName(name)) {
    return InvalidArgument("unknown format \"", name, "\"; known are ", known);
  }
  for (const Format& format : Formats()) {
    if (!name.empty() && !IsCalled(format, name)) continue;
    TESSERA_ASSIGN_OR_RETURN(const bool matches, format.matches(place, name));
    if (matches) return &format;
  }
  return NotFound(
      place.storage->Describe(place.file), ": no checkpoint in ",
      name.empty() ? absl::StrCat("any of the formats ", known) : absl::StrCat("the format ", name),
      DescribeFile(place.storage->Describe(place.file)));
}

// Returns the first of these folders of `run`, or the first with this step, that is a checkpoint;
// nullopt if none is.
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
    TESSERA_ASSIGN_OR_RETURN(const bool is_sealed, Exists(*place.storage, kSealFileName));
    if (format.ok() || is_sealed) {
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
  return absl::IsNotFound(status) ? DataLoss(status.message()) : status;
}

// Gives the tensors the digests that they had when they were sealed.
absl::Status TakeDigests(Storage& storage, const Seal& seal, ForeignCheckpoint& checkpoint) {
  std::map<std::string_view, uint64_t> file_bytes;
  for (const SealedFile& file : seal.files())
    file_bytes[file.file().path()] = file.file().size_bytes();
  for (const std::string& name : FilesOf(checkpoint.tensors)) {
    const auto sealed = file_bytes.find(name);
    TESSERA_ASSIGN_OR_RETURN(const auto file, OpenIfPresent(storage, name));
    const bool is_listed = sealed != file_bytes.end();
    if (file == nullptr || (is_listed && file->size_bytes() == sealed->second)) continue;
    checkpoint.notes.push_back(absl::StrCat(
        "The seal is not used: ", name,
        is_listed ? absl::StrCat(" had ", sealed->second, " bytes when it was sealed and has ",
                                 file->size_bytes(), "; ckpt verify shows what has changed.")
                  : " is not in it."));
    return absl::OkStatus();
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
  return absl::OkStatus();
}

// Runs the index pass.
absl::StatusOr<ForeignCheckpoint> ReadPlace(const SourcePlace& place,
                                            const OpenForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const Format* const format, FindFormat(place, options));
  absl::StatusOr<ForeignCheckpoint> checkpoint = format->read(place, options);
  if (!checkpoint.ok()) return MissingIsDamage(checkpoint.status());
  return checkpoint;
}

absl::StatusOr<std::unique_ptr<ForeignStorage>> OpenPlace(const SourcePlace& place,
                                                          const OpenForeignOptions& options) {
  const auto checked = std::make_shared<CheckedStorage>(place.storage, place.file);
  TESSERA_ASSIGN_OR_RETURN(ForeignCheckpoint checkpoint, ReadPlace({checked, place.file}, options));
  if (options.seal != nullptr) {
    TESSERA_RETURN_IF_ERROR(TakeDigests(*checked, *options.seal, checkpoint));
  }
  absl::StatusOr<std::unique_ptr<ForeignStorage>> storage =
      ForeignStorage::Create(checked, std::move(checkpoint), checked);
  if (!storage.ok()) return MissingIsDamage(storage.status());
  return storage;
}

}  // namespace

std::span<const Format> Formats() { return kFormats; }

std::vector<std::string> FormatNames() {
  std::vector<std::string> names = NamesOfFormats([](const Format&) { return true; });
  names.emplace_back(kSafetensors);
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
  return is_unread ? "Left out: what the files have besides the model, its optimizer, the step and "
                     "the position in the data, such as schedules, random numbers and values of a "
                     "program's own, tensors among them."
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
  return FailedPrecondition(place.storage->Describe(""), ": no checkpoint of step ", *step,
                            "; the newest one is ", found->name);
}

absl::StatusOr<std::unique_ptr<ForeignStorage>> OpenForeign(std::string_view name,
                                                            const OpenForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const SourcePlace place, FindPlace(name, options.stores));
  return OpenPlace(place, options);
}

absl::StatusOr<std::unique_ptr<ForeignStorage>> OpenForeignFolder(std::shared_ptr<Storage> folder,
                                                                  const OpenForeignOptions& options,
                                                                  std::string file) {
  return OpenPlace({std::move(folder), std::move(file)}, options);
}

absl::StatusOr<ForeignCheckpoint> DescribeForeign(std::string_view name,
                                                  const OpenForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const SourcePlace place, FindPlace(name, options.stores));
  return ReadPlace({std::make_shared<CheckedStorage>(place.storage, place.file), place.file},
                   options);
}

}  // namespace tessera::ckpt::convert
