// The conformance suite over the storages of storage and of this folder.

#include "storage/testing/storage_conformance.h"

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "storage/posix_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera {
namespace {

StorageFixture Posix(std::string name, std::string parent, PosixStorageOptions options = {}) {
  struct Owner {
    explicit Owner(const std::string& parent) : directory(parent) {}
    TestFolder directory;
    std::unique_ptr<Storage> storage;
  };
  return {std::move(name),
          [parent = std::move(parent), options]() -> std::shared_ptr<Storage> {
            auto owner = std::make_shared<Owner>(parent);
            auto storage = OpenPosixStorage(owner->directory.path(), options);
            EXPECT_OK(storage);
            if (!storage.ok()) return nullptr;
            owner->storage = *std::move(storage);
            return {owner, owner->storage.get()};
          },
          [](Storage& storage, const std::string& target, const std::string& link) {
            ASSERT_EQ(symlink(storage.Describe(target).c_str(), storage.Describe(link).c_str()), 0);
          }};
}

template <typename Base>
StorageFixture FaultFree(std::string name) {
  struct Owner {
    Base base;
    FaultInjectingStorage storage{base};
  };
  return {std::move(name), []() -> std::shared_ptr<Storage> {
            auto owner = std::make_shared<Owner>();
            return {owner, &owner->storage};
          }};
}

bool HasTmpfs() { return access("/dev/shm", W_OK) == 0; }

std::vector<StorageFixture> Fixtures() {
  const std::string disk = testing::TempDir();
  PosixStorageOptions buffered;
  buffered.direct_io = false;
  // Every transfer that can be direct is, and the others use a single bounce block.
  PosixStorageOptions eager;
  eager.direct_min_bytes = 1;
  eager.bounce_buffer_bytes = kIoAlignmentBytes;
  eager.max_bounce_buffers = 1;
  PosixStorageOptions without_ring = eager;
  without_ring.io_uring = false;
  std::vector<StorageFixture> fixtures = {
      Posix("Posix", disk),
      Posix("PosixBuffered", disk, buffered),
      Posix("PosixEagerlyDirect", disk, eager),
      Posix("PosixWithoutRing", disk, without_ring),
      {"Memory", [] { return std::make_shared<MemoryStorage>(); }},
      FaultFree<MemoryStorage>("FaultInjecting"),
  };
  if (HasTmpfs()) fixtures.push_back(Posix("PosixTmpfs", "/dev/shm"));
  return fixtures;
}

TEST(StorageFixturesTest, OneIsOnTmpfs) {
  if (!HasTmpfs()) GTEST_SKIP() << "/dev/shm is not writable (needs: shm)";
  struct statfs status;
  ASSERT_EQ(statfs("/dev/shm", &status), 0);
  EXPECT_EQ(status.f_type, TMPFS_MAGIC);
  EXPECT_EQ(Fixtures().back().name, "PosixTmpfs");
}

INSTANTIATE_TEST_SUITE_P(Storages, StorageConformance, testing::ValuesIn(Fixtures()),
                         StorageFixtureName);

}  // namespace
}  // namespace tessera
