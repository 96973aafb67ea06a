#ifndef TESSERA_STORAGE_TESTING_MEMORY_STORAGE_H_
#define TESSERA_STORAGE_TESTING_MEMORY_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/storage.h"

namespace tessera {

// A storage in memory, for tests.
//
// Thread-safe; every call holds one lock. Files may outlive the storage.
class MemoryStorage final : public Storage {
 public:
  // Without `renames_directories`, files have versions of their own, as in object stores.
  explicit MemoryStorage(bool renames_directories = true);
  ~MemoryStorage() override;

  StorageTraits Traits() override {
    return {.renames_directories = renames_directories_, .replaces_versions = true};
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override;
  absl::Status Rename(std::string_view from, std::string_view to) override;
  absl::Status Replace(std::string_view from, std::string_view to) override;
  absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                    const WriteCondition& condition) override;
  absl::StatusOr<VersionedContents> Read(std::string_view path, uint64_t max_bytes) override;
  absl::Status MakeDirectory(std::string_view path) override;
  absl::Status SyncDirectory(std::string_view path) override;
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override;
  absl::Status Delete(std::string_view path) override;
  absl::Status DeleteVersion(std::string_view path, std::string_view version) override;
  absl::Status DeleteTree(std::string_view path) override;
  std::string Describe(std::string_view path) const override;

 private:
  struct Shared;
  struct Node;
  class Writer;
  class Reader;
  using NodePtr = std::shared_ptr<Node>;

  const bool renames_directories_;
  // Shared with open files.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_TESTING_MEMORY_STORAGE_H_
