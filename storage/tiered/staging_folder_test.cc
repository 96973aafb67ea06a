#include "storage/tiered/staging_folder.h"

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"
#include "storage/tiered/tiered_storage.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StagingFolderTest : public testing::Test {
 protected:
  static std::string Refusal(const std::string& path) {
    return OpenStagingFolder(path).status().ToString();
  }
  static mode_t Mode(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 0777;
  }

  const TestFolder directory_;
  const std::string root_ = directory_.path();
  const std::string folder_ = root_ + "/parent/own";
};

TEST_F(StagingFolderTest, IsPrivateMarkedAndTakenAgain) {
  ASSERT_OK(OpenStagingFolder(folder_));
  EXPECT_EQ(Mode(folder_), 0700);
  std::ofstream(folder_ + "/copy") << "bytes";
  fs::permissions(folder_, fs::perms(0755));
  ASSERT_OK(OpenStagingFolder(folder_ + "/"));
  EXPECT_EQ(Mode(folder_), 0700);
  EXPECT_TRUE(fs::exists(folder_ + "/copy"));
}

TEST_F(StagingFolderTest, FilesOfOthersAreNotTaken) {
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/thesis.tex") << "years";
  EXPECT_THAT(Refusal(folder_), HasSubstr(folder_ + " is not empty and no staging folder"));
  EXPECT_TRUE(fs::exists(folder_ + "/thesis.tex"));
  EXPECT_FALSE(fs::exists(folder_ + "/" + std::string(kStagingMarker)));
}

TEST_F(StagingFolderTest, ALinkIsNotFollowed) {
  fs::create_directories(root_ + "/elsewhere");
  fs::create_directories(root_ + "/parent");
  fs::create_directory_symlink(root_ + "/elsewhere", folder_);
  EXPECT_THAT(Refusal(folder_), HasSubstr(folder_ + " is a symbolic link"));
  EXPECT_THAT(Refusal(folder_ + "/"), HasSubstr(folder_ + " is a symbolic link"));
  EXPECT_TRUE(fs::is_empty(root_ + "/elsewhere"));
}

TEST_F(StagingFolderTest, ForgettingKeepsTheMarkerAndRemovingLeavesNothing) {
  ASSERT_OK_AND_ASSIGN(auto staging, OpenStagingFolder(folder_));
  TieredStorage upload(std::move(staging), std::make_unique<MemoryStorage>());
  const std::string marker = folder_ + "/" + std::string(kStagingMarker);
  fs::last_write_time(marker, fs::file_time_type::clock::now() - std::chrono::hours(1000));
  std::ofstream(folder_ + "/copy") << "bytes";
  RemoveStagingFolder(*upload.staging());
  EXPECT_TRUE(fs::exists(folder_ + "/copy")) << "it is not empty";
  ASSERT_OK(DeleteStagedFilesBut(*upload.staging(), ""));
  EXPECT_FALSE(fs::exists(folder_ + "/copy"));
  EXPECT_GT(fs::last_write_time(marker), fs::file_time_type::clock::now() - std::chrono::hours(1));
  RemoveStagingFolder(*upload.staging());
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_OK(DeleteStagedFilesBut(*upload.staging(), "")) << "another process was faster";
}

TEST(StagingTest, ForgetsAllCopiesButThoseInOneDirectory) {
  MemoryStorage staging;
  for (const std::string directory : {"run/1", "run/2", "other"}) {
    ASSERT_OK(staging.MakeDirectory(directory));
    ASSERT_OK(WriteAll(staging, directory + "/a", "x"));
  }
  ASSERT_OK(WriteAll(staging, "b", "x"));
  ASSERT_OK(DeleteStagedFilesBut(staging, "run/2"));
  EXPECT_THAT(*staging.List(""), ElementsAre("run/"));
  EXPECT_THAT(*staging.List("run"), ElementsAre("2/"));
  EXPECT_EQ(*ReadAll(staging, "run/2/a", 10), "x");
  ASSERT_OK(DeleteStagedFilesBut(staging, ""));
  EXPECT_THAT(*staging.List(""), IsEmpty());
}

TEST_F(StagingFolderTest, OverlapsAreFoundThroughLinks) {
  fs::create_directories(root_ + "/a/b");
  fs::create_directories(root_ + "/ab");
  fs::create_directory_symlink(root_ + "/a", root_ + "/link");
  const auto overlap = [&](const std::string& first, const std::string& second) {
    const auto forth = FoldersOverlap(root_ + first, root_ + second);
    EXPECT_EQ(forth.value(), FoldersOverlap(root_ + second, root_ + first).value());
    return *forth;
  };
  EXPECT_TRUE(overlap("/a", "/a/"));
  EXPECT_TRUE(overlap("/a", "/a/b"));
  EXPECT_TRUE(overlap("/link/b", "/a/b"));
  EXPECT_TRUE(overlap("/link/new/folder", "/a/new"));
  EXPECT_TRUE(overlap("/link/../a", "/a/b/c"));
  EXPECT_FALSE(overlap("/ab", "/a"));
  EXPECT_FALSE(overlap("/link/b", "/a/c"));
}

}  // namespace
}  // namespace tessera
