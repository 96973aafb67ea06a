#ifndef TESSERA_TRAINER_DATA_TEST_FILES_H_
#define TESSERA_TRAINER_DATA_TEST_FILES_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

inline std::span<const uint8_t> AsBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// A temporary folder for each test.
class TestFolder {
 public:
  TestFolder() {
    std::string path = ::testing::TempDir() + "/data_test-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    path_ = path;
  }
  ~TestFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }

  const std::string& path() const { return path_; }
  std::string File(std::string_view name) const { return path_ + "/" + std::string(name); }

  std::string Write(std::string_view name, std::string_view contents) const {
    const std::string path = File(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << contents;
    return path;
  }

 private:
  std::string path_;
};

inline std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string MessageOf(const auto& status) { return std::string(status.message()); }

inline std::string Int32Header(std::vector<int32_t> words) {
  words.resize(256);
  return {reinterpret_cast<const char*>(words.data()), 1024};
}

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_TEST_FILES_H_
