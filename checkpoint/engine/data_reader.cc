#include "checkpoint/engine/data_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/base/crc32c.h"
#include "checkpoint/base/status_macros.h"
#include "checkpoint/engine/box_runs.h"
#include "checkpoint/engine/damage.h"
#include "checkpoint/engine/directory.h"
#include "checkpoint/engine/pieces.h"
#include "checkpoint/engine/workers.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/storage/aligned_buffer.h"

namespace tessera::ckpt {
namespace {

// One placement, ready to run: bytes [begin, end) of a file hold a saved shard, parts of which go to a destination.
struct Target {
  uint64_t begin;
  uint64_t end;
  size_t element_bytes;  // as saved
  BoxRuns runs;          // saved shard <-> destination
  const Destination* destination;
};

struct InputFile {
  const DataFile* description;
  uint32_t file_index;
  const ReadableFile* file;
  std::vector<Target> targets;  // ascending by begin and by end: saved shards do not share bytes
};

struct Piece {
  const InputFile* file;
  uint64_t begin;
  uint64_t end;
};

// Places what bytes [begin, end) of a file, which are at `data`, hold for the target.
void Place(const Target& target, uint64_t begin, uint64_t end, const std::byte* data) {
  const int64_t size = target.element_bytes;
  const uint64_t first_byte = std::max(begin, target.begin);
  const int64_t first = (first_byte - target.begin) / size;
  const int64_t last = (std::min(end, target.end) - target.begin) / size;
  const std::byte* const from = data + (first_byte - begin);
  const Destination& to = *target.destination;
  target.runs.ForEach(first, last, [&](const BoxRuns::Run& run) {
    to.copy(from + (run.outer_element - first) * size,
            to.data + run.strided_element * static_cast<int64_t>(to.element_bytes), run.count,
            target.runs.run_stride());
  });
}

class Reader {
 public:
  Reader(const Manifest& manifest, const DataReaderOptions& options)
      : manifest_(manifest), options_(options), workers_wanted_(options.io_threads) {}

  absl::Status Run(const LoadPlan& plan, const OpenFiles& files,
                   std::span<const Destination> destinations) {
    files_.reserve(plan.files.size());
    for (const FileReads& reads : plan.files) {
      TESSERA_RETURN_IF_ERROR(AddFile(reads, *files.at(reads.file_index), destinations));
    }
    uint64_t largest = 0;
    for (const Piece& piece : pieces_) largest = std::max(largest, piece.end - piece.begin);
    const int workers = static_cast<int>(std::min<size_t>(workers_wanted_, pieces_.size()));
    for (int w = 0; w < workers; ++w) {
      TESSERA_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(largest));
      buffers_.push_back(std::move(buffer));
    }
    return RunTasks(workers, pieces_.size(), [&](int worker, size_t i) {
      return ReadPiece(pieces_[i], buffers_[worker].data());
    });
  }

 private:
  absl::Status AddFile(const FileReads& reads, const ReadableFile& file,
                       std::span<const Destination> destinations) {
    const DataFile& description = manifest_.files(reads.file_index);
    const uint64_t chunk_bytes = description.chunk_bytes();
    if (chunk_bytes > kMaxChunkBytes && description.size_bytes() > kMaxChunkBytes) {
      return absl::DataLossError(absl::StrCat(description.path(), ": checksum chunks of ",
                                              chunk_bytes, " bytes, at most ", kMaxChunkBytes,
                                              " can be read"));
    }
    InputFile& input = files_.emplace_back();
    input = {&description, reads.file_index, &file, {}};
    for (const Placement& placement : reads.placements) {
      const Destination& to = destinations[placement.wanted];
      const size_t size = DTypeSize(manifest_.tensors(placement.saved_tensor).dtype());
      if (placement.shard_begin % size != 0 || chunk_bytes % size != 0) {
        return absl::DataLossError(absl::StrCat(
            description.path(), " at offset ", placement.shard_begin, ": tensor ",
            manifest_.tensors(placement.saved_tensor).name(), ": elements of ", size,
            " bytes are not aligned, or checksum chunks of ", chunk_bytes, " bytes cut them"));
      }
      input.targets.push_back(
          {placement.shard_begin, placement.shard_end, size,
           BoxRuns(placement.saved_box, placement.region, to.box.global_offset, to.strides), &to});
    }
    const PieceLayout layout =
        LayOutPieces(chunk_bytes, options_.io_threads, options_.staging_bytes);
    workers_wanted_ = std::min(workers_wanted_, layout.workers);
    for (const ByteRange& range : reads.ranges) {
      for (uint64_t at = range.begin; at < range.end; at += layout.piece_bytes) {
        pieces_.push_back({&input, at, std::min(range.end, at + layout.piece_bytes)});
      }
    }
    return absl::OkStatus();
  }

