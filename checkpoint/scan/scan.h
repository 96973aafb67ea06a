#ifndef TESSERA_CHECKPOINT_SCAN_SCAN_H_
#define TESSERA_CHECKPOINT_SCAN_SCAN_H_

// Scans, the only way to read the data files of a checkpoint. Loading, verifying, rewriting and
// converting are callbacks of a scan:
//
//   Scanner scanner(storage, directory, manifest, {.io_threads = 4});
//   TESSERA_RETURN_IF_ERROR(scanner.OpenAll());
//   TensorDigests digests(manifest, scanner.map(), 4);
//   TESSERA_RETURN_IF_ERROR(scanner.Run(
//       scanner.WholeFiles(), [&](int worker, const FilePiece& chunk, const std::byte* data) {
//         digests.Add(worker, chunk, data);
//         return absl::OkStatus();
//       }));

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "checkpoint/directory/file_map.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/verify_options.h"
#include "storage/aligned_buffer.h"
#include "storage/storage.h"

namespace tessera::ckpt {

inline constexpr int kChunkRereads = 2;  // of a chunk whose checksum is wrong

// The end of the last message about a file that has more damaged places than are described.
inline constexpr std::string_view kMoreDamage = "; more of this file is not reported";

// Bytes [begin, end) of a data file. Begins at a checksum chunk, and ends at one or with the file.
struct FilePiece {
  uint32_t file_index;  // into Manifest.files
  uint64_t begin;
  uint64_t end;
  uint64_t size() const { return end - begin; }
};

struct ScanOptions {
  int io_threads = 4;
  // The limit of all reading buffers together, unless one chunk needs more.
  uint64_t staging_bytes = uint64_t{64} << 20;
  bool verify_checksums = true;
  // Whether to read the storage's own bytes even if it has a copy in a staging tier.
  bool read_original = false;
  // Receives each damaged place, from one thread at a time; the scan continues. At most a hundred
  // places of a file are described, so that damage of a whole file is not reported a million times.
  // Null: damage ends the scan with an error.
  std::function<void(Damage)> on_damage;
  std::function<bool()> is_cancelled = nullptr;  // see LoadOptions
};

// The callback of a scan, called with a chunk, or the piece of one, that was read and checked,
// while it is still in the cache. `data` is valid during the call. Called by several threads at
// once; calls that overlap in time have different `worker` numbers, below the options' io_threads.
// An error ends the scan.
using ChunkFunction =
    std::function<absl::Status(int worker, const FilePiece& chunk, const std::byte* data)>;

// Does nothing: the callback of a scan that only checks.
inline absl::Status OnlyCheck(int, const FilePiece&, const std::byte*) { return absl::OkStatus(); }

// The number of pieces of a thread: one in flight, one that has arrived.
inline constexpr size_t kPiecesPerWorker = 2;

// Reads on one thread, and processes each read while the next one is in flight. start(ahead)
// returns a read that it has started, an object with Wait(). It returns nullopt at the end and, if
// `ahead`, also if no read can start before the last one is processed. finish(read, status)
// processes a read.
template <typename Start, typename Finish>
void ReadAhead(const Start& start, const Finish& finish) {
  auto now = start(/*ahead=*/false);
  while (now.has_value()) {
    const absl::Status status = now->Wait();
    auto then = start(/*ahead=*/true);
    finish(*now, status);
    now = then.has_value() ? std::move(then) : start(/*ahead=*/false);
  }
}

// A cache of checked chunks at the ends of ranges, for other scans of the same checkpoint: if
// ranges end within chunks, neighbouring ranges share these chunks. The oldest chunks make room for
// others. Thread-safe.
class EdgeChunkCache {
 public:
  explicit EdgeChunkCache(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Returns the chunk of a file; null if it is not kept.
  std::shared_ptr<const std::string> Find(const std::string& file, const FilePiece& chunk);
  void Keep(const std::string& file, const FilePiece& chunk, const std::byte* data);
  // Returns the bytes of the chunks that Find() returned, which needed no read.
  uint64_t found_bytes() const;

 private:
  struct Kept {
    std::string file;
    uint64_t begin;
    std::shared_ptr<std::string> bytes;
  };

  const uint64_t max_bytes_;
  mutable Mutex mutex_;
  std::deque<Kept> kept_ ABSL_GUARDED_BY(mutex_);
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t found_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The buffers and chunks that one scan leaves to the next, since filling new memory costs more than
// reading into it. Concurrent scans must not share the buffers; they may share the chunks.
struct ScanBuffers {
  std::vector<AlignedBuffer> buffers;
  EdgeChunkCache* ends = nullptr;
};

// Reads data files of one checkpoint: every requested byte once, in pieces of 4 MiB or one chunk,
// past the page cache. Each thread has one read in flight, also while it checks and hands over the
// piece before, so that all threads together keep the disk busy, and few buffers stay in the cache.
//
// A chunk whose checksum is wrong is read twice more from the storage's own bytes, since bytes that
// were damaged in a copy of a staging tier, or on their way, are intact then. A chunk that stays
// damaged is not handed to the callback, unless damage is reported through on_damage.
//
// Errors: those of the storage; NotFound and DataLoss for damage, with the file's name, offset,
// tensors, expected and found value, and with the damaged parts (WithDamagedParts()).
//
// Thread-safe once opened. The storage and the manifest must outlive the scanner.
class Scanner {
 public:
  // Precondition: a valid manifest.
  Scanner(Storage& storage, std::string_view checkpoint_dir, const Manifest& manifest,
          ScanOptions options);

  // Opens files, by their index in Manifest.files. The error lists every file that is missing, has
  // another size than the manifest says, or has chunks too large to be read.
  absl::Status Open(std::span<const uint32_t> file_indices);
  absl::Status OpenAll();

  // Returns a file; null if it is not open.
  const ReadableFile* file(uint32_t file_index) const;
  // Returns the bytes of all open files that can be read. A truncated file, which was reported as
  // damage, is read up to its end.
  std::vector<FilePiece> WholeFiles() const;
  // Returns the map from files' bytes to tensors, which is built at the first call.
  const FileMap& map() const;

  // Reads ranges of open files, cut into pieces, in ascending order. `kept` may be null.
  absl::Status Run(std::span<const FilePiece> ranges, const ChunkFunction& function,
                   ScanBuffers* kept = nullptr) const;

  // Starts to read a piece into `buffer`. FinishPiece() waits for the result, checks the piece, and
  // calls the function for its chunks.
  std::unique_ptr<PendingIo> StartPiece(const FilePiece& piece, std::byte* buffer) const;
  absl::Status FinishPiece(const absl::Status& read, const FilePiece& piece, std::byte* buffer,
                           int worker, const ChunkFunction& function) const;

  // Reports damage of a file, which `describe` returns, if fewer than a hundred places of the file
  // were reported. Precondition: on_damage is set.
  void ReportDamage(uint32_t file_index, const std::function<Damage()>& describe) const;

 private:
  struct OpenFile {
    std::unique_ptr<ReadableFile> file;
    uint64_t readable_bytes = 0;
  };
  class Problems;
  void AddFile(uint32_t file_index, absl::StatusOr<std::unique_ptr<ReadableFile>> file,
               Problems& problems);
  size_t OffsetInPage(const FilePiece& piece) const;
  FilePiece FirstChunk(const FilePiece& range) const;
  FilePiece LastChunk(const FilePiece& range) const;
  struct Pieces {
    std::vector<FilePiece> pieces;
    uint64_t largest = 0;  // bytes of a piece
    size_t room = 0;       // bytes before a piece, so that it is at its place in a page
    int workers;
  };
  void AddPieces(const FilePiece& range, Pieces& to) const;
  // Reads pieces into the buffers. Adds buffers if there are too few.
  absl::Status ReadPieces(const Pieces& all, std::vector<AlignedBuffer>& buffers,
                          const ChunkFunction& function) const;
  // Passes the cached chunks at the ends of a range to `function`, and removes them from the range.
  absl::Status TakeEnds(EdgeChunkCache& ends, const ChunkFunction& function,
                        FilePiece& range) const;
  absl::Status CheckChunk(const FilePiece& chunk, std::span<std::byte> data) const;

  Storage& storage_;
  const std::string directory_;
  const Manifest& manifest_;
  const ScanOptions options_;
  std::map<uint32_t, OpenFile> files_;
  mutable Mutex mutex_;
  mutable std::optional<FileMap> map_ ABSL_GUARDED_BY(mutex_);  // never changes once it is there
  mutable std::map<uint32_t, size_t> damage_per_file_ ABSL_GUARDED_BY(mutex_);
};

// Returns the damage of a shard that cannot be read chunk by chunk, because an element may lie in
// two checksum chunks; nullopt if every element lies in one.
std::optional<Damage> FindCutElements(const Manifest& manifest, uint32_t file_index,
                                      uint64_t shard_begin, const LogicalTensor& tensor);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SCAN_SCAN_H_
