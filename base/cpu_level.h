#ifndef TESSERA_BASE_CPU_LEVEL_H_
#define TESSERA_BASE_CPU_LEVEL_H_

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// Instruction sets, each with those before it. A processor without SSE4 counts as kSse4: its loops
// are the ones that it can run. kAvx512 stands for F, BW, CD, DQ and VL together.
enum class CpuLevel { kSse4, kAvx2, kAvx512 };

// "sse4", "avx2", "avx512".
std::string_view CpuLevelName(CpuLevel level);

// The level with that name; InvalidArgument, naming the environment variable, for any other word.
absl::StatusOr<CpuLevel> ParseCpuLevel(std::string_view name);

// The limit that the environment variable TESSERA_CPU sets, read once per process. Nothing when it
// is not set or not the name of a level; CheckCpuLevel() tells the latter.
//
// With the limit kAvx512 nothing newer is used either (AVX-512's bfloat16, AMX). Without a limit
// everything is used that the processor has. A limit above what the processor has changes nothing.
std::optional<CpuLevel> CpuLevelLimit();

// The level at which loops run: the processor's, or the limit where that is lower.
CpuLevel EffectiveCpuLevel();

// InvalidArgument when TESSERA_CPU names no level. Programs call it first; a library that is linked
// into another program goes without a limit instead.
absl::Status CheckCpuLevel();

// Applies the limit to Highway's dispatch, the first time that it is called. Any thread may call
// it.
void ApplyCpuLevelLimit();

}  // namespace tessera

#endif  // TESSERA_BASE_CPU_LEVEL_H_
