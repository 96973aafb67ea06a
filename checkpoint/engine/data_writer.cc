#include "checkpoint/engine/data_writer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/base/crc32c.h"
#include "checkpoint/base/status_macros.h"
#include "checkpoint/engine/box_runs.h"
#include "checkpoint/engine/copy_elements.h"
#include "checkpoint/engine/local_plan.h"
#include "checkpoint/engine/pieces.h"
#include "checkpoint/engine/workers.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/plan/save_plan.h"
#include "checkpoint/storage/aligned_buffer.h"

namespace tessera::ckpt {
namespace {

// What is copied, digested and checksummed in one go: fits the second-level cache with room to spare. A multiple of every element
// size, as are all chunk sizes, so that no element straddles a border.
constexpr uint64_t kBlockBytes = 128 << 10;

// One box on its way to bytes [begin, end) of a file.
struct Source {
  uint64_t begin;
  uint64_t end;
  size_t element_bytes;
  size_t digest_slot;
  const std::byte* data;
  BoxRuns memory;  // file <-> the shard's memory
  BoxRuns global;  // file <-> row-major indices of the logical tensor
};

struct OutputFile {
  const FilePlan* plan;
  std::string header;
  std::vector<Source> sources;  // ascending
  std::unique_ptr<WritableFile> file;
  std::vector<uint32_t> crcs;
  std::atomic<size_t> pieces_left = 0;
};

struct Piece {
  OutputFile* file;
  uint64_t begin;
  uint64_t end;
};

// One of several threads: a buffer and the digests of what passed through it.
struct Worker {
  AlignedBuffer buffer;
  std::vector<LogicalDigest> digests;
};

Source MakeSource(const WriteItem& item, const StateDict& state, size_t digest_slot) {
  const ShardedTensor& tensor = state.tensors[item.local_tensor()];
  const LocalShard& shard = tensor.shards[item.local_shard()];
  const Box box = ItemBox(item);
  const size_t element_bytes = DTypeSize(tensor.dtype);
  const std::vector<int64_t> origin(tensor.global_shape.size(), 0);
  return {item.file_offset(),
          item.file_offset() + ElementCount(box.shape) * element_bytes,
          element_bytes,
          digest_slot,
          static_cast<const std::byte*>(shard.data),
          BoxRuns(box, box, shard.box.global_offset, ShardStrides(shard)),
          BoxRuns(box, box, origin, ContiguousStrides(tensor.global_shape))};
}

// Bytes [begin, end) of a file, which lie inside the source, into `out`.
void StageSource(const Source& source, uint64_t begin, uint64_t end, std::byte* out,
                 LogicalDigest& digest) {
  const int64_t size = source.element_bytes;
  const int64_t first = (begin - source.begin) / size, last = (end - source.begin) / size;
  source.memory.ForEach(first, last, [&](const BoxRuns::Run& run) {
    GatherElements(source.data + run.strided_element * size, source.memory.run_stride(),
                   out + (run.outer_element - first) * size, run.count, size);
  });
  source.global.ForEach(first, last, [&](const BoxRuns::Run& run) {
    digest +=
        DigestRun(run.strided_element, out + (run.outer_element - first) * size, run.count, size);
  });
}

// Bytes [begin, end) of the file into `out`.
void StageBlock(const OutputFile& file, uint64_t begin, uint64_t end, std::byte* out,
                std::vector<LogicalDigest>& digests) {
  if (begin < file.header.size()) {
    const uint64_t header_end = std::min<uint64_t>(end, file.header.size());
    std::memcpy(out, file.header.data() + begin, header_end - begin);
  }
  auto source = std::ranges::upper_bound(file.sources, begin, {}, &Source::end);
  for (; source != file.sources.end() && source->begin < end; ++source) {
    const uint64_t first = std::max(begin, source->begin), last = std::min(end, source->end);
    StageSource(*source, first, last, out + (first - begin), digests[source->digest_slot]);
  }
}

class Writer {
 public:
  Writer(Storage& storage, std::string_view directory, const DataWriterOptions& options)
      : storage_(storage),
        directory_(directory),
        options_(options),
        layout_(LayOutPieces(options.chunk_bytes, options.io_threads, options.staging_bytes)) {}

