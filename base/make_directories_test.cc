#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "tests/worlds/power/power_loss.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class MakeDirectoriesTest : public testing::Test {
 protected:
  const TestFolder own_;
  const std::string folder_ = own_.path();
};

TEST_F(MakeDirectoriesTest, MakesParentsAndIsIdempotent) {
  const int at = open(folder_.c_str(), O_PATH | O_DIRECTORY);
  for (const char* path : {"a/b/c", "a/b/c", "a//d/", "e/", "."}) {
    EXPECT_OK(MakeDirectories(at, path)) << path;
    EXPECT_TRUE(fs::is_directory(folder_ + "/" + path)) << path;
    EXPECT_OK(MakeDirectories(AT_FDCWD, absl::StrCat(folder_, "/absolute//", path))) << path;
    EXPECT_TRUE(fs::is_directory(folder_ + "/absolute/" + path)) << path;
  }
  EXPECT_OK(MakeDirectories(AT_FDCWD, "/"));
  close(at);
}

TEST_F(MakeDirectoriesTest, WhatIsNoDirectoryIsAnError) {
  std::ofstream(folder_ + "/file") << "x";
  fs::create_symlink("nowhere", folder_ + "/dangling");
  EXPECT_TRUE(absl::IsAlreadyExists(MakeDirectories(AT_FDCWD, folder_ + "/file")));
  EXPECT_TRUE(absl::IsNotFound(MakeDirectories(AT_FDCWD, folder_ + "/file/below")));
  EXPECT_TRUE(absl::IsNotFound(MakeDirectories(AT_FDCWD, folder_ + "/dangling")));
}

PowerLossScenario MakesAbc(const char* there) {
  PowerLossScenario scenario;
  scenario.run = [there](const std::string& root) {
    // Created without a sync.
    if (there != nullptr) fs::create_directories(root + "/" + there);
    return MakeDirectories(AT_FDCWD, root + "/a/b/c");
  };
  scenario.check = [](const FileImage& image, bool finished) -> std::string {
    return image.contains("a/b/c/") || !finished ? "" : "a/b/c is gone";
  };
  return scenario;
}

TEST_F(MakeDirectoriesTest, ALossOfPowerTakesNoDirectoryWhoeverMadeIt) {
  for (const char* there : {static_cast<const char*>(nullptr), "a", "a/b", "a/b/c"}) {
    std::vector<std::string> syncs;
    EXPECT_EQ(CheckEverySync(MakesAbc(there), folder_ + "/root", &syncs), "");
    EXPECT_EQ(syncs, std::vector<std::string>({"", "a", "a/b"}));
  }
}

}  // namespace
}  // namespace tessera
