#ifndef TESSERA_STORAGE_TIERED_TIERED_STORAGE_H_
#define TESSERA_STORAGE_TIERED_TIERED_STORAGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/forwarding_storage.h"
#include "storage/storage.h"

namespace tessera {

// A remote storage behind a staging tier, such as a folder in this machine's memory. Files are
// written to the staging tier first and uploaded from there, so that a writer continues at the
// speed of the staging tier, and a restart on the same machine reads what is still staged.
//
// The remote storage alone decides what exists: names, directories and commits are its own, and a
// file is durable when it is there. Staged copies are an acceleration and may vanish at any time.
//
// - Create() writes to the staging tier; Sync() uploads, and then makes the remote file durable.
//   Where the staging tier has no room, or LimitRoom() leaves none, the file is written to the
//   remote storage directly.
// - Open() reads the staged copy if it is as long as the remote file, and the remote file
//   otherwise, or where the staged copy cannot be read. Staged copies are not compared otherwise:
//   a load reads the original of a chunk whose checksum is wrong, and DropDamagedCopies() in
//   checkpoint/verify compares them beforehand.
// - Deletions apply to both; a rename deletes the staged copy.
// - Publish() and Exchange() go to the remote storage alone, so that a commit is never read from
//   the staging tier. So does every other operation.
//
// Each process of a run has its own TieredStorage; processes of one machine may share the staging
// tier. Thread-safe.
class TieredStorage final : public ForwardingStorage {
 public:
  TieredStorage(std::unique_ptr<Storage> staging, std::unique_ptr<Storage> remote)
      : ForwardingStorage(*remote), staging_(std::move(staging)), remote_(std::move(remote)) {}

  // Deletes the staged copies of all files but those in directory `kept`; "" keeps none. The marker
  // of a staging folder stays. Returns the first error, having tried all.
  absl::Status ForgetAllBut(std::string_view kept);

  Storage& staging() { return *staging_; }

  // Files are not staged if `has_room` returns false for their size in bytes: for a staging tier in
  // memory that other programs need, too. Call before the storage is used.
  void LimitRoom(std::function<bool(uint64_t size_bytes)> has_room) {
    has_room_ = std::move(has_room);
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override;
  absl::Status Rename(std::string_view from, std::string_view to) override;
  absl::Status Delete(std::string_view path) override;
  absl::Status DeleteFiles(std::string_view directory,
                           const std::vector<std::string>& names) override;
  absl::Status DeleteTree(std::string_view path) override;
  uint64_t PreferredWriteBytes() const override { return staging_->PreferredWriteBytes(); }
  uint64_t InPlaceAlignmentBytes() override { return staging_->InPlaceAlignmentBytes(); }

 private:
  absl::Status ForgetBelow(const std::string& directory, std::string_view kept);

  const std::unique_ptr<Storage> staging_;
  const std::unique_ptr<Storage> remote_;
  std::function<bool(uint64_t size_bytes)> has_room_;  // null: there is always room
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_TIERED_TIERED_STORAGE_H_
