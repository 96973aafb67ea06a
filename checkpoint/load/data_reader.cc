#include "checkpoint/load/data_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/workers.h"
#include "checkpoint/directory/damaged_parts.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/file_map.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/plan/box_proto.h"
#include "checkpoint/storage/aligned_buffer.h"
#include "checkpoint/storage/pieces.h"

namespace tessera::ckpt {
namespace {

constexpr int kRereads = 2;  // of a chunk whose checksum is wrong

struct ElementRange {
  int64_t first;
  int64_t last;
  bool empty() const { return first >= last; }
};

// The elements of a shard at bytes [shard_begin, shard_end) of a file that are in a piece, counted
// from the shard's first element.
ElementRange ElementsIn(const FilePiece& piece, uint64_t shard_begin, uint64_t shard_end,
                        size_t element_bytes) {
  const int64_t size = static_cast<int64_t>(element_bytes);
  const auto element = [&](uint64_t at) {
    return static_cast<int64_t>(std::clamp(at, shard_begin, shard_end) - shard_begin) / size;
  };
  return {element(piece.begin), element(piece.end)};
}

}  // namespace

absl::StatusOr<DataReader> DataReader::Create(const Manifest& manifest, const LoadPlan& plan,
                                              const OpenFiles& files,
                                              std::span<const Destination> destinations,
                                              bool verify_checksums) {
  DataReader reader(manifest, verify_checksums);
  for (const FileReads& reads : plan.files) {
    TESSERA_RETURN_IF_ERROR(reader.AddFile(reads, files.at(reads.file_index), destinations));
  }
  return reader;
}

absl::Status DataReader::AddFile(const FileReads& reads, const OpenFile& file,
                                 std::span<const Destination> destinations) {
  const DataFile& description = manifest_->files(reads.file_index);
  const uint64_t chunk_bytes = description.chunk_bytes();
  if (chunk_bytes > kMaxChunkBytes && description.size_bytes() > kMaxChunkBytes) {
    return absl::DataLossError(absl::StrCat(description.path(), ": checksum chunks of ",
                                            chunk_bytes, " bytes, at most ", kMaxChunkBytes,
                                            " can be read"));
  }
  InputFile& input = files_[reads.file_index];
  input = {&description, &file, {}};
  for (const Placement& placement : reads.placements) {
    const Destination& to = destinations[placement.wanted];
    const size_t size = DTypeSize(manifest_->tensors(placement.saved_tensor).dtype());
    if (placement.shard_begin % size != 0 || chunk_bytes % size != 0) {
      return absl::DataLossError(absl::StrCat(
          description.path(), " at offset ", placement.shard_begin, ": tensor ",
          manifest_->tensors(placement.saved_tensor).name(), ": elements of ", size,
          " bytes are not aligned, or checksum chunks of ", chunk_bytes, " bytes cut them"));
    }
    input.targets.push_back(
        {placement.shard_begin, placement.shard_end, size,
         BoxRuns(placement.saved_box, placement.region, to.box.global_offset, to.strides), &to,
         &placement});
  }
  return absl::OkStatus();
}

// source(run, index) returns the address of the elements of a run, the first of which is the
// index-th of the target's elements in the piece.
template <typename Source>
void DataReader::PlaceTarget(const Target& target, const FilePiece& piece, const Source& source) {
  const ElementRange elements = ElementsIn(piece, target.begin, target.end, target.element_bytes);
  if (elements.empty()) return;
  const Destination& to = *target.destination;
  int64_t index = 0;
  const int64_t stride = target.runs.run_stride();
  target.runs.ForEach(elements.first, elements.last, [&](const BoxRuns::Run& run) {
    const std::byte* const from = source(run, index);
    index += run.count;
    if (to.digest != nullptr) {
      to.digest->Place(from, to.data, run.strided_element, run.count, stride);
      return;
    }
    to.copy(from, to.data + run.strided_element * static_cast<int64_t>(to.element_bytes), run.count,
            stride);
  });
}

void DataReader::Place(const FilePiece& piece, const std::byte* data) const {
  const InputFile& file = files_.at(piece.file_index);
  auto target = std::ranges::upper_bound(file.targets, piece.begin, {}, &Target::end);
  for (; target != file.targets.end() && target->begin < piece.end; ++target) {
    PlaceTarget(*target, piece, [&](const BoxRuns::Run& run, int64_t) {
      return data + (target->begin + run.outer_element * target->element_bytes - piece.begin);
    });
  }
}

void DataReader::PlaceRegion(const FilePiece& piece, const ShardRegion& region,
                             const std::byte* packed) const {
  const InputFile& file = files_.at(piece.file_index);
  const Box box = FromProto(region.box());
  auto target = std::ranges::upper_bound(file.targets, piece.begin, {}, &Target::end);
  for (; target != file.targets.end() && target->begin < piece.end; ++target) {
    const Placement& placement = *target->placement;
    if (placement.saved_tensor != region.saved_tensor() || placement.shard != region.shard() ||
        placement.region != box) {
      continue;
    }
    PlaceTarget(*target, piece, [&](const BoxRuns::Run&, int64_t index) {
      return packed + index * static_cast<int64_t>(target->element_bytes);
    });
  }
}

// Chunk by chunk, so that a checked chunk is still in the cache when it is placed.
absl::Status DataReader::ReadAndPlace(const FilePiece& piece, std::byte* buffer) const {
  const InputFile& file = files_.at(piece.file_index);
  const std::string& name = file.description->path();
  TESSERA_RETURN_IF_ERROR(
      WithDamagedParts(file.open->file->ReadAt(piece.begin, std::span(buffer, piece.size())),
                       {{name, piece.begin, piece.end}}));
  const uint64_t chunk_bytes = file.description->chunk_bytes();
  for (uint64_t chunk = piece.begin; chunk < piece.end; chunk += chunk_bytes) {
    const uint64_t end = std::min(piece.end, chunk + chunk_bytes);
    const std::span data(buffer + (chunk - piece.begin), end - chunk);
    if (verify_checksums_ && HasChecksums(*file.description)) {
      absl::Status intact = CheckChunk(piece.file_index, chunk / chunk_bytes, data);
      // Bytes that were damaged in a copy nearby, or on their way from a remote storage, are intact
      // the next time.
      for (int again = 0; again < kRereads && !intact.ok(); ++again) {
        intact = file.open->file->ReadOriginalAt(chunk, data);
        if (intact.ok()) intact = CheckChunk(piece.file_index, chunk / chunk_bytes, data);
      }
      if (!intact.ok()) return WithDamagedParts(intact, {{name, chunk, end}});
    }
    Place({piece.file_index, chunk, end}, data.data());
  }
  return absl::OkStatus();
}

absl::Status DataReader::CheckChunk(uint32_t file_index, uint64_t chunk,
                                    std::span<const std::byte> data) const {
  const uint32_t found = Crc32c(data);
  if (found == manifest_->files(file_index).chunk_crc32c(static_cast<int>(chunk))) {
    return absl::OkStatus();
  }
  const FileMap map(*manifest_);
  Damage damage = DescribeChecksumError(*manifest_, map, file_index, chunk, found);
  damage.file = files_.at(file_index).open->name;
  return absl::DataLossError(ToString(damage));
}

absl::StatusOr<PackedRegion> PackedRegion::Create(const Manifest& manifest,
                                                  const ShardRegion& region) {
  const auto bad = [] { return absl::InvalidArgumentError("a region of no saved shard"); };
  if (region.saved_tensor() >= static_cast<uint32_t>(manifest.tensors_size())) return bad();
  const LogicalTensor& tensor = manifest.tensors(static_cast<int>(region.saved_tensor()));
  if (region.shard() >= ShardCount(tensor)) return bad();
  const Box box = FromProto(region.box());
  const Box saved = ShardBox(tensor, region.shard());
  if (box.empty() || !Contains(saved, box)) return bad();
  const uint64_t begin = tensor.shards().file_offset(static_cast<int>(region.shard()));
  return PackedRegion(begin, begin + ShardBytes(tensor, region.shard()), DTypeSize(tensor.dtype()),
                      BoxRuns(saved, box, box.global_offset, ContiguousStrides(box.shape)));
}

uint64_t PackedRegion::BytesIn(const FilePiece& piece) const {
  const ElementRange elements = ElementsIn(piece, begin_, end_, element_bytes_);
  uint64_t bytes = 0;
  if (elements.empty()) return bytes;
  runs_.ForEach(elements.first, elements.last,
                [&](const BoxRuns::Run& run) { bytes += run.count * element_bytes_; });
  return bytes;
}

void PackedRegion::Pack(const FilePiece& piece, const std::byte* data, std::byte* packed) const {
  const ElementRange elements = ElementsIn(piece, begin_, end_, element_bytes_);
  if (elements.empty()) return;
  runs_.ForEach(elements.first, elements.last, [&](const BoxRuns::Run& run) {
    const uint64_t bytes = run.count * element_bytes_;
    std::memcpy(packed, data + (begin_ + run.outer_element * element_bytes_ - piece.begin), bytes);
    packed += bytes;
  });
}

absl::StatusOr<OpenFiles> OpenDataFiles(Storage& storage, std::string_view directory,
                                        const Manifest& manifest, const LoadPlan& plan) {
  OpenFiles files;
  std::vector<std::string> problems;
  std::vector<DamagedPart> damaged;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::optional<FileMap> map;  // created once, however many files are damaged
  // The code comes from the first problem that is not damage, or else from the first one.
  const auto report = [&](absl::StatusCode problem_code, std::string problem,
                          const std::string& file) {
    const bool is_damage = MayBeDamage(absl::Status(problem_code, ""));
    if (problems.empty() || (!is_damage && damaged.size() == problems.size())) code = problem_code;
    if (is_damage) damaged.push_back({.file = file});
    problems.push_back(std::move(problem));
  };
  for (const FileReads& reads : plan.files) {
    const DataFile& description = manifest.files(reads.file_index);
    const std::string path = JoinPath(directory, description.path());
    absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage.Open(path);
    if (!file.ok()) {
      // The path comes from the manifest: a folder or a pipe in its place is damage.
      report(absl::IsInvalidArgument(file.status()) ? absl::StatusCode::kDataLoss
                                                    : file.status().code(),
             std::string(file.status().message()), description.path());
    } else if ((*file)->size_bytes() != description.size_bytes()) {
      if (!map.has_value()) map.emplace(manifest);
      Damage damage = DescribeSizeError(manifest, *map, reads.file_index, (*file)->size_bytes());
      damage.file = storage.Describe(path);
      report(absl::StatusCode::kDataLoss, ToString(damage), description.path());
    } else {
      files[reads.file_index] = {*std::move(file), storage.Describe(path)};
    }
  }
  if (!problems.empty()) {
    return WithDamagedParts(absl::Status(code, absl::StrJoin(problems, "\n")), damaged);
  }
  return files;
}

absl::Status ReadAlone(const Manifest& manifest, const LoadPlan& plan, const DataReader& reader,
                       int io_threads, uint64_t staging_bytes, std::vector<AlignedBuffer>* kept) {
  std::vector<FilePiece> pieces;
  uint64_t largest = 0;
  for (const FileReads& reads : plan.files) {
    const PieceLayout layout =
        LayOutPieces(manifest.files(reads.file_index).chunk_bytes(), io_threads, staging_bytes);
    io_threads = std::min(io_threads, layout.workers);
    for (const ByteRange& range : reads.ranges) {
      for (uint64_t at = range.begin; at < range.end; at += layout.piece_bytes) {
        pieces.push_back({reads.file_index, at, std::min(range.end, at + layout.piece_bytes)});
        largest = std::max(largest, pieces.back().size());
      }
    }
  }
  const int workers = static_cast<int>(std::min<size_t>(io_threads, pieces.size()));
  std::vector<AlignedBuffer> own;
  std::vector<AlignedBuffer>& buffers = kept != nullptr ? *kept : own;
  buffers.resize(std::max<size_t>(buffers.size(), workers));
  for (int w = 0; w < workers; ++w) {
    if (buffers[w].size_bytes() >= largest) continue;
    TESSERA_ASSIGN_OR_RETURN(buffers[w], AlignedBuffer::Allocate(largest));
  }
  return RunTasks(workers, pieces.size(), [&](int worker, size_t i) {
    return reader.ReadAndPlace(pieces[i], buffers[worker].data());
  });
}

}  // namespace tessera::ckpt
