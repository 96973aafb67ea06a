#include "convert/core/read_digests.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/workers.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/file_map.h"
#include "checkpoint/elements/box_runs.h"
#include "checkpoint/elements/digest_runs.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/storage/aligned_buffer.h"
#include "checkpoint/storage/pieces.h"
#include "checkpoint/storage/storage.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

constexpr uint64_t kStagingBytes = uint64_t{64} << 20;

// Bytes [begin, end) of a data file, whole checksum chunks.
struct Piece {
  uint32_t file;
  uint64_t begin;
  uint64_t end;
};

// What one thread keeps from one piece to the next.
struct Worker {
  AlignedBuffer buffer;
  uint32_t file_index = 0;
  std::unique_ptr<ReadableFile> file;  // null: none is open
  std::vector<LogicalDigest> sums;     // by tensor
};

uint64_t TotalBytes(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const DataFile& file : manifest.files()) bytes += file.size_bytes();
  return bytes;
}

class DigestReader {
 public:
  DigestReader(const OutputSource& source, const ReadDigestsOptions& options)
      : source_(source),
        manifest_(source.manifest),
        map_(source.manifest),
        options_(options),
        progress_(options.progress, TotalBytes(source.manifest)) {}

  absl::StatusOr<DigestsByName> Read() {
    TESSERA_RETURN_IF_ERROR(ValidateCoverage(manifest_));
    int threads = options_.io_threads;
    uint64_t largest = 0;
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, CutIntoPieces(threads, largest));
    std::vector<Worker> workers(std::min<size_t>(threads, pieces.size()));
    for (Worker& worker : workers) {
      TESSERA_ASSIGN_OR_RETURN(worker.buffer, AlignedBuffer::Allocate(largest));
      worker.sums.resize(manifest_.tensors_size());
    }
    TESSERA_RETURN_IF_ERROR(
        RunTasks(static_cast<int>(workers.size()), pieces.size(),
                 [&](int worker, size_t i) { return ReadPiece(pieces[i], workers[worker]); }));
    return SumUp(workers);
  }

 private:
  // Reduces the number of threads to what the staging memory allows.
  absl::StatusOr<std::vector<Piece>> CutIntoPieces(int& threads, uint64_t& largest) const {
    std::vector<Piece> pieces;
    for (int f = 0; f < manifest_.files_size(); ++f) {
      const DataFile& file = manifest_.files(f);
      if (file.chunk_bytes() > kMaxChunkBytes && file.size_bytes() > kMaxChunkBytes) {
        return absl::DataLossError(absl::StrCat(file.path(), ": checksum chunks of ",
                                                file.chunk_bytes(), " bytes, at most ",
                                                kMaxChunkBytes, " can be read"));
      }
      const PieceLayout layout =
          LayOutPieces(file.chunk_bytes(), options_.io_threads, kStagingBytes);
      threads = std::min(threads, layout.workers);
      for (uint64_t at = 0; at < file.size_bytes(); at += layout.piece_bytes) {
        pieces.push_back(
            {static_cast<uint32_t>(f), at, std::min(file.size_bytes(), at + layout.piece_bytes)});
        largest = std::max(largest, pieces.back().end - at);
      }
    }
    return pieces;
  }

  absl::Status ReadPiece(const Piece& piece, Worker& worker) {
    TESSERA_RETURN_IF_ERROR(OpenFile(piece.file, worker));
    const std::span<std::byte> data =
        worker.buffer.span().first(static_cast<size_t>(piece.end - piece.begin));
    TESSERA_RETURN_IF_ERROR(worker.file->ReadAt(piece.begin, data));
    const DataFile& file = manifest_.files(static_cast<int>(piece.file));
    // Chunk by chunk, so that a checked chunk is still in the cache when it is digested.
    for (uint64_t begin = piece.begin; begin < piece.end; begin += file.chunk_bytes()) {
      const uint64_t end = std::min(piece.end, begin + file.chunk_bytes());
      const std::span<const std::byte> chunk = data.subspan(begin - piece.begin, end - begin);
      if (HasChecksums(file)) {
        TESSERA_RETURN_IF_ERROR(CheckChunk(piece.file, begin / file.chunk_bytes(), chunk));
      }
      TESSERA_RETURN_IF_ERROR(Digest(piece.file, begin, chunk, worker.sums));
    }
    progress_.Advance(data.size());
    return absl::OkStatus();
  }

  absl::Status OpenFile(uint32_t index, Worker& worker) const {
    if (worker.file != nullptr && worker.file_index == index) return absl::OkStatus();
    const DataFile& file = manifest_.files(static_cast<int>(index));
    TESSERA_ASSIGN_OR_RETURN(worker.file,
                             source_.storage.Open(JoinPath(source_.directory, file.path())));
    worker.file_index = index;
    if (worker.file->size_bytes() == file.size_bytes()) return absl::OkStatus();
    return absl::DataLossError(
        ToString(DescribeSizeError(manifest_, map_, index, worker.file->size_bytes())));
  }

  absl::Status CheckChunk(uint32_t file, uint64_t chunk, std::span<const std::byte> data) const {
    const uint32_t found = Crc32c(data);
    const int index = static_cast<int>(chunk);
    if (found == manifest_.files(static_cast<int>(file)).chunk_crc32c(index)) {
      return absl::OkStatus();
    }
    return absl::DataLossError(
        ToString(DescribeChecksumError(manifest_, map_, file, chunk, found)));
  }

  // Adds the digests of all elements in the bytes of the file from `begin` on.
  absl::Status Digest(uint32_t file, uint64_t begin, std::span<const std::byte> data,
                      std::vector<LogicalDigest>& sums) const {
    const uint64_t end = begin + data.size();
    const std::vector<FileMap::Extent>& extents = map_.extents(file);
    auto extent = std::ranges::upper_bound(extents, begin, {}, &FileMap::Extent::end);
    for (; extent != extents.end() && extent->begin < end; ++extent) {
      const LogicalTensor& tensor = manifest_.tensors(static_cast<int>(extent->tensor));
      const Box box = ShardBox(tensor, extent->shard);
      if (box.empty()) continue;
      const uint64_t size = DTypeSize(tensor.dtype());
      const uint64_t first = std::max(begin, extent->begin) - extent->begin;
      const uint64_t last = std::min(end, extent->end) - extent->begin;
      if (first % size != 0 || last % size != 0) {
        return absl::DataLossError(absl::StrCat(
            manifest_.files(static_cast<int>(file)).path(), " at offset ", extent->begin,
            ": tensor ", tensor.name(), ": checksum chunks cut elements of ", size, " bytes"));
      }
      const Shape shape = GlobalShape(tensor);
      const BoxRuns global(box, box, std::vector<int64_t>(shape.size(), 0),
                           ContiguousStrides(shape));
      sums[extent->tensor] +=
          DigestRuns(global, static_cast<int64_t>(first / size), static_cast<int64_t>(last / size),
                     data.data() + (extent->begin + first - begin), static_cast<int64_t>(size));
    }
    return absl::OkStatus();
  }

  DigestsByName SumUp(const std::vector<Worker>& workers) const {
    DigestsByName digests;
    for (int t = 0; t < manifest_.tensors_size(); ++t) {
      LogicalDigest& sum = digests[manifest_.tensors(t).name()];
      for (const Worker& worker : workers) sum += worker.sums[t];
    }
    for (const LogicalTensor& tensor : manifest_.tensors()) {
      if (!tensor.alias_of().empty()) digests[tensor.name()] = digests[tensor.alias_of()];
    }
    return digests;
  }

  const OutputSource& source_;
  const Manifest& manifest_;
  const FileMap map_;
  const ReadDigestsOptions& options_;
  Progress progress_;
};

}  // namespace

absl::StatusOr<DigestsByName> ReadDigests(const OutputSource& source,
                                          const ReadDigestsOptions& options) {
  if (options.io_threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("io_threads must be at least 1, not ", options.io_threads));
  }
  return DigestReader(source, options).Read();
}

}  // namespace tessera::ckpt::convert
