#include "convert/core/block_reader.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/elements/digest_elements.h"
#include "checkpoint/load/load.h"
#include "checkpoint/plan/rank_states.h"
#include "layout/elements/copy_elements.h"

namespace tessera::ckpt::convert {
namespace {

constexpr uint64_t kStagingBytes = uint64_t{8} << 20;

ShardedTensor Wanted(const OutputTensor& tensor, std::vector<Shard> shards) {
  return {.name = tensor.source_name,
          .role = tensor.role,
          .dtype = tensor.dtype,
          .global_shape = tensor.shape,
          .shards = std::move(shards)};
}

}  // namespace

bool IsRange(const Shape& shape, const StoredPiece& piece) {
  int64_t stride = 1;
  bool whole = true;  // all dims after this one
  for (size_t d = shape.size(); d-- > 0;) {
    const int64_t extent = piece.box.shape[d];
    if (extent == 1) {
      whole &= shape[d] == 1;
      continue;
    }
    if (!whole || piece.strides[d] != stride) return false;
    stride *= extent;
    whole = extent == shape[d];
  }
  return true;
}

BlockReader::BlockReader(const Checkpoint& source, EdgeChunkCache& ends, bool allow_overflow)
    : source_(source), tensors_(source.manifest()) {
  staging_.ends = &ends;
  options_.io_threads = 1;
  options_.allow_unexpected = true;
  options_.allow_overflow = allow_overflow;
  options_.staging_bytes = kStagingBytes;
}

absl::Status BlockReader::Read(const OutputTensor& tensor, const std::vector<StoredPiece>& pieces,
                               std::span<std::byte> block, LogicalDigest& digest) {
  const size_t size = ElementSize(tensor.dtype);
  if (std::ranges::all_of(pieces, [&](const auto& p) { return IsRange(tensor.shape, p); })) {
    const BlockPart part = {tensor, pieces, block, digest};
    return ReadTogether({&part, 1});
  }
  // Read in the order of the source, where elements are adjacent, and only then rearranged.
  const bool whole = ElementCount(tensor.shape) <= kWholeTensorBytes / static_cast<int64_t>(size);
  if (whole) {
    TESSERA_RETURN_IF_ERROR(LoadWhole(tensor));
  } else {
    TESSERA_RETURN_IF_ERROR(LoadBoxes(tensor, pieces));
  }
  const std::vector<int64_t> whole_strides = ContiguousStrides(tensor.shape);
  size_t at = 0;
  for (const StoredPiece& piece : pieces) {
    const std::byte* from = scratch_.data() + at;
    std::vector<int64_t> strides = ContiguousStrides(piece.box.shape);
    if (whole) {
      from = scratch_.data() + PlaceOf(piece.box.global_offset, whole_strides) * size;
      strides = whole_strides;
    } else {
      at += ElementCount(piece.box.shape) * size;
    }
    digest += DigestBox(tensor.shape, piece.box, from, strides, size);
    std::vector<StridedDim> dims;
    for (size_t d = 0; d < strides.size(); ++d) {
      dims.push_back({piece.box.shape[d], strides[d], piece.strides[d]});
    }
    CopyStrided(dims, size, from, block.data() + piece.offset_bytes);
  }
  return absl::OkStatus();
}

absl::Status BlockReader::ReadTogether(std::span<const BlockPart> parts) {
  std::vector<ShardedTensor> wanted;
  std::map<std::string_view, size_t> index;  // in `wanted`, by source
  for (const BlockPart& part : parts) {
    const auto [at, is_new] = index.emplace(part.tensor.source_name, wanted.size());
    if (is_new) wanted.push_back(Wanted(part.tensor, {}));
    std::vector<Shard>& shards = wanted[at->second].shards;
    for (const StoredPiece& piece : part.pieces) {
      shards.push_back({.box = piece.box,
                        .data = part.block.data() + piece.offset_bytes,
                        .strides = piece.strides});
    }
  }
  TESSERA_RETURN_IF_ERROR(Load(std::move(wanted)));
  for (const BlockPart& part : parts) {
    for (const StoredPiece& piece : part.pieces) {
      part.digest += DigestBox(part.tensor.shape, piece.box, part.block.data() + piece.offset_bytes,
                               piece.strides, ElementSize(part.tensor.dtype));
    }
  }
  return absl::OkStatus();
}

absl::Status BlockReader::LoadShards(const OutputTensor& tensor, std::vector<Shard> shards) {
  return Load({Wanted(tensor, std::move(shards))});
}

absl::Status BlockReader::Load(std::vector<ShardedTensor> wanted) {
  std::vector<std::string> names;
  for (const ShardedTensor& tensor : wanted) names.push_back(tensor.name);
  if (current_ != names) {
    manifest_ = tensors_.ManifestOf(names);
    current_ = std::move(names);
  }
  return LoadWithManifest(source_.storage(), source_.directory(), manifest_, {std::move(wanted)},
                          options_, &staging_)
      .status();
}

absl::Status BlockReader::MakeScratch(size_t bytes) {
  if (scratch_.size_bytes() >= bytes) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(scratch_, AlignedBuffer::Allocate(bytes));
  return absl::OkStatus();
}

absl::Status BlockReader::LoadWhole(const OutputTensor& tensor) {
  if (whole_ == tensor.source_name && whole_dtype_ == tensor.dtype) return absl::OkStatus();
  whole_.clear();
  TESSERA_RETURN_IF_ERROR(
      MakeScratch(static_cast<size_t>(ElementCount(tensor.shape)) * ElementSize(tensor.dtype)));
  TESSERA_RETURN_IF_ERROR(
      LoadShards(tensor, {{.box = WholeBox(tensor.shape), .data = scratch_.data()}}));
  whole_ = tensor.source_name;
  whole_dtype_ = tensor.dtype;
  return absl::OkStatus();
}

absl::Status BlockReader::LoadBoxes(const OutputTensor& tensor,
                                    const std::vector<StoredPiece>& pieces) {
  whole_.clear();
  const size_t size = ElementSize(tensor.dtype);
  size_t bytes = 0;
  for (const StoredPiece& piece : pieces) bytes += ElementCount(piece.box.shape) * size;
  TESSERA_RETURN_IF_ERROR(MakeScratch(bytes));
  std::vector<Shard> shards;
  std::byte* at = scratch_.data();
  for (const StoredPiece& piece : pieces) {
    shards.push_back({.box = piece.box, .data = at});
    at += ElementCount(piece.box.shape) * size;
  }
  return LoadShards(tensor, std::move(shards));
}

}  // namespace tessera::ckpt::convert