  absl::StatusOr<WriteReport> Run(const StateDict& state, const LocalPlan& local,
                                  const RankPlan& plan) {
    TESSERA_RETURN_IF_ERROR(CreateFiles(state, local, plan));
    std::vector<Piece> pieces;
    uint64_t largest = 0;
    for (const auto& file : files_) {
      const uint64_t size = file->plan->size_bytes();
      for (uint64_t begin = 0; begin < size; begin += layout_.piece_bytes) {
        const uint64_t end = std::min(size, begin + layout_.piece_bytes);
        pieces.push_back({file.get(), begin, end});
        largest = std::max(largest, end - begin);
        ++file->pieces_left;
      }
    }
    const int workers = static_cast<int>(std::min<size_t>(layout_.workers, pieces.size()));
    for (int w = 0; w < workers; ++w) {
      TESSERA_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(largest));
      workers_.push_back({std::move(buffer), std::vector<LogicalDigest>(slot_of_tensor_.size())});
    }
    TESSERA_RETURN_IF_ERROR(RunTasks(workers, pieces.size(), [&](int worker, size_t i) {
      return WritePiece(pieces[i], workers_[worker]);
    }));
    return Report();
  }

 private:
  absl::Status CreateFiles(const StateDict& state, const LocalPlan& local, const RankPlan& plan) {
    for (const FilePlan& file_plan : plan.files()) {
      auto file = std::make_unique<OutputFile>();
      file->plan = &file_plan;
      TESSERA_ASSIGN_OR_RETURN(file->header, DataFileHeader(local, file_plan));
      for (const WriteItem& item : file_plan.items()) {
        const size_t slot =
            slot_of_tensor_.try_emplace(item.manifest_tensor(), slot_of_tensor_.size())
                .first->second;
        file->sources.push_back(MakeSource(item, state, slot));
      }
      std::ranges::sort(file->sources, {}, &Source::begin);
      file->crcs.resize((file_plan.size_bytes() + options_.chunk_bytes - 1) / options_.chunk_bytes);
      TESSERA_ASSIGN_OR_RETURN(
          file->file,
          storage_.Create(absl::StrCat(directory_, "/", file_plan.path()), file_plan.size_bytes()));
      files_.push_back(std::move(file));
    }
    return absl::OkStatus();
  }

  absl::Status WritePiece(const Piece& piece, Worker& worker) {
    OutputFile& file = *piece.file;
    std::byte* const buffer = worker.buffer.data();
    for (uint64_t chunk = piece.begin; chunk < piece.end; chunk += options_.chunk_bytes) {
      const uint64_t chunk_end = std::min(piece.end, chunk + options_.chunk_bytes);
      uint32_t crc = 0;
      for (uint64_t block = chunk; block < chunk_end; block += kBlockBytes) {
        const uint64_t block_end = std::min(chunk_end, block + kBlockBytes);
        std::byte* const out = buffer + (block - piece.begin);
        StageBlock(file, block, block_end, out, worker.digests);
        crc = ExtendCrc32c(crc, {out, block_end - block});
      }
      file.crcs[chunk / options_.chunk_bytes] = crc;
    }
    TESSERA_RETURN_IF_ERROR(file.file->WriteAt(piece.begin, {buffer, piece.end - piece.begin}));
    if (--file.pieces_left > 0) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(file.file->Sync());
    return file.file->Close();
  }

  WriteReport Report() const {
    WriteReport report;
    for (const auto& file : files_) {
      FileReport& file_report = *report.add_files();
      file_report.set_file_index(file->plan->file_index());
      file_report.mutable_chunk_crc32c()->Add(file->crcs.begin(), file->crcs.end());
      report.set_bytes(report.bytes() + file->plan->size_bytes());
    }
    for (const auto& [tensor, slot] : slot_of_tensor_) {
      LogicalDigest digest;
      for (const Worker& worker : workers_) digest += worker.digests[slot];
      TensorReport& tensor_report = *report.add_tensors();
      tensor_report.set_manifest_tensor(tensor);
      tensor_report.mutable_digest()->set_lo(digest.lo);
      tensor_report.mutable_digest()->set_hi(digest.hi);
    }
    return report;
  }

  Storage& storage_;
  const std::string directory_;
  const DataWriterOptions options_;
  const PieceLayout layout_;
  std::vector<std::unique_ptr<OutputFile>> files_;
  std::map<uint32_t, size_t> slot_of_tensor_;  // by manifest tensor
  std::vector<Worker> workers_;
};

}  // namespace

absl::StatusOr<WriteReport> WriteDataFiles(Storage& storage, std::string_view directory,
                                           const StateDict& state, const LocalPlan& local,
                                           const RankPlan& plan, const DataWriterOptions& options) {
  return Writer(storage, directory, options).Run(state, local, plan);
}

}  // namespace tessera::ckpt
