#ifndef TESSERA_CHECKPOINT_LOAD_PLACER_H_
#define TESSERA_CHECKPOINT_LOAD_PLACER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/byte_progress.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/load/compare.h"
#include "checkpoint/plan/load_plan.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/scan/scan.h"
#include "layout/elements/box_runs.h"

namespace tessera::ckpt {

class DeviceSlots;  // placer.cc

// Places the wanted elements of pieces that a scan has read, or another process has sent, in this
// process's memory or, by way of page-locked memory, in that of its devices. All arguments of
// Create() must outlive the placer. Thread-safe for pieces that share no byte. Errors: errors of
// the devices; FailedPrecondition for an element that its destination's dtype cannot hold.
class Placer {
 public:
  // Creates a placer. Of `options`, it uses the memory, the threads and the progress. The
  // destinations are parallel to the wanted boxes of the plan. DataLoss for a layout that cannot be
  // read in whole chunks.
  static absl::StatusOr<Placer> Create(const Manifest& manifest, const LoadPlan& plan,
                                       std::span<const Destination> destinations,
                                       const LoadOptions& options = {});

  // Places the wanted elements of a piece, whose bytes are at `data`.
  absl::Status Place(const FilePiece& piece, const std::byte* data) const;

  // Places the elements of a region of a saved shard within the piece, which are contiguous at
  // `packed`, in the order of the file. The region must belong to a placement of the plan.
  absl::Status PlaceRegion(const FilePiece& piece, const ShardRegion& region,
                           const std::byte* packed) const;

  // Waits until all elements have reached their destinations. Call once everything is placed.
  // Without this call, or after an error, devices may copy until the placer is destroyed.
  absl::Status Finish() const;

  // Returns Place() as the callback of a scan.
  ChunkFunction AsCallback() const;

 private:
  // One placement, prepared: parts of a saved shard are copied to a destination.
  struct Target : StoredBox {  // saved shard <-> destination
    const Destination* destination;
    const Placement* placement;
  };
  template <typename Source>
  absl::Status PlaceTarget(const Target& target, int64_t first, int64_t last,
                           const Source& source) const;
  // Checks elements of a shard, from its element number `first` on.
  absl::Status CheckRange(const Target& target, int64_t first, int64_t count,
                          const std::byte* elements) const;
  template <typename Source>
  absl::Status PlaceOnDevice(const Target& target, int64_t first, int64_t last,
                             const Source& source) const;

  // Targets by file, ascending by begin and by end, since saved shards do not share bytes.
  std::map<uint32_t, std::vector<Target>> targets_;
  const Manifest* manifest_ = nullptr;
  std::shared_ptr<ByteProgress> progress_;
  std::shared_ptr<DeviceSlots> slots_;  // null: everything goes to this process's memory
};

// Return the pieces, and the indices, of a plan's files.
std::vector<FilePiece> RangesOf(const LoadPlan& plan);
std::vector<uint32_t> FilesOf(const LoadPlan& plan);

// Packs a region of a saved shard for another process: see PlaceRegion().
class PackedRegion {
 public:
  // Creates the packing. InvalidArgument for a region that does not fit the manifest.
  static absl::StatusOr<PackedRegion> Create(const Manifest& manifest, const ShardRegion& region);

  uint64_t BytesIn(const FilePiece& piece) const;
  void Pack(const FilePiece& piece, const std::byte* data, std::byte* packed) const;

 private:
  explicit PackedRegion(StoredBox shard) : shard_(std::move(shard)) {}

  StoredBox shard_;  // saved shard <-> packed region
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_PLACER_H_
