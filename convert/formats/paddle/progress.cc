#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/parse_json.h"
#include "base/status_macros.h"
#include "convert/core/reading.h"
#include "convert/formats/paddle/state_file.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kSchedulerFile = "scheduler.pdparams";
constexpr std::string_view kTrainerState = "trainer_state.json";

}  // namespace

absl::Status PaddleProgress::AddStep(std::optional<int64_t> step, std::string_view file) {
  if (!step || *step < 0) return absl::OkStatus();
  if (step_ && *step_ != *step) {
    return Damaged(storage_, file, "step ", *step, ", ", step_file_, " says ", *step_);
  }
  step_ = step;
  step_file_ = file;
  return absl::OkStatus();
}

absl::Status PaddleProgress::ReadSteps(std::span<const std::string> names) {
  if (Has(names, kSchedulerFile)) {
    TESSERA_ASSIGN_OR_RETURN(const auto open, storage_.Open(kSchedulerFile));
    const absl::StatusOr<PaddleStateFile> scheduler = ReadPaddleStateFile(*open);
    if (!scheduler.ok()) return Damaged(storage_, kSchedulerFile, scheduler.status().message());
    TESSERA_RETURN_IF_ERROR(AddStep(scheduler->last_epoch, kSchedulerFile));
  }
  if (!Has(names, kTrainerState)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadAll(storage_, kTrainerState, kMaxJsonBytes));
  const nlohmann::json json = ParseJson(text);
  if (!json.is_object()) return Damaged(storage_, kTrainerState, "not a JSON object");
  const auto member = json.find("global_step");
  if (member == json.end() || !member->is_number_integer()) return absl::OkStatus();
  return AddStep(member->get<int64_t>(), kTrainerState);
}

absl::Status PaddleProgress::AddPower(const std::string& file, const PaddleArray& array,
                                      PaddleState state) {
  if (array.dtype != DType::kF32 || ElementCount(array.shape) != 1) {
    return Damaged(storage_, file, array.key, ": expected one F32, found ",
                   ShapeToString(array.shape));
  }
  TESSERA_ASSIGN_OR_RETURN(const auto open, storage_.Open(file));
  float power = 0;
  TESSERA_RETURN_IF_ERROR(
      open->ReadAt(array.parts[0].offset_bytes, std::as_writable_bytes(std::span(&power, 1))));
  const auto [at, is_new] = powers_.emplace(state, Power{power, file, array.key});
  const Power& first = at->second;
  if (is_new || std::memcmp(&first.value, &power, sizeof(power)) == 0) return absl::OkStatus();
  return Damaged(storage_, file, array.key, " is ", power, ", ", first.key, " in ", first.file,
                 " is ", first.value, ": parameters with different numbers of updates");
}

void PaddleProgress::DescribeStep(ForeignCheckpoint& checkpoint) const {
  if (step_) {
    SetProgress(*step_, std::nullopt, checkpoint.description);
  } else {
    checkpoint.notes.emplace_back("No file has the step.");
  }
}

void PaddleProgress::AddBetas(OptimizerState& optimizer) const {
  for (const auto& [state, name] :
       {std::pair(PaddleState::kBeta1Power, "beta1"), {PaddleState::kBeta2Power, "beta2"}}) {
    const auto power = powers_.find(state);
    if (!step_ || power == powers_.end()) continue;
    const double value = power->second.value;
    // Subnormal powers have too few digits, and 0 has none.
    if (!(value > 1e-30 && value < 1)) continue;
    const double beta = std::exp(std::log(value) / static_cast<double>(*step_ + 1));
    for (ParameterGroup& group : *optimizer.mutable_groups()) {
      (*group.mutable_options())[name] = beta;
    }
  }
}

}  // namespace tessera::ckpt::convert
