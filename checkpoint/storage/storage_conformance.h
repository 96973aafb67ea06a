#ifndef TESSERA_CHECKPOINT_STORAGE_STORAGE_CONFORMANCE_H_
#define TESSERA_CHECKPOINT_STORAGE_STORAGE_CONFORMANCE_H_

// The contract of every Storage, as a test suite. A storage joins with
//
//   INSTANTIATE_TEST_SUITE_P(Mine, StorageConformance, testing::Values(StorageFixture{...}),
//                            StorageFixtureName);

#include <functional>
#include <memory>
#include <string>

#include "checkpoint/storage/storage.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {

struct StorageFixture {
  std::string name;
  // Creates a new, empty storage; the pointer also owns its resources.
  std::function<std::shared_ptr<Storage>()> make;
  // Makes `link` a symbolic link to `target`, both paths in the storage. Null: without links.
  std::function<void(Storage& storage, const std::string& target, const std::string& link)>
      make_link = nullptr;
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

  std::shared_ptr<Storage> storage_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_STORAGE_STORAGE_CONFORMANCE_H_
