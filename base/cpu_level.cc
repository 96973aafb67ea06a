#include "base/cpu_level.h"

#include <hwy/targets.h>
#if HWY_ARCH_X86
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/program.h"
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

#if HWY_ARCH_X86
struct CpuidLeaf {
  CpuidLeaf(unsigned leaf, unsigned subleaf) {
    __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx);  // leaves zeros for unknown leaves
  }

  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Returns the targets whose instructions the processor has and whose registers the system saves.
// libhwy has such a function, but takes 3 ms to measure the processor's clock when it is loaded.
int64_t ProcessorTargets() {
  constexpr unsigned kLzcnt = 1u << 5, kVaes = 1u << 9;
  __builtin_cpu_init();
  const bool ssse3 = __builtin_cpu_supports("ssse3");
  const bool sse4 = ssse3 && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2") &&
                    __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
  const bool avx2 = sse4 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    (CpuidLeaf(1, 0).ecx & bit_F16C) != 0 &&
                    (CpuidLeaf(0x80000001, 0).ecx & kLzcnt) != 0;
  const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool avx3_dl =
      avx3 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("vpclmulqdq") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
      __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512bitalg") &&
      (CpuidLeaf(7, 0).ecx & kVaes) != 0;
  return HWY_STATIC_TARGET | (ssse3 ? HWY_SSSE3 : 0) | (sse4 ? HWY_SSE4 : 0) |
         (avx2 ? HWY_AVX2 : 0) | (avx3 ? HWY_AVX3 : 0) | (avx3_dl ? HWY_AVX3_DL : 0);
}
#else
int64_t ProcessorTargets() { return HWY_STATIC_TARGET; }
#endif

// Returns the targets within TESSERA_CPU. The processor is asked once: in a virtual machine, that
// takes many microseconds.
int64_t LimitedTargets() {
  static const int64_t targets = [] {
    const std::optional<CpuLevel> limit = CpuLevelLimit();
    const int64_t all = ProcessorTargets();
    return limit.has_value() ? all & -NewestTarget(*limit) : all;
  }();
  return targets;
}

// Those of a test; 0 outside of it.
std::atomic<int64_t> test_targets = 0;

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
    const absl::StatusOr<CpuLevel> level = ParseCpuLevel(EnvironmentVariable(kVariable));
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
  const std::string value = EnvironmentVariable(kVariable);
  return value.empty() ? absl::OkStatus() : ParseCpuLevel(value).status();
}

int64_t UsableTargets() {
  const int64_t targets = test_targets.load(std::memory_order_relaxed);
  return targets != 0 ? targets : LimitedTargets();
}

void SetUsableTargetsForTest(int64_t targets) {
  test_targets.store(targets, std::memory_order_relaxed);
}

}  // namespace tessera
