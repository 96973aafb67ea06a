#ifndef TESSERA_CHECKPOINT_STORAGE_TESTING_TEMPORARY_DIRECTORY_H_
#define TESSERA_CHECKPOINT_STORAGE_TESTING_TEMPORARY_DIRECTORY_H_

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "gtest/gtest.h"

namespace tessera::ckpt {

// A new directory for one test, deleted with its contents.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& parent = testing::TempDir())
      : path_((std::filesystem::path(parent) / "storage_XXXXXX").string()) {
    EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
    EXPECT_FALSE(error) << path_ << ": " << error.message();
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_STORAGE_TESTING_TEMPORARY_DIRECTORY_H_
