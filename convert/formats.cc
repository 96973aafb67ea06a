#include "convert/formats.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/status_macros.h"
#include "convert/core/models.h"
#include "convert/core/name_state_dict.h"
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
#include "convert/meta_parts.h"
#include "convert/trainer_files.h"

namespace tessera::ckpt::convert {
namespace {

// Adapt the functions of formats that are folders.
template <absl::StatusOr<bool> (*matches)(Storage&)>
absl::StatusOr<bool> InFolder(const SourcePlace& place) {
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
  // Beside safetensors there is the model's config.json. Files of torch describe a model, and tell
  // the step, only where this library has written them.
  const bool tells_step = TellsStep(checkpoint->description);
  if (checkpoint->format == kHuggingFace || !checkpoint->description.has_model()) {
    TESSERA_RETURN_IF_ERROR(
        NameStateDict(*place.storage, "", options.model, /*framework=*/"", *checkpoint));
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
      AddTrainerFiles(*place.storage, "", options.needs_trainer_files, *checkpoint));
  return checkpoint;
}

absl::StatusOr<ForeignCheckpoint> ReadHuggingFacePlace(const SourcePlace& place,
                                                       const OpenForeignOptions& options) {
  absl::StatusOr<ForeignCheckpoint> checkpoint =
      WithTrainerFiles(place, options, ReadHuggingFace(*place.storage));
  const auto is_weight = [](const ForeignTensor& tensor) {
    return tensor.role == TensorRole::kWeight;
  };
  if (checkpoint.ok() && !std::ranges::all_of(checkpoint->tensors, is_weight)) {
    return WithModelNames(place, options, *std::move(checkpoint));
  }
  if (checkpoint.ok()) TakeTrainerValues(*checkpoint);
  return checkpoint;
}

absl::StatusOr<ForeignCheckpoint> ReadTorchPlace(const SourcePlace& place,
                                                 const OpenForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                           FindTorchFiles(*place.storage, "", place.file));
  if (AreMetaParts(files)) return ReadMetaParts(*place.storage, "", files);
  absl::StatusOr<ForeignCheckpoint> checkpoint = ReadTorch(*place.storage, "", files);
  // Where the optimizer's file is all there is, it has been read.
  if (!files.front().starts_with("optimizer.")) {
    checkpoint = WithTrainerFiles(place, options, std::move(checkpoint));
  }
  return WithModelNames(place, options, std::move(checkpoint));
}

constexpr int64_t kMaxParameterNamesBytes = int64_t{64} << 20;

absl::StatusOr<ForeignCheckpoint> ReadPaddlePlace(Storage& storage,
                                                  const OpenForeignOptions& options) {
  const std::string& file = options.parameter_names_file;
  if (file.empty()) return ReadPaddle(storage, options.parameter_names);
  const auto refused = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter_to_structured_name=", file, ": ", status.message()));
  };
  const absl::StatusOr<std::string> text = ReadFile(file, kMaxParameterNamesBytes);
  if (!text.ok()) return refused(text.status());
  absl::StatusOr<std::map<std::string, std::string>> names = ParsePaddleParameterNames(*text);
  if (!names.ok()) return refused(names.status());
  names->insert(options.parameter_names.begin(), options.parameter_names.end());
  return ReadPaddle(storage, *names);
}

absl::StatusOr<bool> IsDcpFolder(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const bool has_metadata, IsDcp(storage, ""));
  if (has_metadata) return true;
  return AreSafetensorsOfDcp(storage);
}

absl::StatusOr<ForeignCheckpoint> ReadDcpPlace(const SourcePlace& place,
                                               const OpenForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const bool has_metadata, IsDcp(*place.storage, ""));
  if (has_metadata) return WithModelNames(place, options, ReadDcp(*place.storage, ""));
  return WithModelNames(place, options,
                        WithTrainerFiles(place, options, ReadSafetensorsOfDcp(*place.storage)));
}

// Returns whether files of a format were found.
template <typename Files>
absl::StatusOr<bool> IsFound(const absl::StatusOr<Files>& files) {
  TESSERA_RETURN_IF_ERROR(files.status());
  return !files->empty();
}

// Returns the order of the model's modules; empty if the model is not known.
std::vector<std::string> ModuleOrder(const Manifest& manifest) {
  if (manifest.model().text().empty()) return {};
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
     .read = FromFolder<ReadDeepSpeed>,
     .has_unread_values = true},
    {.name = kHuggingFace,
     .other_name = "hf_llama",
     .matches = InFolder<IsHuggingFace>,
     .read = ReadHuggingFacePlace,
     .plan = PlanHuggingFace,
     .has_tokenizer = true},
    // Before dcp, which its folders are, too.
    {.name = kMegatron,
     .matches = InFolder<IsMegatron>,
     .read = FromFolder<ReadMegatron>,
     .plan = PlanMegatron,
     .holds = Holds::kProgress,
     .has_unread_values = true},
    {.name = kPaddle,
     .matches = InFolder<IsPaddle>,
     .read =
         [](const SourcePlace& place, const OpenForeignOptions& options) {
           return ReadPaddlePlace(*place.storage, options);
         },
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
     .matches = InFolder<IsDcpFolder>,
     .read = ReadDcpPlace,
     .plan = [](const Manifest& manifest, const PlanOptions& options)
         -> absl::StatusOr<std::vector<OutputFile>> { return PlanDcp(manifest, options); },
     .holds = Holds::kEverything},
    {.name = kLlmc,
     .matches =
         [](const SourcePlace& place) {
           return IsFound(FindLlmcModel(*place.storage, place.file));
         },
     .read = [](const SourcePlace& place,
                const OpenForeignOptions& options) -> absl::StatusOr<ForeignCheckpoint> {
       TESSERA_ASSIGN_OR_RETURN(const std::string model, FindLlmcModel(*place.storage, place.file));
       return ReadLlmc(*place.storage, model, options.model);
     },
     .plan = PlanLlmc,
     .holds = Holds::kStep},
    // The parts of Meta's state dict are what "llama" means.
    {.name = kTorch,
     .other_name = "llama",
     .matches =
         [](const SourcePlace& place) {
           return IsFound(FindTorchFiles(*place.storage, "", place.file));
         },
     .read = ReadTorchPlace,
     .plan = [](const Manifest& manifest,
                const PlanOptions& options) -> absl::StatusOr<std::vector<OutputFile>> {
       return PlanTorch(manifest, options, ModuleOrder(manifest));
     },
     .holds = Holds::kEverything},
    // Last: beside a model there may be several files of this format that were made from it.
    {.name = kGguf,
     .matches =
         [](const SourcePlace& place) { return IsFound(FindGguf(*place.storage, place.file)); },
     .read = [](const SourcePlace& place,
                const OpenForeignOptions&) -> absl::StatusOr<ForeignCheckpoint> {
       TESSERA_ASSIGN_OR_RETURN(const std::string file, FindGguf(*place.storage, place.file));
       return ReadGguf(*place.storage, file);
     },
     .plan = PlanGguf,
     .has_tokenizer = true,
     .is_file = true,
     .without_tokenizer = "The file has no tokenizer: llama.cpp runs it on ids alone, and Ollama "
                          "does not; --tokenizer=PATH puts the model's into it."},
};

}  // namespace

std::span<const Format> Formats() { return kFormats; }

}  // namespace tessera::ckpt::convert
