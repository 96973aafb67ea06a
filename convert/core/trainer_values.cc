#include "convert/core/trainer_values.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <variant>

#include "absl/strings/str_cat.h"
#include "checkpoint/format/manifest.h"

namespace tessera::ckpt::convert {
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
      description.mutable_trainer()->set_step(*step);
      description.mutable_trainer()->set_best_loss(std::numeric_limits<double>::infinity());
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
