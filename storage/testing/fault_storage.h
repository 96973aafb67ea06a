#ifndef TESSERA_STORAGE_TESTING_FAULT_STORAGE_H_
#define TESSERA_STORAGE_TESTING_FAULT_STORAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "storage/forwarding_storage.h"
#include "storage/storage.h"

namespace tessera {

enum class OperationKind {
  kCreate,
  kWriteAt,
  kSync,
  kClose,
  kOpen,
  kReadAt,
  kRename,
  kMakeDirectory,
  kSyncDirectory,
  kList,
  kDelete,
  kDeleteTree,
  kFreeBytes,
  kReplace,  // Replace(), or Write() under the condition of a version
};

// One call, as FaultInjectingStorage observed it.
struct Operation {
  OperationKind kind;
  std::string path;
  std::string to_path = "";   // kRename, kReplace
  uint64_t offset_bytes = 0;  // kWriteAt, kReadAt
  uint64_t size_bytes = 0;    // kWriteAt, kReadAt; kCreate: the hint
};

// Returns "WriteAt a/model.safetensors [4096, 8192)".
std::string ToString(const Operation& operation);
std::ostream& operator<<(std::ostream& stream, const Operation& operation);

// Forwards every operation to another storage, and counts, records and breaks operations, for tests
// that fail, or die, at each I/O operation in turn. Operations are numbered from 0 in the order of
// their arrival; failing calls are counted, too, including those with bad paths.
//
// Thread-safe. `base` must outlive this object. SetDiskBytes() does not count files that existed
// before.
class FaultInjectingStorage final : public ForwardingStorage {
 public:
  explicit FaultInjectingStorage(Storage& base);

  // Makes operation `number` fail with `status`, without effect. A failing write may first forward
  // `torn_bytes` of its data.
  void FailAt(int64_t number, absl::Status status, uint64_t torn_bytes = 0);

  // Simulates the death of the process: operation `number` (torn as above) and all later ones fail
  // with Unavailable and have no effect.
  void DieAt(int64_t number, uint64_t torn_bytes = 0);

  // Fails every operation that `matches` accepts, until ClearFaults(). `matches` is called under a
  // lock.
  void FailWhere(std::function<bool(const Operation&)> matches, absl::Status status);

  // Calls `call` before every operation that neither FailAt(), DieAt() nor an earlier FailWhere()
  // fails, until ClearFaults(). A lock is held: `call` must not use this storage.
  void BeforeEach(std::function<void(const Operation&)> call);

  // Makes every rename that `matches` accepts succeed, but return `status`, as if the reply was
  // lost and a repetition found the rename done, until ClearFaults().
  void MisreportRenames(std::function<bool(const Operation&)> matches, absl::Status status);

  // Simulates a disk with that much free space. Operations that do not fit fail with
  // ResourceExhausted: a Create() by its hint, a write after the part that fits. Deleting frees
  // space.
  void SetDiskBytes(uint64_t free_bytes);

  // Replace traits, which otherwise are the base's. ClearFaults() undoes only the first.
  void SetPreferredWriteBytes(uint64_t bytes) { preferred_write_bytes_ = bytes; }
  void SetInPlaceAlignmentBytes(uint64_t bytes) { in_place_alignment_bytes_ = bytes; }

  // Flips the bits of `mask` in the byte at `offset_bytes` of `path` when it is read, so often.
  void CorruptReads(const std::string& path, uint64_t offset_bytes, std::byte mask,
                    int64_t times = INT64_MAX);

  // Makes the file end at this size at the latest for readers.
  void TruncateReads(const std::string& path, uint64_t size_bytes);

  // Removes all of the above; counting and recording continue.
  void ClearFaults();

  int64_t operation_count() const;
  std::vector<Operation> operations() const;

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override;
  absl::Status Rename(std::string_view from, std::string_view to) override;
  absl::Status Replace(std::string_view from, std::string_view to) override;
  // Writes by the operations of this storage, so that each of them can fail, unless the base has
  // versions of its own.
  absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                    const WriteCondition& condition) override;
  // Reads the contents by the operations of this storage; the version is the base's.
  absl::StatusOr<VersionedContents> Read(std::string_view path, uint64_t max_bytes) override;
  absl::Status MakeDirectory(std::string_view path) override;
  absl::Status SyncDirectory(std::string_view path) override;
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override;
  absl::Status Delete(std::string_view path) override;
  absl::Status DeleteVersion(std::string_view path, std::string_view version) override;
  absl::Status DeleteFiles(std::string_view directory,
                           const std::vector<std::string>& names) override {
    return Storage::DeleteFiles(directory, names);
  }
  absl::Status DeleteTree(std::string_view path) override;
  absl::StatusOr<uint64_t> FreeBytes() override;
  StorageTraits Traits() override;

 private:
  class Writer;
  class Reader;

  struct Verdict {
    absl::Status status;
    uint64_t torn_bytes = 0;  // written by a failing write
  };
  // Counts and records the operation, and decides its outcome.
  Verdict Arrive(Operation operation);
  // Returns how many bytes of [begin, end) fit on the disk, and reserves that space.
  uint64_t TakeRoom(const std::string& path, uint64_t begin_bytes, uint64_t end_bytes);
  void GiveRoomBack(const std::string& path, bool tree);
  void CorruptRead(const std::string& path, uint64_t offset_bytes, std::span<std::byte> out);
  uint64_t TruncatedSize(const std::string& path, uint64_t size_bytes) const;

  struct Fault {
    int64_t number;
    Verdict verdict;
  };
  struct Corruption {
    std::string path;
    uint64_t offset_bytes;
    std::byte mask;
    int64_t times;
  };

  std::atomic<uint64_t> preferred_write_bytes_;  // without a lock: `matches` may wait for a caller
  std::optional<uint64_t> in_place_alignment_bytes_;
  mutable Mutex mutex_;
  std::vector<Operation> operations_ ABSL_GUARDED_BY(mutex_);
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
  std::optional<Fault> death_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<std::function<bool(const Operation&)>, absl::Status>> conditions_
      ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<std::function<bool(const Operation&)>, absl::Status>> misreports_
      ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> free_bytes_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> taken_bytes_ ABSL_GUARDED_BY(mutex_);
  std::vector<Corruption> corruptions_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> truncations_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_TESTING_FAULT_STORAGE_H_
