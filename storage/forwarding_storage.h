#ifndef TESSERA_STORAGE_FORWARDING_STORAGE_H_
#define TESSERA_STORAGE_FORWARDING_STORAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/storage.h"

namespace tessera {

// Passes every call on to another storage. Derive from this class to change some operations of a
// storage, and override those.
//
// Write(), Read() and DeleteFiles() are passed on as a whole. If a class must see their steps as
// calls of its own Create(), Open(), Rename(), Replace() and Delete(), it overrides them with
// Storage's implementations.
class ForwardingStorage : public Storage {
 public:
  // `base` must outlive the storage.
  explicit ForwardingStorage(Storage& base) : base_(base) {}

  StorageTraits Traits() override { return base_.Traits(); }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override {
    return base_.Create(path, size_hint_bytes);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override {
    return base_.Open(path);
  }
  absl::Status Rename(std::string_view from, std::string_view to) override {
    return base_.Rename(from, to);
  }
  absl::Status Replace(std::string_view from, std::string_view to) override {
    return base_.Replace(from, to);
  }
  absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                    const WriteCondition& condition) override {
    return base_.Write(path, contents, condition);
  }
  absl::StatusOr<VersionedContents> Read(std::string_view path, uint64_t max_bytes) override {
    return base_.Read(path, max_bytes);
  }
  absl::Status MakeDirectory(std::string_view path) override { return base_.MakeDirectory(path); }
  absl::Status SyncDirectory(std::string_view path) override { return base_.SyncDirectory(path); }
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override {
    return base_.List(path);
  }
  absl::Status Delete(std::string_view path) override { return base_.Delete(path); }
  absl::Status DeleteVersion(std::string_view path, std::string_view version) override {
    return base_.DeleteVersion(path, version);
  }
  absl::Status DeleteFiles(std::string_view directory,
                           const std::vector<std::string>& names) override {
    return base_.DeleteFiles(directory, names);
  }
  absl::Status DeleteTree(std::string_view path) override { return base_.DeleteTree(path); }
  bool IsLink(std::string_view path) override { return base_.IsLink(path); }
  absl::StatusOr<uint64_t> FreeBytes() override { return base_.FreeBytes(); }
  std::optional<std::string> LocalPath(std::string_view path) const override {
    return base_.LocalPath(path);
  }
  Storage* staging() override { return base_.staging(); }
  std::string Describe(std::string_view path) const override { return base_.Describe(path); }
  void Abandon() override { base_.Abandon(); }

 protected:
  Storage& base() const { return base_; }

 private:
  Storage& base_;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_FORWARDING_STORAGE_H_
