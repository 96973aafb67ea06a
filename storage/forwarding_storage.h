#ifndef TESSERA_STORAGE_FORWARDING_STORAGE_H_
#define TESSERA_STORAGE_FORWARDING_STORAGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/storage.h"

namespace tessera {

// Passes every call on to another storage: a storage that changes some operations of another one
// derives from this class and overrides those.
//
// Publish() and DeleteFiles() are passed on as a whole. A class that must see their steps, as calls
// of its own Create(), Rename() and Delete(), overrides both with the ones of Storage.
class ForwardingStorage : public Storage {
 public:
  // `base` must outlive the storage.
  explicit ForwardingStorage(Storage& base) : base_(base) {}

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
  absl::Status Publish(std::string_view path, std::string_view contents,
                       const std::function<absl::Status()>& ready) override {
    return base_.Publish(path, contents, ready);
  }
  bool RenamesDirectories() const override { return base_.RenamesDirectories(); }
  absl::Status Exchange(std::string_view path, std::string_view expected, std::string_view contents,
                        const std::function<absl::Status()>& ready) override {
    return base_.Exchange(path, expected, contents, ready);
  }
  absl::Status MakeDirectory(std::string_view path) override { return base_.MakeDirectory(path); }
  absl::Status SyncDirectory(std::string_view path) override { return base_.SyncDirectory(path); }
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override {
    return base_.List(path);
  }
  absl::Status Delete(std::string_view path) override { return base_.Delete(path); }
  absl::Status DeleteFiles(std::string_view directory,
                           const std::vector<std::string>& names) override {
    return base_.DeleteFiles(directory, names);
  }
  absl::Status DeleteTree(std::string_view path) override { return base_.DeleteTree(path); }
  bool IsLink(std::string_view path) override { return base_.IsLink(path); }
  absl::StatusOr<uint64_t> FreeBytes() override { return base_.FreeBytes(); }
  absl::StatusOr<Version> ReadVersion(std::string_view path, uint64_t max_bytes) override {
    return base_.ReadVersion(path, max_bytes);
  }
  absl::StatusOr<std::string> ReplaceVersion(std::string_view path, std::string_view contents,
                                             const std::string& tag) override {
    return base_.ReplaceVersion(path, contents, tag);
  }
  void Abandon() override { base_.Abandon(); }
  uint64_t PreferredWriteBytes() const override { return base_.PreferredWriteBytes(); }
  uint64_t InPlaceAlignmentBytes() override { return base_.InPlaceAlignmentBytes(); }
  std::optional<std::string> LocalPath(std::string_view path) const override {
    return base_.LocalPath(path);
  }
  bool PresentsForeignFiles() const override { return base_.PresentsForeignFiles(); }
  std::string Describe(std::string_view path) const override { return base_.Describe(path); }

 protected:
  Storage& base() const { return base_; }

 private:
  Storage& base_;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_FORWARDING_STORAGE_H_
