#include "trainer/data/file_util.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "trainer/data/test_files.h"

namespace tessera {
namespace {

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
  const TestFolder folder;
  for (const char* name : {"s10.bin", "s9.bin", "s1.bin", "other"}) folder.Write(name, "");
  const auto paths = Glob(folder.File("s*.bin"));
  ASSERT_TRUE(paths.ok());
  EXPECT_EQ(*paths, (std::vector<std::string>{folder.File("s1.bin"), folder.File("s9.bin"),
                                              folder.File("s10.bin")}));
  const auto none = Glob(folder.File("t*.bin"));
  EXPECT_TRUE(absl::IsNotFound(none.status()));
  EXPECT_NE(MessageOf(none.status()).find(folder.File("t*.bin")), std::string::npos);
}

TEST(ReadFileTest, BoundsAndKinds) {
  const TestFolder folder;
  const std::string path = folder.Write("file", "12345");
  EXPECT_EQ(*ReadFile(path, 5), "12345");
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFile(path, 4).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadFile(folder.File("none"), 5).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFile(folder.path(), 5).status()));
  // Opening a pipe without a writer must not block.
  ASSERT_EQ(mkfifo(folder.File("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFile(folder.File("pipe"), 5).status()));
}

}  // namespace
}  // namespace tessera
