#include "checkpoint/load/placer.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "checkpoint/directory/file_map.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/plan/rank_states.h"

namespace tessera::ckpt {

absl::StatusOr<Placer> Placer::Create(const Manifest& manifest, const LoadPlan& plan,
                                      std::span<const Destination> destinations,
                                      ByteProgress::Function progress) {
  Placer placer;
  uint64_t total_bytes = 0;
  for (const FileReads& reads : plan.files) {
    std::vector<Target>& targets = placer.targets_[reads.file_index];
    for (const Placement& placement : reads.placements) {
      const LogicalTensor& tensor = manifest.tensors(placement.saved_tensor);
      if (const std::optional<Damage> cut =
              FindCutElements(manifest, reads.file_index, placement.shard_begin, tensor)) {
        return absl::DataLossError(ToString(*cut));
      }
      const Destination& to = destinations[placement.wanted];
      targets.push_back(
          {{placement.shard_begin, placement.shard_end, placement.saved_tensor,
            ElementSize(FromProto(tensor.dtype())),
            BoxRuns(placement.saved_box, placement.region, to.box.global_offset, to.strides)},
           &to,
           &placement});
      total_bytes += ElementCount(placement.region.shape) * targets.back().element_bytes;
    }
  }
  placer.progress_ = std::make_shared<ByteProgress>(std::move(progress), total_bytes);
  return placer;
}

// Places elements [first, last) of a shard. source(run, index) returns the address of the elements
// of a run, the first of which is the index-th of those.
template <typename Source>
void Placer::PlaceTarget(const Target& target, int64_t first, int64_t last,
                         const Source& source) const {
  const Destination& to = *target.destination;
  int64_t index = 0;
  const int64_t stride = target.runs.run_stride();
  target.runs.ForEach(first, last, [&](const BoxRuns::Run& run) {
    const std::byte* const from = source(run, index);
    index += run.count;
    if (to.digest != nullptr) {
      to.digest->Place(from, to.data, run.strided_element, run.count, stride);
      return;
    }
    to.copy(from, to.data + run.strided_element * static_cast<int64_t>(to.element_bytes), run.count,
            stride);
  });
  progress_->Add(index * target.element_bytes);
}

void Placer::Place(const FilePiece& piece, const std::byte* data) const {
  const auto targets = targets_.find(piece.file_index);
  if (targets == targets_.end()) return;  // read for other ranks alone
  ForEachStored(targets->second, piece.begin, piece.end,
                [&](const Target& target, int64_t first, int64_t last) {
                  PlaceTarget(target, first, last, [&](const BoxRuns::Run& run, int64_t) {
                    return data +
                           (target.begin + run.outer_element * target.element_bytes - piece.begin);
                  });
                });
}

void Placer::PlaceRegion(const FilePiece& piece, const ShardRegion& region,
                         const std::byte* packed) const {
  const Box box = FromProto(region.box());
  ForEachStored(targets_.at(piece.file_index), piece.begin, piece.end,
                [&](const Target& target, int64_t first, int64_t last) {
                  const Placement& placement = *target.placement;
                  if (placement.saved_tensor != region.saved_tensor() ||
                      placement.shard != region.shard() || placement.region != box) {
                    return;
                  }
                  PlaceTarget(target, first, last, [&](const BoxRuns::Run&, int64_t index) {
                    return packed + index * target.element_bytes;
                  });
                });
}

ChunkFunction Placer::AsCallback() const {
  return [this](int, const FilePiece& chunk, const std::byte* data) {
    Place(chunk, data);
    return absl::OkStatus();
  };
}

std::vector<FilePiece> RangesOf(const LoadPlan& plan) {
  std::vector<FilePiece> ranges;
  for (const FileReads& reads : plan.files) {
    for (const ByteRange& range : reads.ranges) {
      ranges.push_back({reads.file_index, range.begin, range.end});
    }
  }
  return ranges;
}

std::vector<uint32_t> FilesOf(const LoadPlan& plan) {
  std::vector<uint32_t> files;
  for (const FileReads& reads : plan.files) files.push_back(reads.file_index);
  return files;
}

absl::StatusOr<PackedRegion> PackedRegion::Create(const Manifest& manifest,
                                                  const ShardRegion& region) {
  const auto bad = [] {
    return absl::InvalidArgumentError("a region outside of all saved shards");
  };
  if (region.saved_tensor() >= static_cast<uint32_t>(manifest.tensors_size())) return bad();
  const LogicalTensor& tensor = manifest.tensors(region.saved_tensor());
  if (region.shard() >= ShardCount(tensor)) return bad();
  const Box box = FromProto(region.box());
  const Box saved = ShardBox(tensor, region.shard());
  if (box.empty() || !Contains(saved, box)) return bad();
  const uint64_t begin = tensor.shards().file_offset(region.shard());
  return PackedRegion({begin, begin + ShardBytes(tensor, region.shard()), region.saved_tensor(),
                       ElementSize(FromProto(tensor.dtype())),
                       BoxRuns(saved, box, box.global_offset, ContiguousStrides(box.shape))});
}

uint64_t PackedRegion::BytesIn(const FilePiece& piece) const {
  uint64_t bytes = 0;
  ForEachStored(std::span(&shard_, 1), piece.begin, piece.end,
                [&](const StoredBox& shard, int64_t first, int64_t last) {
                  shard.runs.ForEach(first, last, [&](const BoxRuns::Run& run) {
                    bytes += run.count * shard.element_bytes;
                  });
                });
  return bytes;
}

void PackedRegion::Pack(const FilePiece& piece, const std::byte* data, std::byte* packed) const {
  ForEachStored(std::span(&shard_, 1), piece.begin, piece.end,
                [&](const StoredBox& shard, int64_t first, int64_t last) {
                  shard.runs.ForEach(first, last, [&](const BoxRuns::Run& run) {
                    const int64_t bytes = run.count * shard.element_bytes;
                    const std::byte* const from =
                        data +
                        (shard.begin + run.outer_element * shard.element_bytes - piece.begin);
                    std::memcpy(packed, from, bytes);
                    packed += bytes;
                  });
                });
}

}  // namespace tessera::ckpt
