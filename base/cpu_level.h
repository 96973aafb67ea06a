#ifndef TESSERA_BASE_CPU_LEVEL_H_
#define TESSERA_BASE_CPU_LEVEL_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// Instruction sets; each includes the ones before it. A processor without SSE4 counts as kSse4,
// whose loops it can run. kAvx512 stands for F, BW, CD, DQ and VL together.
enum class CpuLevel { kSse4, kAvx2, kAvx512 };

// Returns "sse4", "avx2" or "avx512".
std::string_view CpuLevelName(CpuLevel level);

// Returns the level with that name; InvalidArgument, naming the environment variable, for any other
// word.
absl::StatusOr<CpuLevel> ParseCpuLevel(std::string_view name);

// Returns the limit set by the environment variable TESSERA_CPU, which is read once per process;
// nullopt if it is not set or not the name of a level (see CheckCpuLevel()).
//
// With the limit kAvx512, newer instructions are not used either (AVX-512's bfloat16, AMX). Without
// a limit, everything that the processor has is used. A limit above the processor's level has no
// effect.
std::optional<CpuLevel> CpuLevelLimit();

// Returns the level at which loops run: the processor's, or the limit if it is lower.
CpuLevel EffectiveCpuLevel();

// Returns InvalidArgument if TESSERA_CPU is not the name of a level. Programs call it first; a
// library that is linked into another program ignores the limit instead.
absl::Status CheckCpuLevel();

// Returns Highway's bits of the targets on which loops can run: those of the processor, within the
// limit. Thread-safe.
int64_t UsableTargets();

// For tests: loops run on one of `targets`, which the processor has, on all threads; 0 ends this.
void SetUsableTargetsForTest(int64_t targets);

}  // namespace tessera

#endif  // TESSERA_BASE_CPU_LEVEL_H_
