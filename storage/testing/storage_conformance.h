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

// The abilities of a storage. Cases that need an ability that it lacks expect the documented
// answer.
struct FixtureTraits {
  // Whether directories are objects of their own, which exist while empty and under names that no
  // file has, and can be renamed. In an object store they are prefixes of the names of objects.
  bool has_directories = true;
  // Whether files change after Sync(). An object of an object store appears as a whole when it is
  // synced, and does not change afterwards.
  bool files_change_after_sync = true;
  // Whether readers keep files that are replaced. Readers of a replaced object of an object store
  // get Unavailable.
  bool readers_keep_replaced_files = true;
  // Whether a storage that replaces versions obeys the condition.
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
    ASSERT_OK(WriteAll(*storage_, path, contents));
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
