#include "convert/trainer_files.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/format/manifest_codec.h"
#include "convert/core/reading.h"
#include "convert/core/saved_values.h"
#include "convert/core/value.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/torch/read.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kTrainerState = "trainer_state.json";
// Lightning puts what is not sharded into this file, in the folder of DCP that has the rest.
constexpr char kBesideShards[] = "meta.pt";

// Adds the contents of a file of torch.save() under its stem, and those of `meta.pt` as they are.
absl::Status AddTorchFile(Storage& storage, const std::string& file, bool needed,
                          ForeignCheckpoint& checkpoint) {
  absl::StatusOr<ForeignCheckpoint> read = ReadTorch(storage, std::span(&file, 1));
  const bool is_damaged = absl::IsDataLoss(read.status());
  if (absl::IsUnimplemented(read.status()) || (is_damaged && !needed)) {
    checkpoint.notes.push_back(absl::StrCat("Left out: ", read.status().message(), "."));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(read.status());
  ForeignCheckpoint& added = *read;
  const std::string stem = file == kBesideShards ? "" : file.substr(0, file.find('.'));
  const std::string prefix = stem.empty() ? "" : stem + ".";
  for (ForeignTensor& tensor : added.tensors) {
    tensor.name.insert(0, prefix);
    if (!tensor.alias_of.empty()) tensor.alias_of.insert(0, prefix);
    checkpoint.tensors.push_back(std::move(tensor));
  }
  checkpoint.decoded.merge(added.decoded);
  for (const auto& [name, why] : added.unread) checkpoint.unread[prefix + name] = why;
  RenameTensors([&](const std::string& name) { return prefix + name; }, added.state);
  if (!stem.empty()) added.state = DictOf(stem, std::move(added.state));
  MergeInto(std::move(added.state), checkpoint.state);
  for (const std::string& note : added.notes) {
    checkpoint.notes.push_back(absl::StrCat(file, ": ", note));
  }
  return absl::OkStatus();
}

// Where a program keeps the step, and the entry by which its files are recognised.
struct StepName {
  const char* step;
  const char* mark;
};
// Those of certain programs first, then what scripts call it in the outermost dict.
constexpr StepName kStepNames[] = {
    {"trainer_state.global_step", "trainer_state.global_step"},  // transformers
    {"global_step", "pytorch-lightning_version"},
    {"iteration", "checkpoint_version"},       // Megatron-LM
    {"iter_num", "model_args.n_layer"},        // nanoGPT
    {"train_state.step", "train_state.step"},  // torchtitan
    {"global_step", "global_step"},
    {"step", "step"},
    {"iteration", "iteration"},
    {"iter_num", "iter_num"},
};

constexpr const char* kSampleNames[] = {"consumed_train_samples", "consumed_samples"};

using Values = std::map<std::string, const SavedValue*>;

// Returns the value of this name if it is a number without a fraction.
std::optional<int64_t> FindCount(const Values& values, const std::string& name) {
  const auto at = values.find(name);
  if (at == values.end()) return std::nullopt;
  const auto is_count = [](auto n) { return n >= 0 && n <= kMaxTrainerCount; };
  if (const auto* n = at->second->As<int64_t>(); n != nullptr && is_count(*n)) return *n;
  const auto* const number = at->second->As<double>();
  if (number == nullptr || !is_count(*number) || *number != std::floor(*number))
    return std::nullopt;
  return static_cast<int64_t>(*number);
}

}  // namespace

absl::Status AddTrainerFiles(Storage& storage, bool needed, ForeignCheckpoint& checkpoint) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> names, storage.List(""));
  if (checkpoint.format == kDcp && Has(names, kBesideShards)) {
    TESSERA_RETURN_IF_ERROR(AddTorchFile(storage, kBesideShards, needed, checkpoint));
  }
  for (const std::string stem : {"optimizer", "scheduler"}) {
    for (const std::string& file : {stem + ".pt", stem + ".bin"}) {
      if (!Has(names, file)) continue;
      TESSERA_RETURN_IF_ERROR(AddTorchFile(storage, file, needed, checkpoint));
      std::erase(names, file);
      break;
    }
  }
  const bool has_state = Has(names, kTrainerState);
  std::erase_if(names, [](const std::string& name) { return !IsBesideModel(name); });
  NoteLeftOut("other files of the trainer", names, checkpoint.notes);
  if (!has_state) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadAll(storage, kTrainerState, kMaxJsonBytes));
  std::optional<SavedValue> tree = ValueOfJson(text);
  if (!tree.has_value() || tree->As<SavedValue::Dict>() == nullptr) {
    return Damaged(storage, kTrainerState, "not a JSON object");
  }
  MergeInto(DictOf("trainer_state", *std::move(tree)), checkpoint.state);
  return absl::OkStatus();
}

void TakeTrainerValues(ForeignCheckpoint& checkpoint) {
  Manifest& description = checkpoint.description;
  const Values values = ValuesByName(checkpoint.state);
  const bool is_counted = TellsStep(description);
  const char* taken = nullptr;
  std::set<std::string> noted;
  for (const StepName& name : kStepNames) {
    const std::optional<int64_t> step = FindCount(values, name.step);
    if (!step.has_value() || !values.contains(name.mark)) continue;
    if (!TellsStep(description)) {
      taken = name.step;
      SetProgress(*step, std::nullopt, description);
    } else if (description.trainer().step() != *step && noted.insert(name.step).second) {
      checkpoint.notes.push_back(absl::StrCat(
          name.step, " is ", *step, ", but ",
          is_counted
              ? absl::StrCat("the optimizer has counted ", description.trainer().step(),
                             " updates.")
              : absl::StrCat("the step is ", taken, ", ", description.trainer().step(), ".")));
    }
  }
  for (const ForeignTensor& tensor : checkpoint.tensors) {
    const bool is_usual = std::ranges::any_of(
        kStepNames, [&](const StepName& name) { return tensor.name == name.step; });
    if (TellsStep(description) || !is_usual || ElementCount(tensor.shape) != 1) continue;
    checkpoint.notes.push_back(absl::StrCat("The step may be in the tensor ", tensor.name,
                                            ", which is not read: state it with --ckpt-step=N."));
  }
  if (!TellsStep(description) || description.trainer().has_data()) return;
  for (const char* const name : kSampleNames) {
    const std::optional<int64_t> samples = FindCount(values, name);
    if (!samples.has_value()) continue;
    description.mutable_trainer()->mutable_data()->set_consumed_samples(*samples);
    return;
  }
}

}  // namespace tessera::ckpt::convert
