#ifndef TESSERA_BASE_TESTING_H_
#define TESSERA_BASE_TESTING_H_

// Helpers for the tests of every package: values without errors, a folder, random numbers.

#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/program.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"

// Checks that a Status or a StatusOr is OK and shows the error. More may follow, with <<.
//   ASSERT_OK(storage.MakeDirectory("d")) << "in round " << round;
#define ASSERT_OK(...) ASSERT_PRED_FORMAT1(::tessera::IsOk, (__VA_ARGS__))
#define EXPECT_OK(...) EXPECT_PRED_FORMAT1(::tessera::IsOk, (__VA_ARGS__))

// TESSERA_ASSIGN_OR_RETURN for a test: an error is a fatal failure.
//   ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(storage, directory));
#define ASSERT_OK_AND_ASSIGN(lhs, ...) \
  ASSERT_OK_AND_ASSIGN_IMPL_(TESSERA_STATUS_CONCAT_(tessera_status_or_, __LINE__), lhs, __VA_ARGS__)
// NOLINTBEGIN(bugprone-macro-parentheses): a declaration in parentheses declares something else.
#define ASSERT_OK_AND_ASSIGN_IMPL_(temporary, lhs, ...) \
  auto temporary = (__VA_ARGS__);                       \
  ASSERT_OK(temporary);                                 \
  lhs = *std::move(temporary)
// NOLINTEND(bugprone-macro-parentheses)

namespace tessera {

inline const absl::Status& StatusIn(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusIn(const absl::StatusOr<T>& value) {
  return value.status();
}

// Implements ASSERT_OK() and EXPECT_OK().
template <typename T>
::testing::AssertionResult IsOk(const char* text, const T& value) {
  if (value.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << text << ": " << StatusIn(value);
}

// Returns the value. An error fails the test, and an empty value is returned.
template <typename T>
T OrFail(absl::StatusOr<T> value) {
  EXPECT_OK(value);
  return value.ok() ? *std::move(value) : T();
}

// A new folder for files of a test, deleted with its contents.
class TestFolder {
 public:
  explicit TestFolder(const std::filesystem::path& parent = ::testing::TempDir())
      : path_(parent / "test_XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_;
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
    EXPECT_FALSE(error) << path_ << ": " << error.message();
  }

  const std::string& path() const { return path_; }
  std::string File(std::string_view name) const { return path_ + "/" + std::string(name); }
  // Writes a file, and creates the folders in its name. Returns its path.
  std::string Write(std::string_view name, std::string_view contents) const {
    const std::filesystem::path path = File(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << contents;
    return path;
  }

 private:
  std::string path_;
};

// Returns and prints the seed of a property test: a new one for each run, or the one in
// TESSERA_TEST_SEED, to repeat a run.
inline uint64_t TestSeed() {
  const char* fixed = std::getenv("TESSERA_TEST_SEED");
  const uint64_t seed =
      fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : std::random_device()();
  std::printf("TESSERA_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

// Returns the rounds of a property test: those in TESSERA_TEST_ROUNDS, for a longer campaign.
inline int TestRounds(int usual) {
  const std::string rounds = EnvironmentVariable("TESSERA_TEST_ROUNDS");
  return rounds.empty() ? usual : std::stoi(rounds);
}

inline std::vector<std::byte> RandomBytes(size_t size, std::mt19937_64& random) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace tessera

#endif  // TESSERA_BASE_TESTING_H_
