#include "checkpoint/plan/load_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/plan/box_index.h"
#include "checkpoint/plan/rank_states.h"

namespace tessera::ckpt {
namespace {

// Appends the bytes of `region` in the row-major storage of `outer` that begins at `base`. Parts
// shorter than `gap_bytes` are included completely, with their gaps: whole checksum chunks are read
// in any case.
class RangeCollector {
 public:
  RangeCollector(const Manifest& manifest, const Placement& placement, uint64_t gap_bytes,
                 std::vector<ByteRange>& out)
      : region_(placement.region), gap_bytes_(gap_bytes), out_(out) {
    const size_t element_bytes =
        ElementSize(FromProto(manifest.tensors(placement.saved_tensor).dtype()));
    const std::vector<int64_t> strides = ContiguousStrides(placement.saved_box.shape);
    const size_t rank = strides.size();
    begin_ = placement.shard_begin;
    stride_bytes_.resize(rank);
    span_bytes_.resize(rank + 1);
    span_bytes_[rank] = element_bytes;
    dense_.resize(rank + 1, true);
    for (size_t d = rank; d-- > 0;) {
      stride_bytes_[d] = strides[d] * element_bytes;
      begin_ +=
          (region_.global_offset[d] - placement.saved_box.global_offset[d]) * stride_bytes_[d];
      span_bytes_[d] = (region_.shape[d] - 1) * stride_bytes_[d] + span_bytes_[d + 1];
      dense_[d] =
          dense_[d + 1] && (region_.shape[d] == 1 || span_bytes_[d + 1] == stride_bytes_[d]);
    }
  }

  void Collect() { Collect(0, begin_); }

  uint64_t bytes() const { return ElementCount(region_.shape) * span_bytes_.back(); }
  // Returns the distance from the first byte to the end of the last one.
  uint64_t span_bytes() const { return span_bytes_[0]; }
  bool dense() const { return dense_[0]; }

 private:
  void Collect(size_t dim, uint64_t begin) {
    if (dense_[dim] || span_bytes_[dim] <= gap_bytes_) {
      out_.push_back({begin, begin + span_bytes_[dim]});
      return;
    }
    for (int64_t i = 0; i < region_.shape[dim]; ++i)
      Collect(dim + 1, begin + i * stride_bytes_[dim]);
  }

