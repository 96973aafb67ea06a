#ifndef TESSERA_CHECKPOINT_LOAD_DATA_READER_H_
#define TESSERA_CHECKPOINT_LOAD_DATA_READER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/elements/box_runs.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/load/compare.h"
#include "checkpoint/plan/load_plan.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

// Part of a file, aligned to its checksum chunks.
struct FilePiece {
  uint32_t file_index;
  uint64_t begin;
  uint64_t end;
  uint64_t size() const { return end - begin; }
};

// The files of a load plan, opened and checked for the right size. By index into Manifest.files.
struct OpenFile {
  std::unique_ptr<ReadableFile> file;
  std::string name;  // with the checkpoint's path, for messages
};
using OpenFiles = std::map<uint32_t, OpenFile>;

// NotFound or DataLoss lists every file that is missing or has another size than the manifest
// records.
absl::StatusOr<OpenFiles> OpenDataFiles(Storage& storage, std::string_view directory,
                                        const Manifest& manifest, const LoadPlan& plan);

// Reads pieces of files, checks each chunk and places the elements in one process's memory. All
// arguments of Create() must outlive it. Thread-safe for pieces that share no byte.
class DataReader {
 public:
  // The destinations are parallel to the wanted boxes of the plan. DataLoss for a layout that
  // cannot be read in whole chunks.
  static absl::StatusOr<DataReader> Create(const Manifest& manifest, const LoadPlan& plan,
                                           const OpenFiles& files,
                                           std::span<const Destination> destinations,
                                           bool verify_checksums);

  // Reads the piece into `buffer` and places the wanted elements. DataLoss, naming file, offset,
  // tensor, expected and found; no element of a damaged chunk is placed.
  absl::Status ReadAndPlace(const FilePiece& piece, std::byte* buffer) const;

  // Places the wanted elements of a piece that another process has read and checked.
  void Place(const FilePiece& piece, const std::byte* data) const;

  // The same for the elements of a region of a saved shard within the piece, which are contiguous
  // at `packed`, in the order of the file. The region must be that of a placement of the plan.
  void PlaceRegion(const FilePiece& piece, const ShardRegion& region,
                   const std::byte* packed) const;

 private:
  // One placement, prepared: bytes [begin, end) of a file hold a saved shard, parts of which are
  // copied to a destination.
  struct Target {
    uint64_t begin;
    uint64_t end;
    size_t element_bytes;  // as saved
    BoxRuns runs;          // saved shard <-> destination
    const Destination* destination;
    const Placement* placement;
  };
  struct InputFile {
    const DataFile* description;
    const OpenFile* open;
    std::vector<Target> targets;  // ascending by begin and by end: saved shards do not share bytes
  };

  DataReader(const Manifest& manifest, bool verify_checksums)
      : manifest_(&manifest), verify_checksums_(verify_checksums) {}
  absl::Status AddFile(const FileReads& reads, const OpenFile& file,
                       std::span<const Destination> destinations);
  absl::Status CheckChunk(uint32_t file_index, uint64_t chunk,
                          std::span<const std::byte> data) const;
  template <typename Source>
  static void PlaceTarget(const Target& target, const FilePiece& piece, const Source& source);

  const Manifest* manifest_;
  bool verify_checksums_;
  std::map<uint32_t, InputFile> files_;
};

// A region of a saved shard, packed for another process: see PlaceRegion().
class PackedRegion {
 public:
  // InvalidArgument for a region that does not fit the manifest.
  static absl::StatusOr<PackedRegion> Create(const Manifest& manifest, const ShardRegion& region);

  uint64_t BytesIn(const FilePiece& piece) const;
  void Pack(const FilePiece& piece, const std::byte* data, std::byte* packed) const;

 private:
  PackedRegion(uint64_t begin, uint64_t end, size_t element_bytes, BoxRuns runs)
      : begin_(begin), end_(end), element_bytes_(element_bytes), runs_(std::move(runs)) {}

  uint64_t begin_, end_;  // of the shard, in the file
  size_t element_bytes_;
  BoxRuns runs_;
};

// Reads everything in the plan, each process for itself, in `io_threads` threads with buffers of at
// most staging_bytes, but at least one chunk. `kept` (may be null) has buffers of earlier loads and
// gets those that are allocated.
absl::Status ReadAlone(const Manifest& manifest, const LoadPlan& plan, const DataReader& reader,
                       int io_threads, uint64_t staging_bytes,
                       std::vector<AlignedBuffer>* kept = nullptr);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_DATA_READER_H_
