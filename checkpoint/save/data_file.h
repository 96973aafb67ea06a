#ifndef TESSERA_CHECKPOINT_SAVE_DATA_FILE_H_
#define TESSERA_CHECKPOINT_SAVE_DATA_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/elements/device_copies.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/include/state_dict.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/save/save_messages.pb.h"
#include "layout/elements/box_runs.h"
#include "storage/aligned_buffer.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Slots of logical digests, by index into Manifest.tensors.
using DigestSlots = std::map<uint32_t, size_t>;

// The contents of a planned data file, and their places in this process's memory. Thread-safe.
class FileContents {
 public:
  // Makes the contents. Tensors without a slot in `slots` get one. Copy() reads the memory of
  // `state`, which must stay valid; its description and the plans may be destroyed.
  static absl::StatusOr<FileContents> Make(const StateDict& state, const RankState& local,
                                           const FilePlan& plan, DigestSlots& slots);

  uint32_t index() const { return index_; }  // into Manifest.files
  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }

  // Copies bytes [begin, end) of the file from the state, except elements on devices. Neither end
  // may split an element: multiples of 8 never do.
  void Copy(uint64_t begin, uint64_t end, std::byte* out) const;

  // Returns whether a device holds an element in bytes [begin, end). Only StartCopy() can read such
  // a range.
  bool OnDevice(uint64_t begin, uint64_t end) const;
  // Copies bytes [begin, end). On return, the copies from devices are in flight in `copies`.
  absl::Status StartCopy(uint64_t begin, uint64_t end, std::byte* out, DeviceCopies& copies) const;

  // Adds the digests of the tensors' elements in bytes [begin, end), and returns the checksum `crc`
  // extended by these bytes. Reads each byte once: from `copy` or, if it is null, from the state.
  uint32_t Checksum(uint64_t begin, uint64_t end, const std::byte* copy,
                    std::vector<LogicalDigest>& digests, uint32_t crc) const;

  // Copies and digests in a single pass. Then passes the range to fn(bytes), in order and in parts
  // of any length, still in the cache if the range fits; the memory at `out` may not be.
  void CopyAndDigest(uint64_t begin, uint64_t end, std::byte* out,
                     std::vector<LogicalDigest>& digests,
                     const std::function<void(std::span<const std::byte>)>& fn) const;

  // A range of the file.
  struct Segment {
    uint64_t begin;
    uint64_t end;
    const std::byte* in_place;  // its bytes in the state; null: they must be assembled
  };
  // Returns bytes [begin, end) in segments. A segment in place consists of whole blocks, is large
  // enough for a write of its own, and its memory is aligned to `alignment`; 0: no segment is in
  // place. Precondition: begin < end.
  std::vector<Segment> Segments(uint64_t begin, uint64_t end, uint64_t alignment) const;

  // Calls fn(first, last) for ranges of memory that contain everything that Copy() reads for the
  // same bytes.
  void ForEachMemory(uint64_t begin, uint64_t end,
                     const std::function<void(const std::byte*, const std::byte*)>& fn) const;

 private:
  // One box that fills bytes [begin, end) of the file.
  struct Source {
    uint64_t begin;
    uint64_t end;
    size_t element_bytes;
    size_t digest_slot;
    const std::byte* data;
    BoxRuns memory;  // file <-> the shard's memory
    BoxRuns global;  // file <-> row-major indices of the logical tensor
    // Where a device holds the box.
    std::shared_ptr<DeviceMemory> device;
    void* handle;
    DType dtype;
    Box box;
    std::vector<int64_t> origin;  // of the shard
  };
  std::vector<Segment> RunsInMemory(uint64_t begin, uint64_t end) const;
  // Returns the place in memory of elements that are contiguous there; null if they are not.
  static const std::byte* InMemory(const Source& source, int64_t first, int64_t last);
  static Source MakeSource(const WriteItem& item, const StateDict& state, size_t digest_slot);
  // Returns the bytes of the header in [begin, end).
  std::span<const std::byte> HeaderIn(uint64_t begin, uint64_t end) const;
  static void CopySource(const Source& source, int64_t first, int64_t last, std::byte* to);

  uint32_t index_ = 0;
  std::string path_;
  uint64_t size_bytes_ = 0;
  std::string header_;
  std::vector<Source> sources_;  // ascending
};

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
  void Checksum(uint64_t begin, uint64_t end, const std::byte* copy, Digests& digests);

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

#endif  // TESSERA_CHECKPOINT_SAVE_DATA_FILE_H_
