#include "base/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/files.h"
#include "base/testing.h"

namespace tessera {
namespace {

// An empty folder of the test's own.
std::string NewFolder() {
  std::string path = ::testing::TempDir() + "/files-XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path + "/";
}

std::string WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  return path;
}

TEST(NaturalLessTest, OrdersNumbersByValue) {
  const std::vector<std::string> ordered = {"",
                                            "a",
                                            "a1",
                                            "a2",
                                            "a02b",
                                            "a10",
                                            "a10b",
                                            "a10b3",
                                            "a10b020",
                                            "a11",
                                            "aa",
                                            "b",
                                            "b99999999999999999999999",
                                            "b100000000000000000000000"};
  for (size_t i = 0; i < ordered.size(); ++i) {
    for (size_t j = 0; j < ordered.size(); ++j) {
      EXPECT_EQ(NaturalLess(ordered[i], ordered[j]), i < j) << ordered[i] << " " << ordered[j];
    }
  }
  EXPECT_NE(NaturalLess("x01", "x1"), NaturalLess("x1", "x01"));
}

TEST(GlobTest, NaturalOrderAndNotFoundNamesThePattern) {
  const std::string folder = NewFolder();
  for (const char* name : {"s10.bin", "s9.bin", "s1.bin", "other"}) WriteText(folder + name, "");
  ASSERT_OK_AND_ASSIGN(const auto paths, Glob(folder + "s*.bin"));
  EXPECT_EQ(paths,
            (std::vector<std::string>{folder + "s1.bin", folder + "s9.bin", folder + "s10.bin"}));
  const auto none = Glob(folder + "t*.bin");
  EXPECT_TRUE(absl::IsNotFound(none.status()));
  EXPECT_NE(none.status().message().find(folder + "t*.bin"), std::string::npos);
}

TEST(GlobTest, APathThatExistsIsItself) {
  const std::string folder = NewFolder() + "a[1]*?\\/";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  for (const char* name : {"s[1].bin", "s1.bin", "s2.bin"}) WriteText(folder + name, "");
  EXPECT_EQ(*Glob(folder + "s[1].bin"), std::vector<std::string>{folder + "s[1].bin"});
  EXPECT_EQ(*Glob(folder + "s[12].bin"),
            (std::vector<std::string>{folder + "s1.bin", folder + "s2.bin"}));
  EXPECT_TRUE(absl::IsNotFound(Glob(folder + "s[3].bin").status()));
  setenv("HOME", folder.substr(0, folder.size() - 1).c_str(), 1);
  EXPECT_EQ(*Glob("~/s[1].bin"), std::vector<std::string>{folder + "s[1].bin"});
  EXPECT_EQ(*Glob("~/s[12].bin"), *Glob(folder + "s[12].bin"));
  EXPECT_TRUE(absl::IsNotFound(Glob("~nobody's/s*.bin").status()));
}

TEST(ReadFileTest, BoundsAndKinds) {
  const std::string folder = NewFolder();
  const std::string path = WriteText(folder + "file", "12345");
  EXPECT_EQ(*ReadFile(path, 5), "12345");
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFile(path, 4).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadFile(folder + "none", 5).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFile(folder, 5).status()));
  // Opening a pipe without a writer must not block.
  ASSERT_EQ(mkfifo((folder + "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFile(folder + "pipe", 5).status()));
}

TEST(OpenRegularFileTest, ReturnsNoStandardStream) {
  const std::string path = NewFolder() + "file";
  const auto open_without_streams = [&] {
    for (const int stream : {0, 1, 2}) close(stream);
    const absl::StatusOr<ScopedFd> file = OpenRegularFile(AT_FDCWD, path, O_WRONLY | O_CREAT);
    const bool is_safe = file.ok() && file->get() > STDERR_FILENO && write(0, "a message", 9) < 0;
    _exit(is_safe && write(file->get(), "text", 4) == 4 ? 0 : 1);
  };
  EXPECT_EXIT(open_without_streams(), testing::ExitedWithCode(0), "");
  EXPECT_EQ(*ReadFile(path, 100), "text");
}

}  // namespace
}  // namespace tessera
