#include "base/processors.h"

#include <sched.h>

#include <map>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int kUnlimited = std::numeric_limits<int>::max();

ProcessorQuota Find(const std::string& groups, const std::map<std::string, std::string>& files) {
  return FindProcessorQuota(groups, [&](const std::string& path) {
    const auto found = files.find(path);
    return found == files.end() ? "" : found->second;
  });
}

int Max(const std::string& text) {
  return Find("0::/\n", {{"/sys/fs/cgroup/cpu.max", text}}).processors;
}

TEST(ProcessorQuotaTest, IsRoundedUp) {
  EXPECT_EQ(Max("max 100000\n"), kUnlimited);
  EXPECT_EQ(Max("150000 100000\n"), 2);
  EXPECT_EQ(Max("200000 100000\n"), 2);
  EXPECT_EQ(Max("1000 100000\n"), 1);
  EXPECT_EQ(Max("9223372036854775807 1000\n"), kUnlimited);
  for (const char* const text : {"", "\n", "150000", "150000 0\n", "-1 100000\n", "x y\n"}) {
    EXPECT_EQ(Max(text), kUnlimited) << text;
  }
}

TEST(ProcessorQuotaTest, IsTheLeastOfTheGroupsAround) {
  const std::string inner = "/sys/fs/cgroup/a/b/cpu.max", outer = "/sys/fs/cgroup/a/cpu.max";
  for (const bool outer_is_less : {false, true}) {
    const ProcessorQuota quota =
        Find("0::/a/b\n", {{inner, outer_is_less ? "800000 100000\n" : "300000 100000\n"},
                           {outer, outer_is_less ? "300000 100000\n" : "800000 100000\n"}});
    EXPECT_EQ(quota.processors, 3);
    EXPECT_EQ(quota.file, outer_is_less ? outer : inner);
  }
  // A container without a namespace of groups: its own is the root.
  EXPECT_EQ(Find("0::/docker/1\n", {{"/sys/fs/cgroup/cpu.max", "250000 100000\n"}}).processors, 3);
  EXPECT_EQ(Find("0::/a/b\n", {}).processors, kUnlimited);
  EXPECT_EQ(Find("", {{"/sys/fs/cgroup/cpu.max", "250000 100000\n"}}).file, "");
}

TEST(ProcessorQuotaTest, TheFirstVersionHasTwoFiles) {
  const std::string groups = "5:cpuset:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/a\n0::/b\n";
  const auto find = [&](const std::string& quota) {
    return Find(groups, {{"/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", quota},
                         {"/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"}});
  };
  EXPECT_EQ(find("450000\n").processors, 5);
  EXPECT_EQ(find("450000\n").file, "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us");
  EXPECT_EQ(find("-1\n").processors, kUnlimited);
  // The other hierarchy limits too.
  EXPECT_EQ(Find(groups, {{"/sys/fs/cgroup/b/cpu.max", "100000 100000\n"}}).processors, 1);
}

TEST(UsableProcessorsTest, AreThoseOfTheThread) {
  const int all = UsableProcessors();
  EXPECT_GE(all, 1);
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_LE(all, CPU_COUNT(&before));
  CPU_ZERO(&one);
  for (int i = 0; CPU_COUNT(&one) == 0; ++i) {
    if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(UsableProcessors(), 1);
  sched_setaffinity(0, sizeof(before), &before);
}

}  // namespace
}  // namespace tessera
