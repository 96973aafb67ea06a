#include "base/shared_library.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/status/status.h"
#include "base/testing.h"

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
  LibrarySearch search = kSearch;
  search.root = "/nowhere";
  const std::vector<std::string> places = LibraryPlaces(search);
  const std::vector<std::string> expected = {
      "libx.so.2",         "/opt/cuda/lib64/libx.so.2", "/nowhere/usr/local/cuda/lib64/libx.so.2",
      "libx.so.1",         "/opt/cuda/lib64/libx.so.1", "/nowhere/usr/local/cuda/lib64/libx.so.1",
      folder / "libx.so.1"};
  EXPECT_EQ(places, expected);
  unsetenv("VIRTUAL_ENV");
  unsetenv("CUDA_HOME");
}

// A machine whose PyTorch has brought the library: in an environment that is in $PATH but not
// active, and with the toolkits of two versions.
TEST(SharedLibraryTest, EnvironmentsInThePathAndVersionedToolkitsAreSearched) {
  const std::filesystem::path root = std::filesystem::path(std::getenv("TEST_TMPDIR")) / "machine";
  const std::filesystem::path venv = root / "opt/torch/.venv";
  const std::filesystem::path folder = venv / "lib/python3.12/site-packages/nvidia/x/lib";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "libx.so.2") << "x";
  std::filesystem::create_directories(venv / "bin");
  std::filesystem::create_symlink("/bin/sh", venv / "bin/python3");
  const std::filesystem::path system = root / "usr/lib/python3/dist-packages/nvidia/x/lib";
  std::filesystem::create_directories(system);
  std::ofstream(system / "libx.so.2") << "x";
  const std::filesystem::path local = root / "usr/local";
  std::filesystem::create_directories(local / "cuda-12.9/lib64");
  std::filesystem::create_directories(local / "cuda-13.0/lib64");
  const std::string path = std::getenv("PATH");
  setenv("PATH", (venv / "bin").c_str(), 1);
  LibrarySearch search = kSearch;
  search.files = {"libx.so.2"};
  search.root = root;
  const std::vector<std::string> expected = {"libx.so.2",
                                             local / "cuda/lib64/libx.so.2",
                                             local / "cuda-13.0/lib64/libx.so.2",
                                             local / "cuda-12.9/lib64/libx.so.2",
                                             folder / "libx.so.2",
                                             system / "libx.so.2"};
  EXPECT_EQ(LibraryPlaces(search), expected);
  setenv("PATH", path.c_str(), 1);
}

TEST(SharedLibraryTest, TheFirstPlaceThatHasItIsOpened) {
  const std::vector<std::string> places = {"/nowhere/libx.so", "libc.so.6"};
  ASSERT_OK_AND_ASSIGN(const SharedLibrary library, OpenSharedLibrary(places));
  EXPECT_EQ(library.place, "libc.so.6");
  EXPECT_NE(library.Find("getenv"), nullptr);
  EXPECT_EQ(library.Find("no_such_function"), nullptr);
  const std::vector<std::string> nowhere = {"/nowhere/libx.so", "libno-such-library.so.1"};
  EXPECT_EQ(OpenSharedLibrary(nowhere).status(),
            absl::NotFoundError("not at /nowhere/libx.so, libno-such-library.so.1"));
}

}  // namespace
}  // namespace tessera
