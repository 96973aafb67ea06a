#include "convert/formats/internevo/zero_state.h"

#include <cstddef>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/reading.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Value;

// Dense models have up to three.
constexpr size_t kMaxGroups = 64;
constexpr size_t kMaxIdBytes = 200;
constexpr size_t kMaxIdDims = 8;
constexpr std::string_view kPlanKey = "zero_devide_optim_plan";

// "3_16_8" is the parameter of index 3 and shape [16, 8].
std::optional<InternEvoPlannedParameter> ParseId(std::string_view text) {
  if (text.size() > kMaxIdBytes) return std::nullopt;
  InternEvoPlannedParameter parameter;
  bool is_first = true;
  for (const absl::string_view part : absl::StrSplit(View(text), '_')) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(part, &number) || number < 0) return std::nullopt;
    if (is_first) {
      parameter.index = number;
    } else {
      parameter.shape.push_back(number);
    }
    is_first = false;
  }
  if (parameter.shape.size() > kMaxIdDims) return std::nullopt;
  return parameter;
}

absl::Status AddVector(const TorchArchive& archive, const ForeignKind& kind, const Value& value,
                       InternEvoGroup& group) {
  const std::string what = kind.state == kForeignMaster.state ? "flat_fp32_weights" : kind.state;
  TESSERA_ASSIGN_OR_RETURN(TorchTensor tensor, In(what, ResolveTorchVector(archive, value)));
  if (!group.vectors.empty() && tensor.shape != group.vectors.front().second.shape) {
    return DataLoss(what, ": ", tensor.shape[0], " elements, flat_fp32_weights has ",
                    group.vectors.front().second.shape[0]);
  }
  group.vectors.emplace_back(kind, std::move(tensor));
  return absl::OkStatus();
}

absl::Status AddVectors(const TorchArchive& archive, const Value& weights, const Value& states,
                        const Value& numbers, InternEvoGroup& group) {
  TESSERA_RETURN_IF_ERROR(AddVector(archive, kForeignMaster, weights, group));
  // A rank that has some of a group has them as one tensor.
  const std::optional<int64_t> number = numbers[0].AsInt();
  if (!number || numbers.size() != 1) {
    return DataLoss("param_groups: \"params\" is not the number of one tensor");
  }
  const Value state = FindNumber(states, *number);
  for (const ForeignKind& kind : {kForeignExpAvg, kForeignExpAvgSq}) {
    const Value moment = state.Find(kind.state);
    if (moment.present()) TESSERA_RETURN_IF_ERROR(AddVector(archive, kind, moment, group));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InternEvoPlan> ParseInternEvoPlan(const pickle::Pickle& contents,
                                                 const Value& plan) {
  InternEvoPlan parsed;
  pickle::Budget budget(contents);
  for (size_t g = 0; g < plan.size(); ++g) {
    auto& group = parsed.emplace_back();
    TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(group)));
    for (size_t r = 0; r < plan[g].size(); ++r) {
      auto& rank = group.emplace_back();
      TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(rank)));
      for (size_t i = 0; i < plan[g][r].size(); ++i) {
        TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(InternEvoPlannedParameter)));
        const std::string_view text = plan[g][r][i].AsText().value_or("");
        const std::optional<InternEvoPlannedParameter> id = ParseId(text);
        if (!id) {
          return DataLoss(kPlanKey, ": \"", Shown(text),
                          "\" is not the index and shape of a parameter");
        }
        rank.push_back(*id);
      }
    }
  }
  if (parsed.empty()) return DataLoss(kPlanKey, " is not a list of lists of parameters");
  return parsed;
}

absl::StatusOr<InternEvoZeroState> ParseInternEvoZeroState(const TorchArchive& archive) {
  const Value root = archive.contents.root();
  const Value weights = root.Find("flat_fp32_weights");
  const Value base = root.Find("base_optim_states");
  const Value groups = base.Find("param_groups");
  if (!weights.present() || groups.size() == 0) {
    return DataLoss(
        "not written by HybridZeroOptimizer: no flat_fp32_weights and base_optim_states");
  }
  if (groups.size() > kMaxGroups) return DataLoss(groups.size(), " groups of parameters");
  InternEvoZeroState state;
  for (size_t i = 0; i < groups.size(); ++i) {
    const Value name = groups[i].Find("name");
    InternEvoGroup& group = state.groups.emplace_back();
    group.name = std::string(name.AsText().value_or("default").substr(0, kMaxIdBytes));
    const Value flat = FindNumber(weights, static_cast<int64_t>(i));
    if (!flat.present()) continue;
    TESSERA_RETURN_IF_ERROR(
        In(absl::StrCat("group ", i),
           AddVectors(archive, flat, base.Find("state"), groups[i].Find("params"), group)));
  }
  const Value plan = root.Find(kPlanKey);
  if (plan.present()) {
    TESSERA_ASSIGN_OR_RETURN(state.plan, ParseInternEvoPlan(archive.contents, plan));
  }
  return state;
}

}  // namespace tessera::ckpt::convert
