#include "base/cpu_level.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"

// Compiled for every target: the one that runs shows the choice of the dispatch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/cpu_level_test.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "base/dispatch.h"
#include "base/files.h"
#include "base/for_each_target.h"
#include "base/testing.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {

int64_t Target() { return HWY_TARGET; }

}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

// The result of body() in a new process with that value of TESSERA_CPU, which is read once per
// process.
template <typename Body>
int InProcessWith(const char* value, Body body) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("TESSERA_CPU", value, 1);
    _exit(body());
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool ProcessorHas(CpuLevel level) {
  return InProcessWith("avx512", [] { return static_cast<int>(EffectiveCpuLevel()); }) >=
         static_cast<int>(level);
}

TEST(CpuLevelTest, NamesAreParsed) {
  for (const CpuLevel level : {CpuLevel::kSse4, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    EXPECT_EQ(ParseCpuLevel(CpuLevelName(level)).value(), level);
  }
  const absl::Status unknown = ParseCpuLevel("AVX2").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(unknown.message(),
            "TESSERA_CPU is \"AVX2\"; it can be sse4, avx2 or avx512, or not set at all");
}

TEST(CpuLevelTest, TheVariableLimitsTheDispatch) {
  for (const CpuLevel level : {CpuLevel::kSse4, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (!ProcessorHas(level)) continue;
    const auto chosen_fits = [level] {
      const int64_t target = TESSERA_CHOOSE(Target)();
      switch (level) {
        case CpuLevel::kSse4:
          return target >= HWY_SSE4;
        case CpuLevel::kAvx2:
          return target == HWY_AVX2;
        case CpuLevel::kAvx512:
          return target == HWY_AVX3;
      }
      return false;
    };
    const std::string name(CpuLevelName(level));
    EXPECT_EQ(InProcessWith(name.c_str(), [&] { return chosen_fits() ? 0 : 1; }), 0) << name;
    // Asking for the level first has no effect.
    EXPECT_EQ(InProcessWith(name.c_str(),
                            [&] { return EffectiveCpuLevel() == level && chosen_fits() ? 0 : 1; }),
              0)
        << name;
    EXPECT_EQ(InProcessWith(name.c_str(), [] { return static_cast<int>(EffectiveCpuLevel()); }),
              static_cast<int>(level));
  }
}

TEST(CpuLevelTest, AnUnknownNameIsAnErrorForProgramsAndNoLimitForALibrary) {
  EXPECT_EQ(InProcessWith("avx10", [] { return CheckCpuLevel().ok() ? 1 : 0; }), 0);
  EXPECT_EQ(InProcessWith("avx10", [] { return CpuLevelLimit().has_value() ? 1 : 0; }), 0);
  for (const char* const fine : {"avx2", ""}) {
    EXPECT_EQ(InProcessWith(fine, [] { return CheckCpuLevel().ok() ? 0 : 1; }), 0) << fine;
  }
}

#if HWY_ARCH_X86
TEST(CpuLevelTest, TheTargetsAreThoseThatTheSystemTellsOf) {
  const std::map<int64_t, std::vector<std::string>> needed = {
      {HWY_SSSE3, {"ssse3"}},
      {HWY_SSE4, {"ssse3", "sse4_1", "sse4_2", "pclmulqdq", "aes"}},
      {HWY_AVX2, {"avx2", "fma", "bmi1", "bmi2", "f16c", "abm", "aes", "pclmulqdq"}},
      {HWY_AVX3, {"avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}},
      {HWY_AVX3_DL,
       {"avx512f", "avx512vl", "avx512_vnni", "vpclmulqdq", "avx512vbmi", "avx512_vbmi2",
        "avx512_vpopcntdq", "avx512_bitalg", "vaes"}}};
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadWholeFile("/proc/cpuinfo"));
  const size_t begin = text.find("\nflags");
  ASSERT_NE(begin, std::string::npos);
  const std::string line = text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
  const std::set<std::string> flags = absl::StrSplit(line, ' ');
  for (const auto& [target, names] : needed) {
    const bool has =
        std::ranges::all_of(names, [&](const std::string& name) { return flags.contains(name); });
    const auto is_usable = [target = target] { return (UsableTargets() & target) != 0 ? 1 : 0; };
    EXPECT_EQ(InProcessWith("", is_usable), has ? 1 : 0) << hwy::TargetName(target);
  }
}
#endif

TEST(CpuLevelTest, EachTargetRunsInTurn) {
  std::set<int64_t> seen;
  ForEachTarget([&](const char* name) {
    EXPECT_STREQ(hwy::TargetName(TESSERA_CHOOSE(Target)()), name);
    EXPECT_TRUE(seen.insert(TESSERA_CHOOSE(Target)()).second) << name;
  });
  EXPECT_EQ(TESSERA_CHOOSE(Target)(), *seen.begin()) << "the newest, again";
}

}  // namespace
}  // namespace tessera
#endif  // HWY_ONCE
