#ifndef TESSERA_CHECKPOINT_STORAGE_UPLOAD_UPLOAD_STORAGE_H_
#define TESSERA_CHECKPOINT_STORAGE_UPLOAD_UPLOAD_STORAGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

// A remote storage whose files are first written to a nearby one, such as a folder in memory, and
// uploaded from there: what fills them is free to continue as fast as the nearby storage takes
// their bytes, and a restart on the same machine reads what is still nearby.
//
// The remote storage alone decides what exists: names, directories and commits are its own, and a
// file is durable when it is there. Nearby copies are an acceleration that may vanish at any time.
//
// - Create() writes nearby; Sync() uploads, and then makes the remote file durable. Where the
//   nearby storage has no room, or LimitRoom() leaves none, the file is written to the remote one
//   directly.
// - Open() reads the nearby copy if its size is that of the remote file, else the remote file; also
//   where the nearby copy cannot be read. Nearby copies are not compared otherwise: a load reads
//   the original of a chunk whose checksum is wrong, and DropDamagedCopies() in checkpoint/verify
//   compares them beforehand.
// - Deletions and renames apply to both.
// - Publish() and Exchange() go to the remote storage alone, so that a commit is never read from
//   nearby.
//
// Each process of a run has one; processes of one machine may share the nearby storage.
// Thread-safe.
class UploadStorage final : public Storage {
 public:
  UploadStorage(std::unique_ptr<Storage> nearby, std::unique_ptr<Storage> remote)
      : nearby_(std::move(nearby)), remote_(std::move(remote)) {}

  // Deletes the nearby copies of all files but those in directory `kept`; "" keeps none. The marker
  // of a staging folder stays. Returns the first error, having tried all.
  absl::Status ForgetAllBut(std::string_view kept);

  Storage& nearby() { return *nearby_; }

  // Nearby files of which `has_room` says no, given their size in bytes, are not written: for a
  // nearby storage in memory that others need, too. Call before the storage is used.
  void LimitRoom(std::function<bool(uint64_t size_bytes)> has_room) {
    has_room_ = std::move(has_room);
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override;
  absl::Status Rename(std::string_view from, std::string_view to) override;
  absl::Status Publish(std::string_view path, std::string_view contents,
                       const std::function<absl::Status()>& ready) override;
  bool RenamesDirectories() const override { return remote_->RenamesDirectories(); }
  absl::Status Exchange(std::string_view path, std::string_view expected, std::string_view contents,
                        const std::function<absl::Status()>& ready) override {
    return remote_->Exchange(path, expected, contents, ready);
  }
  absl::Status MakeDirectory(std::string_view path) override;
  absl::Status SyncDirectory(std::string_view path) override;
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override;
  absl::Status Delete(std::string_view path) override;
  absl::Status DeleteFiles(std::string_view directory,
                           const std::vector<std::string>& names) override;
  absl::Status DeleteTree(std::string_view path) override;
  absl::StatusOr<Version> ReadVersion(std::string_view path, uint64_t max_bytes) override {
    return remote_->ReadVersion(path, max_bytes);
  }
  absl::StatusOr<std::string> ReplaceVersion(std::string_view path, std::string_view contents,
                                             const std::string& tag) override {
    return remote_->ReplaceVersion(path, contents, tag);
  }
  void Abandon() override { remote_->Abandon(); }
  bool IsLink(std::string_view path) override { return remote_->IsLink(path); }
  absl::StatusOr<uint64_t> FreeBytes() override { return remote_->FreeBytes(); }
  std::optional<std::string> LocalPath(std::string_view path) const override {
    return remote_->LocalPath(path);
  }
  std::string Describe(std::string_view path) const override { return remote_->Describe(path); }

 private:
  absl::Status ForgetBelow(const std::string& directory, std::string_view kept);

  const std::unique_ptr<Storage> nearby_;
  const std::unique_ptr<Storage> remote_;
  std::function<bool(uint64_t size_bytes)> has_room_;  // null: always
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_STORAGE_UPLOAD_UPLOAD_STORAGE_H_
