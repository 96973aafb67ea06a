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
// written to the staging tier first and uploaded from there. A writer continues at the speed of the
// staging tier. A program that starts again on the same machine reads what is still staged.
//
// The remote storage alone decides what exists: names, directories and versions are its own, and a
// file is durable when it is there. Staged files are an acceleration and may vanish at any time.
//
// - Create() writes to the staging tier; Sync() uploads, and then makes the remote file durable. If
//   the staging tier has no room, the file is written to the remote storage directly. Sync()
//   returns DataLoss if the staged file does not have the checksums of what was written. After an
//   upload that failed, Sync() and Close() return its error.
// - Open() reads the staged file if it is as long as the remote one, and the remote file otherwise
//   or if the staged one cannot be read. They are not compared any further: a program that has
//   checksums of its own compares them, and reads the original (ReadOriginalAt()) where they
//   differ.
// - Deletions apply to both. A rename deletes the staged file, as does Write().
// - Write() and Read() go to the remote storage alone, and so does every other operation.
//
// Each process of a group has its own TieredStorage; processes of one machine may share the staging
// tier. Thread-safe.
class TieredStorage final : public ForwardingStorage {
 public:
  // Files are staged if `has_room` returns true for their size in bytes, for a staging tier in
  // memory that other programs need, too. Null: all files are staged.
  TieredStorage(std::unique_ptr<Storage> staging, std::unique_ptr<Storage> remote,
                std::function<bool(uint64_t size_bytes)> has_room = nullptr)
      : ForwardingStorage(*remote),
        staging_(std::move(staging)),
        remote_(std::move(remote)),
        has_room_(std::move(has_room)) {}

  Storage* staging() override { return staging_.get(); }
  // Returns the remote storage's traits of names and the staging tier's traits of speed.
  StorageTraits Traits() override;
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override;
  absl::Status Rename(std::string_view from, std::string_view to) override;
  absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                    const WriteCondition& condition) override;
  absl::Status Delete(std::string_view path) override;
  absl::Status DeleteVersion(std::string_view path, std::string_view version) override;
  absl::Status DeleteFiles(std::string_view directory,
                           const std::vector<std::string>& names) override;
  absl::Status DeleteTree(std::string_view path) override;

 private:
  const std::unique_ptr<Storage> staging_;
  const std::unique_ptr<Storage> remote_;
  const std::function<bool(uint64_t size_bytes)> has_room_;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_TIERED_TIERED_STORAGE_H_
