#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest.h"
#include "convert/core/reading.h"
#include "convert/formats.h"
#include "convert/torch/read.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kTrainerState = "trainer_state.json";

// Adds the contents of a file of torch.save() under its stem.
absl::Status AddTorchFile(Storage& storage, std::string_view folder, const std::string& file,
                          bool needed, ForeignCheckpoint& checkpoint) {
  absl::StatusOr<ForeignCheckpoint> read = ReadTorch(storage, folder, std::span(&file, 1));
  const bool is_damaged = absl::IsDataLoss(read.status());
  if (absl::IsUnimplemented(read.status()) || (is_damaged && !needed)) {
    checkpoint.notes.push_back(absl::StrCat("Left out: ", read.status().message(), "."));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(read.status());
  ForeignCheckpoint& added = *read;
  const std::string prefix = file.substr(0, file.find('.') + 1);
  for (ForeignTensor& tensor : added.tensors) {
    tensor.name.insert(0, prefix);
    if (!tensor.alias_of.empty()) tensor.alias_of.insert(0, prefix);
    checkpoint.tensors.push_back(std::move(tensor));
  }
  for (ForeignValue& value : added.values) {
    value.name.insert(0, prefix);
    checkpoint.values.push_back(std::move(value));
  }
  for (const std::string& note : added.notes) {
    checkpoint.notes.push_back(absl::StrCat(file, ": ", note));
  }
  return absl::OkStatus();
}

// Adds the numbers, truth values and texts at the top of the file.
absl::Status AddTrainerState(Storage& storage, const std::string& path,
                             ForeignCheckpoint& checkpoint) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadAll(storage, path, kMaxJsonBytes));
  const nlohmann::json json = ParseJson(text);
  if (!json.is_object()) {
    return absl::DataLossError(absl::StrCat(storage.Describe(path), ": not a JSON object"));
  }
  for (const auto& [key, field] : json.items()) {
    ForeignValue value = {.name = "trainer_state." + key};
    if (field.is_boolean()) {
      value.value = field.get<bool>();
    } else if (field.is_number_integer()) {
      value.value = field.get<int64_t>();
    } else if (field.is_number()) {
      value.value = field.get<double>();
    } else if (field.is_string()) {
      value.value = field.get<std::string>();
    } else {
      continue;
    }
    checkpoint.values.push_back(std::move(value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AddTrainerFiles(Storage& storage, std::string_view folder, bool needed,
                             ForeignCheckpoint& checkpoint) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(folder));
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const std::string stem : {"optimizer", "scheduler"}) {
    for (const std::string& file : {stem + ".pt", stem + ".bin"}) {
      if (!has(file)) continue;
      TESSERA_RETURN_IF_ERROR(AddTorchFile(storage, folder, file, needed, checkpoint));
      break;
    }
  }
  if (!has(kTrainerState)) return absl::OkStatus();
  return AddTrainerState(storage, JoinPath(folder, kTrainerState), checkpoint);
}

namespace {

// The number of updates that a program has made, and a name by which its files are known.
struct StepName {
  const char* step;
  const char* mark;
};
constexpr StepName kStepNames[] = {
    {"trainer_state.global_step", "trainer_state.global_step"},  // transformers
    {"global_step", "pytorch-lightning_version"},
    {"iteration", "checkpoint_version"},       // Megatron-LM
    {"iter_num", "model_args.n_layer"},        // nanoGPT
    {"train_state.step", "train_state.step"},  // torchtitan
    {"tessera.trainer.step", "tessera.trainer.step"},
};

constexpr const char* kSampleNames[] = {"tessera.trainer.consumed_samples",
                                        "consumed_train_samples", "consumed_samples"};

const ForeignValue* Find(const ForeignCheckpoint& checkpoint, std::string_view name) {
  for (const ForeignValue& value : checkpoint.values) {
    if (value.name == name) return &value;
  }
  return nullptr;
}

std::optional<int64_t> FindCount(const ForeignCheckpoint& checkpoint, std::string_view name) {
  const ForeignValue* const value = Find(checkpoint, name);
  if (value == nullptr) return std::nullopt;
  const int64_t* const count = std::get_if<int64_t>(&value->value);
  if (count == nullptr || *count < 0 || *count > kMaxTrainerCount) return std::nullopt;
  return *count;
}

}  // namespace

void TakeTrainerValues(ForeignCheckpoint& checkpoint) {
  Manifest& description = checkpoint.description;
  for (const StepName& name : kStepNames) {
    const std::optional<int64_t> step = FindCount(checkpoint, name.step);
    if (!step.has_value() || Find(checkpoint, name.mark) == nullptr) continue;
    if (!description.has_trainer()) {
      SetProgress(*step, std::nullopt, description);
    } else if (description.trainer().step() != *step) {
      checkpoint.notes.push_back(absl::StrCat(name.step, " is ", *step,
                                              ", but the optimizer has counted ",
                                              description.trainer().step(), " updates."));
    }
  }
  if (!description.has_trainer() || description.trainer().has_data()) return;
  for (const char* const name : kSampleNames) {
    const std::optional<int64_t> samples = FindCount(checkpoint, name);
    if (!samples.has_value()) continue;
    description.mutable_trainer()->mutable_data()->set_consumed_samples(*samples);
    return;
  }
}

}  // namespace tessera::ckpt::convert
