#ifndef TESSERA_CHECKPOINT_SAVE_FILE_WRITER_H_
#define TESSERA_CHECKPOINT_SAVE_FILE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/save/data_file_contents.h"
#include "checkpoint/save/save_messages.pb.h"
#include "storage/aligned_buffer.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Writes one data file of a save, and computes its checksums. The file is created in the storage
// when the first byte is written. Ranges begin at multiples of a checksum chunk. Thread-safe for
// ranges that do not overlap, except for Sync().
class FileWriter {
 public:
  using Digests = std::vector<LogicalDigest>;
  using Writes = std::vector<std::unique_ptr<PendingIo>>;

  // The place where files are written, which must outlive them.
  struct Place {
    Storage& storage;
    std::string directory;
    uint32_t chunk_bytes;
    uint64_t in_place_alignment;  // see StorageTraits
  };

  FileWriter(const Place& place, FileContents contents);

  const FileContents& contents() const { return contents_; }

  // Returns whether the range can be written in place, except for a few bytes.
  bool IsInPlace(uint64_t begin, uint64_t end) const;

  // Copies the range to `out`, and computes its checksums and digests in the same pass.
  void Copy(uint64_t begin, uint64_t end, std::byte* out, Digests& digests);
  // Computes the checksums and digests of the range, in place or, unless it is null, in a copy.
  void Check(uint64_t begin, uint64_t end, const std::byte* copy, Digests& digests);

  // Start to write the range, from a copy or in place, and add the writes in flight. `between` is
  // memory for the bytes between those in place, kept from call to call.
  absl::Status StartWriteOfCopy(uint64_t begin, uint64_t end, const std::byte* copy,
                                Writes& writes);
  absl::Status StartWriteInPlace(uint64_t begin, uint64_t end, AlignedBuffer& between,
                                 Writes& writes);

  // Makes the contents durable and closes the file. Call once everything is written.
  absl::Status Sync();
  // Checks that the file is in its place, with its size.
  absl::Status CheckThere() const;

  // Adds the file with its checksums.
  void AddTo(WriteReport& report) const;

 private:
  absl::Status Create();

  const Place& place_;
  const FileContents contents_;
  const std::string path_;
  std::vector<uint32_t> crcs_;  // by chunk
  std::once_flag created_;
  absl::Status create_status_;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_FILE_WRITER_H_
