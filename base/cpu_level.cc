#include "base/cpu_level.h"

#include <hwy/targets.h>

#include <cstdint>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr char kVariable[] = "TESSERA_CPU";
constexpr CpuLevel kLevels[] = {CpuLevel::kSse4, CpuLevel::kAvx2, CpuLevel::kAvx512};

// Returns the newest of Highway's targets at a level. Newer targets have lower bits.
constexpr int64_t NewestTarget(CpuLevel level) {
  switch (level) {
    case CpuLevel::kSse4:
      return HWY_SSE4;
    case CpuLevel::kAvx2:
      return HWY_AVX2;
    case CpuLevel::kAvx512:
      return HWY_AVX3;
  }
  return HWY_SSE4;
}

// Limits the dispatch on the first call, and returns the remaining targets. hwy::SupportedTargets()
// itself makes the dispatch choose among all targets, the disabled ones included, and takes many
// microseconds in a virtual machine: it is called only here, and the choice is then repeated.
int64_t LimitedTargets() {
  static const int64_t targets = [] {
    const std::optional<CpuLevel> limit = CpuLevelLimit();
    if (limit.has_value()) hwy::DisableTargets(NewestTarget(*limit) - 1);
    const int64_t left = hwy::SupportedTargets();
    hwy::GetChosenTarget().Update(left);
    return left;
  }();
  return targets;
}

}  // namespace

std::string_view CpuLevelName(CpuLevel level) {
  switch (level) {
    case CpuLevel::kSse4:
      return "sse4";
    case CpuLevel::kAvx2:
      return "avx2";
    case CpuLevel::kAvx512:
      return "avx512";
  }
  return "unknown";
}

absl::StatusOr<CpuLevel> ParseCpuLevel(std::string_view name) {
  for (const CpuLevel level : kLevels) {
    if (name == CpuLevelName(level)) return level;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      kVariable, " is \"", View(name), "\"; it can be sse4, avx2 or avx512, or not set at all"));
}

std::optional<CpuLevel> CpuLevelLimit() {
  static const std::optional<CpuLevel> limit = []() -> std::optional<CpuLevel> {
    const char* const value = std::getenv(kVariable);
    if (value == nullptr) return std::nullopt;
    const absl::StatusOr<CpuLevel> level = ParseCpuLevel(value);
    return level.ok() ? std::optional(*level) : std::nullopt;
  }();
  return limit;
}

CpuLevel EffectiveCpuLevel() {
  const int64_t targets = LimitedTargets();
  if (targets & HWY_AVX3) return CpuLevel::kAvx512;
  if (targets & HWY_AVX2) return CpuLevel::kAvx2;
  return CpuLevel::kSse4;
}

absl::Status CheckCpuLevel() {
  const char* const value = std::getenv(kVariable);
  return value == nullptr ? absl::OkStatus() : ParseCpuLevel(value).status();
}

void ApplyCpuLevelLimit() { LimitedTargets(); }

}  // namespace tessera