  // Chunk after chunk, so that what was checked is still in the cache when it is placed.
  absl::Status ReadPiece(const Piece& piece, std::byte* buffer) const {
    const InputFile& file = *piece.file;
    TESSERA_RETURN_IF_ERROR(
        file.file->ReadAt(piece.begin, std::span(buffer, piece.end - piece.begin)));
    const uint64_t chunk_bytes = file.description->chunk_bytes();
    for (uint64_t chunk = piece.begin; chunk < piece.end; chunk += chunk_bytes) {
      const uint64_t end = std::min(piece.end, chunk + chunk_bytes);
      const std::byte* const data = buffer + (chunk - piece.begin);
      if (options_.verify_checksums) {
        TESSERA_RETURN_IF_ERROR(CheckChunk(file, chunk / chunk_bytes, {data, end - chunk}));
      }
      auto target = std::ranges::upper_bound(file.targets, chunk, {}, &Target::end);
      for (; target != file.targets.end() && target->begin < end; ++target) {
        Place(*target, chunk, end, data);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckChunk(const InputFile& file, uint64_t chunk,
                          std::span<const std::byte> data) const {
    const uint32_t found = Crc32c(data);
    if (found == file.description->chunk_crc32c(static_cast<int>(chunk))) return absl::OkStatus();
    const FileMap map(manifest_);
    return absl::DataLossError(
        ToString(DescribeChecksumError(manifest_, map, file.file_index, chunk, found)));
  }

  const Manifest& manifest_;
  const DataReaderOptions& options_;
  int workers_wanted_;
  std::vector<InputFile> files_;
  std::vector<Piece> pieces_;
  std::vector<AlignedBuffer> buffers_;
};

}  // namespace

absl::StatusOr<OpenFiles> OpenDataFiles(Storage& storage, std::string_view directory,
                                        const Manifest& manifest, const LoadPlan& plan) {
  OpenFiles files;
  std::vector<std::string> problems;
  absl::StatusCode code = absl::StatusCode::kOk;
  const auto report = [&](absl::StatusCode problem_code, std::string problem) {
    if (problems.empty()) code = problem_code;
    problems.push_back(std::move(problem));
  };
  for (const FileReads& reads : plan.files) {
    const DataFile& description = manifest.files(reads.file_index);
    const std::string path = JoinPath(directory, description.path());
    absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage.Open(path);
    if (!file.ok()) {
      report(file.status().code(), std::string(file.status().message()));
    } else if ((*file)->size_bytes() != description.size_bytes()) {
      const FileMap map(manifest);
      Damage damage = DescribeSizeError(manifest, map, reads.file_index, (*file)->size_bytes());
      damage.file = storage.Describe(path);
      report(absl::StatusCode::kDataLoss, ToString(damage));
    } else {
      files[reads.file_index] = *std::move(file);
    }
  }
  if (!problems.empty()) return absl::Status(code, absl::StrJoin(problems, "\n"));
  return files;
}

absl::Status ReadDataFiles(const Manifest& manifest, const LoadPlan& plan, const OpenFiles& files,
                           std::span<const Destination> destinations,
                           const DataReaderOptions& options) {
  return Reader(manifest, options).Run(plan, files, destinations);
}

}  // namespace tessera::ckpt
