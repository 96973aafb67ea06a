#include "base/available_memory.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(AvailableMemoryTest, ReadsWhatTheSystemSays) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_EQ(ParseMemAvailable("MemTotal:  9 kB\nMemAvailable:   1234 kB\nBuffers: 1 kB\n"),
            1234 * 1024);
  EXPECT_EQ(ParseMemAvailable("MemTotal: 9 kB\n"), UINT64_MAX);
  EXPECT_EQ(ParseMemAvailable("MemAvailable: many kB"), UINT64_MAX);
  EXPECT_EQ(ParseMemAvailable(""), UINT64_MAX);
}

TEST(AvailableMemoryTest, AControlGroupsCacheIsRoom) {
  EXPECT_EQ(ParseControlGroupRoom("1000\n", "600\n", "anon 1\ninactive_file 250\n"), 650);
  EXPECT_EQ(ParseControlGroupRoom("1000\n", "600\n", ""), 400);
  EXPECT_EQ(ParseControlGroupRoom("1000\n", "2000\n", ""), 0);
  EXPECT_EQ(ParseControlGroupRoom("1000\n", "10\n", "inactive_file 250\n"), 1000);
  EXPECT_EQ(ParseControlGroupRoom("max\n", "600\n", ""), UINT64_MAX);
  EXPECT_EQ(ParseControlGroupRoom("", "", ""), UINT64_MAX);
}

}  // namespace
}  // namespace tessera
