#ifndef TESSERA_CONVERT_CORE_FOREIGN_STORAGE_H_
#define TESSERA_CONVERT_CORE_FOREIGN_STORAGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/decoded_files.h"
#include "convert/core/foreign_checkpoint.h"
#include "layout/byte_range.h"
#include "storage/checked/checked_storage.h"
#include "storage/read_only_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// A read-only storage whose root is a checkpoint of another framework, as if this library had
// written and committed it. The manifest is made in memory. Each tensor has one data file, which
// holds its elements in row-major order and is gathered from the foreign files by each read.
// Everything that reads a checkpoint therefore reads foreign ones, too: Load() under any sharding,
// Checkpoint, Verify(), Rewrite().
//
// The data files have no checksums, and the tensors have the digests of the description. If the
// foreign files have checksums, a CheckedStorage as the base compares them with the data that is
// read.
//
// Thread-safe. Memory: the descriptions, and a buffer of kStridedBufferBytes for each read in
// progress whose elements are not contiguous in a foreign file.
class ForeignStorage final : public ReadOnlyStorage {
 public:
  ~ForeignStorage() override;

  // Checks the whole description before anything is read: the manifest's rules, and that every
  // piece lies inside its file. Every element of every tensor must be in exactly one piece, or in
  // copies of it, which are read to see that they are equal. `checked` is the base if it compares
  // checksums.
  //
  // Errors: DataLoss, naming file and tensor; NotFound, listing every missing file.
  using ReadOnlyStorage::Create;
  static absl::StatusOr<std::unique_ptr<ForeignStorage>> Create(
      std::shared_ptr<Storage> base, ForeignCheckpoint checkpoint,
      std::shared_ptr<CheckedStorage> checked = nullptr);

  const std::string& format() const { return format_; }
  const std::vector<std::string>& notes() const { return notes_; }  // see ForeignCheckpoint
  const std::map<std::string, std::string>& unread() const { return unread_; }  // likewise
  // The names that the files have for the parameters of tensors, by the tensors' names; see
  // ForeignTensor::foreign_name.
  const std::map<std::string, std::string>& foreign_names() const { return foreign_names_; }
  const std::string& mismatch() const { return mismatch_; }  // see ForeignCheckpoint
  const SavedValue& state() const { return state_; }         // see ForeignCheckpoint

  // Counts of the tensors that have elements: all, and those whose bytes all have a checksum.
  struct Proof {
    int64_t tensors = 0;
    int64_t proven = 0;
  };
  Proof proof() const { return proof_; }

  // The places of the tensors' elements in the foreign files, from the first to the last one of
  // each piece. Copies of a piece are left out, and so are elements that the files encode.
  struct Extent {
    std::string file;
    ByteRange bytes;
    std::string tensor;
    Box box;  // of the tensor
  };
  std::vector<Extent> Extents() const;

  // Checks the records with a checksum that reading every tensor does not check, because tensors
  // show only parts of them. Returns an error, naming file and record, for each damaged one.
  std::vector<absl::Status> CheckOtherRecords() const;

  StorageTraits Traits() override { return {.is_translation = true}; }
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override;
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override;
  // Returns the place of the foreign files; a data file is described as its tensor.
  std::string Describe(std::string_view path) const override;

 private:
  class TensorFile;
  struct StoredTensor;

  ForeignStorage(std::shared_ptr<Storage> base, std::shared_ptr<CheckedStorage> checked);
  absl::Status FindFiles(const ForeignCheckpoint& checkpoint);
  void FindChecksums();
  absl::Status AddTensor(ForeignTensor tensor, Manifest& manifest);
  absl::Status CompareCopies(const StoredTensor& tensor, const std::vector<StoredPiece>& copies);
  absl::StatusOr<bool> AreEqual(const StoredPiece& a, const StoredPiece& b, int64_t element_bytes);
  // Opens a foreign file, which stays open while any tensor's file that needs it is open.
  absl::StatusOr<std::shared_ptr<ReadableFile>> OpenBase(const std::string& file);

  const std::shared_ptr<Storage> base_;
  DecodedFiles files_;                             // of the base, with ForeignCheckpoint::decoded
  const std::shared_ptr<CheckedStorage> checked_;  // the base, or null
  Proof proof_;
  std::string format_;
  std::vector<std::string> notes_;
  std::map<std::string, std::string> unread_;
  std::string mismatch_;
  std::map<std::string, std::string> foreign_names_;
  SavedValue state_;
  std::string manifest_;                        // bytes of manifest.pb
  std::map<std::string, uint64_t> file_bytes_;  // of the foreign files
  std::map<std::string, std::unique_ptr<const StoredTensor>, std::less<>> tensors_;  // by path
  Mutex mutex_;
  std::map<std::string, std::weak_ptr<ReadableFile>> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_FOREIGN_STORAGE_H_
