#ifndef TESSERA_STORAGE_TESTING_STORAGE_CONFORMANCE_H_
#define TESSERA_STORAGE_TESTING_STORAGE_CONFORMANCE_H_

// The contract of every Storage, as a test suite. A storage joins with
//
//   INSTANTIATE_TEST_SUITE_P(Mine, StorageConformance, testing::Values(StorageFixture{...}),
//                            StorageFixtureName);

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "storage/storage.h"

namespace tessera {

// What a storage cannot do by its nature. Cases that need more expect its documented answer.
struct FixtureTraits {
  // Directories are things of their own, which exist without anything in them and under names that
  // no file has, and can be renamed. In an object store they are prefixes of the names of objects.
  bool has_directories = true;
  // An object appears as a whole when it is synced, and does not change after that.
  bool files_change_after_sync = true;
  // An object that is replaced is gone for readers, too, which get Unavailable.
  bool readers_keep_replaced_files = true;
  // A storage that is to replace versions keeps to the condition.
  bool honors_conditions = true;
};

struct StorageFixture {
  std::string name;
  // Creates a new, empty storage; the pointer also owns its resources.
  std::function<std::shared_ptr<Storage>()> make;
  // Makes `link` a symbolic link to `target`, both paths in the storage. Null: without links.
  std::function<void(Storage& storage, const std::string& target, const std::string& link)>
      make_link = nullptr;
  FixtureTraits traits = {};
};

inline std::string StorageFixtureName(const testing::TestParamInfo<StorageFixture>& info) {
  return info.param.name;
}

class StorageConformance : public testing::TestWithParam<StorageFixture> {
 protected:
  void SetUp() override {
    storage_ = GetParam().make();
    ASSERT_NE(storage_, nullptr);
  }

  const FixtureTraits& traits() const { return GetParam().traits; }

  // Makes a directory, with a file in it if the storage has no empty directories.
  void Mkdir(const std::string& path) {
    ASSERT_OK(storage_->MakeDirectory(path)) << path;
    if (traits().has_directories) return;
    ASSERT_OK(WriteAll(*storage_, path + "/.kept", "")) << path;
  }

  void Put(std::string_view path, std::string_view contents) {
    const absl::Status status = WriteAll(*storage_, path, contents);
    ASSERT_OK(status);
  }
  std::string Get(std::string_view path) {
    absl::StatusOr<std::string> contents = ReadAll(*storage_, path, uint64_t{1} << 30);
    EXPECT_OK(contents);
    return contents.ok() ? *contents : "(unreadable)";
  }

  // Expects an error with the right code that names the operation and the path.
  static void ExpectError(const absl::Status& status, absl::StatusCode code,
                          const std::string& operation, const std::string& path) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(std::string(status.message()).find(operation), std::string::npos) << status;
    EXPECT_NE(std::string(status.message()).find(path), std::string::npos) << status;
  }

  std::shared_ptr<Storage> storage_;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_TESTING_STORAGE_CONFORMANCE_H_
