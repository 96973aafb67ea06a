#include "compute/kernels/numerics_fingerprint.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "base/cpu_level.h"
#include "compute/kernels/cpu/cpu_backend.h"

namespace tessera {
namespace {

// The fingerprint of a process with that environment, which must be set before oneDNN is first
// used: runs this program again, as IsComputedOnce, and reads what it prints.
NumericsFingerprint Of(const std::string& environment) {
  std::array<char, 4096> self = {};
  EXPECT_GT(readlink("/proc/self/exe", self.data(), self.size() - 1), 0);
  const std::string command = environment + " " + self.data() + " --gtest_filter=*IsComputedOnce";
  std::FILE* pipe = popen(command.c_str(), "r");
  NumericsFingerprint fingerprint;
  std::array<char, 1024> line = {};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) {
    std::array<char, 256> level = {}, library = {};
    uint64_t products = 0, loops = 0;
    if (std::sscanf(line.data(), "fingerprint|%255[^|]|%255[^|]|%" SCNx64 "|%" SCNx64, level.data(),
                    library.data(), &products, &loops) == 4) {
      fingerprint = {level.data(), library.data(), products, loops};
    }
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  EXPECT_NE(fingerprint, NumericsFingerprint()) << command;
  return fingerprint;
}

TEST(CpuNumericsFingerprintTest, IsComputedOnce) {
  const NumericsFingerprint& own = CpuNumericsFingerprint();
  EXPECT_EQ(&own, &CpuNumericsFingerprint());
  EXPECT_NE(own.products_hash, 0u);
  EXPECT_NE(own.loops_hash, 0u);
  std::printf("fingerprint|%s|%s|%lx|%lx\n", own.instruction_set.c_str(), own.library.c_str(),
              own.products_hash, own.loops_hash);
}

TEST(CpuNumericsFingerprintTest, IsTheSameInEveryProcessOfAMachine) {
  EXPECT_EQ(Of(""), CpuNumericsFingerprint());
  EXPECT_EQ(Of("OMP_NUM_THREADS=7"), CpuNumericsFingerprint());
}

TEST(CpuNumericsFingerprintTest, NamesTheInstructionSet) {
  EXPECT_EQ(CpuNumericsFingerprint().instruction_set, CpuLevelName(EffectiveCpuLevel()));
  EXPECT_EQ(Of("TESSERA_CPU=sse4").instruction_set, "sse4");
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
  EXPECT_EQ(NumericsDifferences(a, {"avx2", "OpenBLAS 0.3.21 Haswell", 3, 4}, "here"),
            (std::vector<std::string>{
                "instruction set avx512, here avx2",
                "matrix products by oneDNN 2.6.3 avx512_core, here OpenBLAS 0.3.21 Haswell",
                "other bits of matrix products", "other bits of the remaining operations"}));
}

}  // namespace
}  // namespace tessera
