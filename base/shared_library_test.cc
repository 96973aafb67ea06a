#include "base/shared_library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera {
namespace {

const LibrarySearch kSearch = {.variable = "TESSERA_TEST_LIBRARY",
                               .files = {"libx.so.2", "libx.so.1"},
                               .package_folders = {"nvidia/x/lib"}};

TEST(SharedLibraryTest, TheVariableIsTheOnlyPlace) {
  setenv("TESSERA_TEST_LIBRARY", "/opt/x/libx.so.2", 1);
  EXPECT_EQ(LibraryPlaces(kSearch), std::vector<std::string>{"/opt/x/libx.so.2"});
  unsetenv("TESSERA_TEST_LIBRARY");
}

TEST(SharedLibraryTest, EachFileIsLookedForInEveryUsualPlace) {
  const std::filesystem::path environment =
      std::filesystem::path(std::getenv("TEST_TMPDIR")) / "environment";
  const std::filesystem::path folder = environment / "lib/python3.11/site-packages/nvidia/x/lib";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "libx.so.1") << "x";
  setenv("VIRTUAL_ENV", environment.c_str(), 1);
  setenv("CUDA_HOME", "/opt/cuda", 1);
  const std::vector<std::string> places = LibraryPlaces(kSearch);
  const std::vector<std::string> expected = {
      "libx.so.2",         "/opt/cuda/lib64/libx.so.2", "/usr/local/cuda/lib64/libx.so.2",
      "libx.so.1",         "/opt/cuda/lib64/libx.so.1", "/usr/local/cuda/lib64/libx.so.1",
      folder / "libx.so.1"};
  EXPECT_EQ(places, expected);
  unsetenv("VIRTUAL_ENV");
  unsetenv("CUDA_HOME");
}

TEST(SharedLibraryTest, TheFirstPlaceThatHasItIsOpened) {
  const std::vector<std::string> places = {"/nowhere/libx.so", "libc.so.6"};
  const absl::StatusOr<SharedLibrary> library = OpenSharedLibrary(places);
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(library->place, "libc.so.6");
  EXPECT_NE(library->Find("getenv"), nullptr);
  EXPECT_EQ(library->Find("no_such_function"), nullptr);
  const std::vector<std::string> nowhere = {"/nowhere/libx.so", "libno-such-library.so.1"};
  EXPECT_EQ(OpenSharedLibrary(nowhere).status(),
            absl::NotFoundError("not at /nowhere/libx.so, libno-such-library.so.1"));
}

}  // namespace
}  // namespace tessera
