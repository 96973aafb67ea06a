#include <glog/logging.h>

#include <cstdlib>
#include <dnnl.hpp>
#include <optional>
#include <string_view>

#include "absl/strings/ascii.h"
#include "base/cpu_level.h"
#include "compute/kernels/cpu/dnnl_gemm.h"

namespace tessera {
namespace {

// Returns the level that includes all of the instruction set with that name in ONEDNN_MAX_CPU_ISA,
// if that is less than AVX-512's common part; nullopt for names of newer sets and for words that
// oneDNN ignores.
std::optional<CpuLevel> LevelOfUsersLimit(std::string_view name) {
  if (name == "sse41") return CpuLevel::kSse4;
  // AVX-512 of the first Xeon Phis, which implements half of the common part, and AVX2 with its
  // late additions count as AVX2: oneDNN's kernels for them need no more than a limit to AVX2
  // removes.
  if (name == "avx" || name == "avx2" || name == "avx2_vnni" || name.starts_with("avx512_mic")) {
    return CpuLevel::kAvx2;
  }
  return std::nullopt;
}

// Returns the user's limit for oneDNN, which looks for the new name of the variable first.
std::optional<CpuLevel> UsersLimit() {
  for (const char* variable : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    if (const char* value = std::getenv(variable); value != nullptr) {
      return LevelOfUsersLimit(absl::AsciiStrToLower(value));
    }
  }
  return std::nullopt;
}

dnnl::cpu_isa IsaOf(CpuLevel level) {
  switch (level) {
    case CpuLevel::kSse4:
      return dnnl::cpu_isa::sse41;
    case CpuLevel::kAvx2:
      return dnnl::cpu_isa::avx2;
    case CpuLevel::kAvx512:
      return dnnl::cpu_isa::avx512_core;
  }
  return dnnl::cpu_isa::sse41;
}

}  // namespace

void LimitDnnlIsa() {
  static const bool once = [] {
    const std::optional<CpuLevel> limit = CpuLevelLimit(), users = UsersLimit();
    if (!limit.has_value() || (users.has_value() && *users <= *limit)) return true;
    if (dnnl::set_max_cpu_isa(IsaOf(*limit)) != dnnl::status::success) {
      LOG(ERROR) << "TESSERA_CPU=" << CpuLevelName(*limit)
                 << " does not reach oneDNN, which was in use before";
    }
    return true;
  }();
  static_cast<void>(once);
}

std::string_view DnnlIsaName() {
  LimitDnnlIsa();
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::all:
      return "any";
    case dnnl::cpu_isa::sse41:
      return "sse41";
    case dnnl::cpu_isa::avx:
      return "avx";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2_vnni";
    case dnnl::cpu_isa::avx512_mic:
      return "avx512_mic";
    case dnnl::cpu_isa::avx512_mic_4ops:
      return "avx512_mic_4ops";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
  }
  return "unknown";
}

bool DnnlHasBf16() {
  const std::string_view isa = DnnlIsaName();
  return isa == "avx512_core_bf16" || isa == "avx512_core_amx";
}

}  // namespace tessera
