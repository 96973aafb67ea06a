#include "base/read_whole_file.h"

#include <errno.h>

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ReadWholeFileTest, EveryByte) {
  std::string bytes;
  for (int i = 0; i < 200'000; ++i) bytes.push_back(static_cast<char>(i % 251));
  const std::string path = testing::TempDir() + "/bytes", empty = testing::TempDir() + "/empty";
  std::ofstream(path, std::ios::binary) << bytes;
  std::ofstream(empty, std::ios::binary).flush();
  EXPECT_TRUE(ReadWholeFile(path) == bytes);
  EXPECT_EQ(ReadWholeFile(empty), "");
}

TEST(ReadWholeFileTest, FilesOfTheKernel) {
  const std::optional<std::string> status = ReadWholeFile("/proc/self/status");
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(status->starts_with("Name:")) << *status;
}

TEST(ReadWholeFileTest, ErrnoSaysWhatIsWrong) {
  EXPECT_EQ(ReadWholeFile(testing::TempDir() + "/absent"), std::nullopt);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(ReadWholeFile(testing::TempDir()), std::nullopt);
  EXPECT_EQ(errno, EISDIR);
}

}  // namespace
}  // namespace tessera
