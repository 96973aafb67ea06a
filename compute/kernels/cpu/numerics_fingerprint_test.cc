#include "compute/kernels/numerics_fingerprint.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cstdio>

#include "base/cpu_level.h"
#include "compute/kernels/cpu/cpu_backend.h"

namespace tessera {
namespace {

// The fingerprint of a process with that environment, which must be set before oneDNN is first
// used: runs this program again, as IsComputedOnce, and reads what it prints.
NumericsFingerprint Of(const std::string& environment, bool exact = false) {
  std::array<char, 4096> self = {};
  EXPECT_GT(readlink("/proc/self/exe", self.data(), self.size() - 1), 0);
  const std::string command = environment + " " + self.data() + " --gtest_filter=*IsComputedOnce";
  std::FILE* pipe = popen(command.c_str(), "r");
  NumericsFingerprint fingerprint;
  std::array<char, 1024> line = {};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) {
    std::array<char, 256> level = {}, library = {};
    uint64_t products = 0, loops = 0;
    int of_exact = 0;
    if (std::sscanf(line.data(), "fingerprint|%d|%255[^|]|%255[^|]|%" SCNx64 "|%" SCNx64, &of_exact,
                    level.data(), library.data(), &products, &loops) == 5 &&
        of_exact == static_cast<int>(exact)) {
      fingerprint = {level.data(), library.data(), products, loops};
    }
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  EXPECT_NE(fingerprint, NumericsFingerprint()) << command;
  return fingerprint;
}

TEST(CpuNumericsFingerprintTest, IsComputedOnce) {
  for (const bool exact : {false, true}) {
    const auto of_process = [=]() -> const NumericsFingerprint& {
      return exact ? ExactNumericsFingerprint(/*bf16=*/true) : CpuNumericsFingerprint();
    };
    const NumericsFingerprint& own = of_process();
    EXPECT_EQ(&own, &of_process());
    EXPECT_NE(own.products_hash, 0u);
    EXPECT_NE(own.loops_hash, 0u);
    std::printf("fingerprint|%d|%s|%s|%lx|%lx\n", static_cast<int>(exact),
                own.instruction_set.c_str(), own.library.c_str(), own.products_hash,
                own.loops_hash);
  }
}

// Ranks on unlike processors train together: with and without multiply-adds and bf16 products,
// whatever this machine has, and with another limit of the library's.
TEST(CpuNumericsFingerprintTest, OfExactNumericsIsTheSameOnEveryProcessor) {
  const NumericsFingerprint& own = ExactNumericsFingerprint(/*bf16=*/true);
  EXPECT_EQ(own.library, "contract 1");
  EXPECT_EQ(own.instruction_set, kAnyInstructionSet);
  for (const char* environment : {"TESSERA_CPU=sse4", "TESSERA_CPU=avx2", "TESSERA_CPU=avx512",
                                  "DNNL_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=3"}) {
    EXPECT_EQ(Of(environment, /*exact=*/true), own) << environment;
  }
  EXPECT_NE(own, CpuNumericsFingerprint());
}

TEST(CpuNumericsFingerprintTest, IsTheSameInEveryProcessOfAMachine) {
  EXPECT_EQ(Of(""), CpuNumericsFingerprint());
  EXPECT_EQ(Of("OMP_NUM_THREADS=7"), CpuNumericsFingerprint());
}

TEST(CpuNumericsFingerprintTest, OurOwnLoopsAreTheSameForEveryInstructionSet) {
  EXPECT_EQ(CpuNumericsFingerprint().instruction_set, kAnyInstructionSet);
  for (const char* level : {"sse4", "avx2", "avx512"}) {
    const NumericsFingerprint limited = Of(std::string("TESSERA_CPU=") + level);
    EXPECT_EQ(limited.instruction_set, kAnyInstructionSet);
    EXPECT_EQ(limited.loops_hash, CpuNumericsFingerprint().loops_hash) << level;
  }
}

// SSE4 has no fused multiply-add: every product is rounded twice as often.
TEST(CpuNumericsFingerprintTest, SeesTheBitsOfProductsUnderAnotherInstructionSet) {
  if (EffectiveCpuLevel() < CpuLevel::kAvx2) GTEST_SKIP() << "no other set (needs: avx2)";
  const NumericsFingerprint limited = Of("TESSERA_CPU=sse4");
  EXPECT_NE(limited.products_hash, CpuNumericsFingerprint().products_hash);
}

// A user may limit oneDNN alone to less than the processor has.
TEST(CpuNumericsFingerprintTest, SeesTheBitsOfALimitedLibrary) {
  if (EffectiveCpuLevel() < CpuLevel::kAvx512) {
    GTEST_SKIP() << "products are not oneDNN's (needs: avx512)";
  }
  const NumericsFingerprint limited = Of("DNNL_MAX_CPU_ISA=SSE41");
  EXPECT_NE(limited.products_hash, CpuNumericsFingerprint().products_hash);
}

TEST(NumericsDifferencesTest, NamesWhatDiffers) {
  const NumericsFingerprint a = {"avx512", "oneDNN 2.6.3 avx512_core", 1, 2};
  EXPECT_EQ(NumericsDifferences(a, a, "here"), std::vector<std::string>());
  EXPECT_EQ(NumericsDifferences(a, {"avx2", "own 1", 3, 4}, "here"),
            (std::vector<std::string>{"instruction set avx512, here avx2",
                                      "matrix products by oneDNN 2.6.3 avx512_core, here own 1",
                                      "other bits of matrix products",
                                      "other bits of the remaining operations"}));
}

}  // namespace
}  // namespace tessera