  const Box& region_;
  const uint64_t gap_bytes_;
  uint64_t begin_;
  std::vector<uint64_t> stride_bytes_;  // step along each dim in the file
  std::vector<uint64_t> span_bytes_;    // extent in the file of this dim and the inner ones
  std::vector<bool> dense_;             // no gaps from this dim on
  std::vector<ByteRange>& out_;
};

std::vector<ByteRange> MergeToChunks(std::vector<ByteRange> ranges, uint64_t chunk_bytes,
                                     uint64_t file_bytes) {
  std::ranges::sort(ranges, {}, &ByteRange::begin);
  std::vector<ByteRange> merged;
  for (ByteRange range : ranges) {
    range.begin -= range.begin % chunk_bytes;
    const uint64_t tail = range.end % chunk_bytes;
    if (tail != 0) range.end += std::min(chunk_bytes - tail, file_bytes - range.end);
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

// Finds the placements by the index of their file.
absl::StatusOr<std::map<uint32_t, std::vector<Placement>>> FindPlacements(
    const Manifest& manifest, std::span<const WantedBox> all_wanted) {
  std::map<uint32_t, std::unique_ptr<BoxIndex>> all_shards;  // by tensor
  std::map<uint32_t, std::vector<Placement>> files;
  for (uint32_t w = 0; w < all_wanted.size(); ++w) {
    const WantedBox& wanted = all_wanted[w];
    if (wanted.box.empty()) continue;
    const LogicalTensor& tensor = manifest.tensors(wanted.saved_tensor);
    std::unique_ptr<BoxIndex>& shards = all_shards[wanted.saved_tensor];
    if (shards == nullptr) shards = std::make_unique<BoxIndex>(ShardBoxes(tensor));
    const size_t element_bytes = ElementSize(FromProto(tensor.dtype()));
    int64_t found = 0;
    shards->ForEachOverlap(wanted.box, [&](size_t shard, const Box& region) {
      found += ElementCount(region.shape);
      const Box& box = shards->boxes()[shard];
      const uint64_t begin = tensor.shards().file_offset(shard);
      files[tensor.shards().file_index(shard)].push_back(
          {.wanted = w,
           .saved_tensor = wanted.saved_tensor,
           .shard = static_cast<uint32_t>(shard),
           .saved_box = box,
           .shard_begin = begin,
           .shard_end = begin + ElementCount(box.shape) * element_bytes,
           .region = region});
    });
    // Numbers of elements suffice, since callers have proven that no shards overlap
    // (ValidateCoverage).
    if (found != ElementCount(wanted.box.shape)) {
      return absl::DataLossError(absl::StrCat("tensor ", tensor.name(), ": the saved shards hold ",
                                              found, " of the ", ElementCount(wanted.box.shape),
                                              " elements of box ", ToString(wanted.box)));
    }
  }
  return files;
}

}  // namespace

ReadNeeds DescribeNeeds(const Manifest& manifest, const LoadPlan& plan, uint64_t staging_bytes) {
  ReadNeeds needs;
  needs.set_staging_bytes(staging_bytes);
  const auto append = [](std::vector<ByteRange> ranges, const DataFile& file, auto& out) {
    for (const ByteRange& range :
         MergeToChunks(std::move(ranges), file.chunk_bytes(), file.size_bytes())) {
      out.Add(range.begin);
      out.Add(range.end);
    }
  };
  for (const FileReads& reads : plan.files) {
    const DataFile& file = manifest.files(reads.file_index);
    FileNeeds& file_needs = *needs.add_files();
    file_needs.set_file_index(reads.file_index);
    std::vector<ByteRange> whole;
    for (const Placement& placement : reads.placements) {
      std::vector<ByteRange> ranges;
      RangeCollector collector(manifest, placement, file.chunk_bytes(), ranges);
      collector.Collect();
      if (collector.dense() || collector.bytes() >= collector.span_bytes() / 4 * 3) {
        whole.insert(whole.end(), ranges.begin(), ranges.end());
        continue;
      }
      SparseNeed& sparse = *file_needs.add_sparse();
      sparse.mutable_region()->set_saved_tensor(placement.saved_tensor);
      sparse.mutable_region()->set_shard(placement.shard);
      ToProto(placement.region, *sparse.mutable_region()->mutable_box());
      append(std::move(ranges), file, *sparse.mutable_range());
    }
    append(std::move(whole), file, *file_needs.mutable_range());
  }
  return needs;
}

absl::StatusOr<LoadPlan> PlanLoad(const Manifest& manifest, std::span<const WantedBox> wanted) {
  TESSERA_ASSIGN_OR_RETURN(auto files, FindPlacements(manifest, wanted));
  LoadPlan plan;
  for (auto& [file_index, placements] : files) {
    const DataFile& file = manifest.files(file_index);
    std::vector<ByteRange> ranges;
    for (const Placement& placement : placements) {
      RangeCollector(manifest, placement, file.chunk_bytes(), ranges).Collect();
    }
    FileReads& reads = plan.files.emplace_back();
    reads.file_index = file_index;
    reads.ranges = MergeToChunks(std::move(ranges), file.chunk_bytes(), file.size_bytes());
    for (const ByteRange& range : reads.ranges) plan.bytes += range.end - range.begin;
    std::ranges::stable_sort(placements, {}, &Placement::shard_begin);
    reads.placements = std::move(placements);
  }
  return plan;
}

}  // namespace tessera::ckpt
