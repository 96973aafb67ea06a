#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>

#include "base/cpu_level.h"
#include "compute/kernels/cpu/dnnl_gemm.h"
#include "compute/kernels/cpu/gemm_cache.h"
#include "layout/dtype.h"

namespace tessera {
namespace {

struct Environment {
  const char* tessera = nullptr;  // TESSERA_CPU
  const char* onednn = nullptr;   // ONEDNN_MAX_CPU_ISA
  const char* dnnl = nullptr;     // DNNL_MAX_CPU_ISA
};

void Set(const char* name, const char* value) {
  if (value == nullptr) {
    unsetenv(name);
  } else {
    setenv(name, value, 1);
  }
}

// Returns text()'s result in a new process: limits can be set only once per process.
std::string InProcessWith(const Environment& environment,
                          const std::function<std::string()>& text) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    Set("TESSERA_CPU", environment.tessera);
    Set("ONEDNN_MAX_CPU_ISA", environment.onednn);
    Set("DNNL_MAX_CPU_ISA", environment.dnnl);
    const std::string said = text();
    _exit(write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string said(256, '\0');
  const ssize_t length = read(ends[0], said.data(), said.size());
  close(ends[0]);
  int status = -1;
  waitpid(child, &status, 0);
  said.resize(status == 0 && length > 0 ? length : 0);
  return said;
}

std::string Isa(const Environment& environment) {
  return InProcessWith(environment, [] { return std::string(DnnlIsaName()); });
}

CpuLevel Processor() {
  const std::string name =
      InProcessWith({}, [] { return std::string(CpuLevelName(EffectiveCpuLevel())); });
  return ParseCpuLevel(name).value();
}

// The instruction set that a limit to that level must give: less, where the processor has less.
std::string IsaOfLimit(CpuLevel limit) {
  switch (std::min(limit, Processor())) {
    case CpuLevel::kSse4:
      return "sse41";
    case CpuLevel::kAvx2:
      return "avx2";
    case CpuLevel::kAvx512:
      return "avx512_core";
  }
  return "";
}

TEST(DnnlIsaTest, TheLevelLimitsOneDnn) {
  EXPECT_EQ(Isa({.tessera = "sse4"}), "sse41");
  EXPECT_EQ(Isa({.tessera = "avx2"}), IsaOfLimit(CpuLevel::kAvx2));
  EXPECT_EQ(Isa({.tessera = "avx512"}), IsaOfLimit(CpuLevel::kAvx512));
}

TEST(DnnlIsaTest, WithoutALevelNothingIsLimited) {
  const std::string all = Isa({});
  EXPECT_EQ(Isa({.onednn = "ALL"}), all);
  EXPECT_EQ(Isa({.tessera = "no level"}), all);
}

TEST(DnnlIsaTest, TheLowerOfTwoLimitsHolds) {
  EXPECT_EQ(Isa({.onednn = "SSE41"}), "sse41");
  EXPECT_EQ(Isa({.tessera = "avx2", .onednn = "SSE41"}), "sse41");
  EXPECT_EQ(Isa({.tessera = "avx2", .dnnl = "SSE41"}), "sse41");
  EXPECT_EQ(Isa({.tessera = "sse4", .onednn = "AVX2"}), "sse41");
  EXPECT_EQ(Isa({.tessera = "avx512", .onednn = "AVX2"}), IsaOfLimit(CpuLevel::kAvx2));
  EXPECT_EQ(Isa({.tessera = "avx512", .onednn = "AVX512_CORE_AMX"}), IsaOfLimit(CpuLevel::kAvx512));
  EXPECT_EQ(Isa({.tessera = "avx2", .onednn = "no instruction set"}), IsaOfLimit(CpuLevel::kAvx2));
}

TEST(DnnlIsaTest, ProductsAreOneDnnsWithAvx512) {
  const auto library = [](const char* level) {
    return InProcessWith({.tessera = level}, [] { return GemmLibrary(); });
  };
  EXPECT_EQ(library("sse4"), "own 1");
  EXPECT_EQ(library("avx2"), "own 1");
  if (Processor() >= CpuLevel::kAvx512) {
    EXPECT_EQ(library("avx512"), "oneDNN 2.6.3 avx512_core");
    EXPECT_EQ(library(nullptr), "oneDNN 2.6.3 " + Isa({}));
  }
}

TEST(DnnlIsaTest, ALimitedProcessorHasNoBf16OfItsOwn) {
  const auto has_bf16 = [](const char* level) {
    return InProcessWith({.tessera = level}, [] {
      return std::string(GemmCache(1).uses_dnnl(DType::kBF16) ? "yes" : "no");
    });
  };
  for (const char* level : {"sse4", "avx2", "avx512"}) EXPECT_EQ(has_bf16(level), "no") << level;
}

}  // namespace
}  // namespace tessera
