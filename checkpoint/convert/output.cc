#include "checkpoint/convert/output.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/workers.h"
#include "checkpoint/convert/block_reader.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/layout/flat_range.h"
#include "checkpoint/storage/aligned_buffer.h"
#include "zlib.h"

namespace tessera::ckpt::convert {
namespace {

constexpr int64_t kBlockBytes = int64_t{16} << 20;
// Blocks in work at once: while one waits for the disk, another is copied and digested.
constexpr int kBlocks = 3;

uint64_t EndOf(const OutputTensor& tensor) {
  return tensor.offset_bytes + static_cast<uint64_t>(tensor.elements) * DTypeSize(tensor.dtype);
}

// What one thread keeps from one block to the next.
class Worker {
 public:
  Worker(const OutputSource& source, const OutputOptions& options)
      : reader_(source, options.io_threads) {}

  // Reads elements [begin, end) of the tensor as they are in its file, and adds their digest. The
  // result is valid until the next call; its address is that of the file's offset within a page,
  // so that it is written without a copy.
  absl::StatusOr<std::span<std::byte>> Read(const OutputTensor& tensor, int64_t begin,
                                            int64_t end) {
    LogicalDigest& digest = digests_[tensor.name];
    if (begin == end) return std::span<std::byte>();
    const auto size = static_cast<int64_t>(DTypeSize(tensor.dtype));
    const auto bytes = static_cast<size_t>((end - begin) * size);
    const uint64_t skip =
        (tensor.offset_bytes + static_cast<uint64_t>(begin * size)) % kIoAlignmentBytes;
    TESSERA_RETURN_IF_ERROR(MakeRoom(skip + bytes));
    const std::span<std::byte> block = buffer_.span().subspan(skip, bytes);
    TESSERA_RETURN_IF_ERROR(
        reader_.Read(tensor, PiecesOf(tensor, begin, end, block), block, digest));
    return block;
  }

  // Reads tensors of a file that is one span of it, as above; the result is that span. What lies
  // between the tensors is undefined.
  absl::StatusOr<std::span<std::byte>> ReadSpan(std::span<const OutputTensor> tensors) {
    const uint64_t begin = tensors.front().offset_bytes;
    const uint64_t bytes = EndOf(tensors.back()) - begin, skip = begin % kIoAlignmentBytes;
    TESSERA_RETURN_IF_ERROR(MakeRoom(skip + bytes));
    const std::span<std::byte> block = buffer_.span().subspan(skip, bytes);
    std::vector<BlockPart> parts;
    for (const OutputTensor& tensor : tensors) {
      const std::span<std::byte> part =
          block.subspan(tensor.offset_bytes - begin, EndOf(tensor) - tensor.offset_bytes);
      parts.push_back(
          {tensor, PiecesOf(tensor, 0, tensor.elements, part), part, digests_[tensor.name]});
    }
    TESSERA_RETURN_IF_ERROR(reader_.ReadTogether(parts));
    return block;
  }

  const DigestsByName& digests() const { return digests_; }

 private:
  absl::Status MakeRoom(size_t bytes) {
    if (buffer_.size_bytes() >= bytes) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(buffer_, AlignedBuffer::Allocate(bytes + kIoAlignmentBytes));
    return absl::OkStatus();
  }

  // The pieces of elements [begin, end). Clears the block where it has padding.
  static std::vector<StoredPiece> PiecesOf(const OutputTensor& tensor, int64_t begin, int64_t end,
                                           std::span<std::byte> block) {
    std::vector<StoredPiece> pieces = tensor.pieces(begin, end);
    int64_t filled = 0;
    for (const StoredPiece& piece : pieces) filled += ElementCount(piece.box.shape);
    if (filled < end - begin) std::ranges::fill(block, std::byte{0});
    return pieces;
  }

  BlockReader reader_;
  AlignedBuffer buffer_;
  DigestsByName digests_;
};

// Threads with what they keep.
class Workers {
 public:
  Workers(const OutputSource& source, const OutputOptions& options) {
    for (int w = 0; w < kBlocks; ++w) workers_.push_back(std::make_unique<Worker>(source, options));
  }

  // Runs task(worker, i) for each i below `count`.
  template <typename Task>
  absl::Status Run(size_t count, const Task& task) {
    return RunTasks(kBlocks, count, [&](int w, size_t i) { return task(*workers_[w], i); });
  }

  DigestsByName Digests() const {
    DigestsByName sums;
    for (const auto& worker : workers_) {
      for (const auto& [name, digest] : worker->digests()) sums[name] += digest;
    }
    return sums;
  }

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
};

// Tensors [first, last) of a list as a whole, or elements [begin, end) of one.
struct Task {
  size_t first = 0, last = 0;
  int64_t begin = 0, end = kWhole;
  bool together = false;  // in one load

  static constexpr int64_t kWhole = -1;
  int64_t EndIn(const OutputTensor& tensor) const { return end == kWhole ? tensor.elements : end; }
};

// Whether a task of neighbours, or of the first of them alone, can have the next tensor, too: they
// are read in one load.
bool ReadsTogether(const std::vector<OutputTensor>& tensors, const Task& task) {
  const OutputTensor& next = tensors[task.last];
  const auto in_place = [](const OutputTensor& tensor) {
    return std::ranges::all_of(tensor.pieces(0, tensor.elements), [&](const StoredPiece& piece) {
      return IsRange(tensor.shape, piece);
    });
  };
  if (task.end != Task::kWhole || (!task.together && task.last > task.first + 1)) return false;
  if (next.elements == 0 || tensors[task.first].elements == 0) return false;
  if (next.offset_bytes < EndOf(tensors[task.last - 1]) ||
      EndOf(next) - tensors[task.first].offset_bytes > kBlockBytes) {
    return false;
  }
  for (size_t t = task.first; t < task.last; ++t) {
    if (tensors[t].source_name == next.source_name) return false;
  }
  return in_place(next) && (task.together || in_place(tensors[task.first]));
}

// Neighbours that are parts of one tensor, which a reader keeps whole, are one task, and so are
// small ones that need no rearrangement.
std::vector<Task> CutIntoTasks(const std::vector<OutputTensor>& tensors) {
  std::vector<Task> tasks;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const OutputTensor& tensor = tensors[t];
    const auto size = static_cast<int64_t>(DTypeSize(tensor.dtype));
    const int64_t block = kBlockBytes / size;
    if (tensor.elements > block) {
      for (int64_t begin = 0; begin < tensor.elements; begin += block) {
        tasks.push_back({t, t + 1, begin, std::min(tensor.elements, begin + block)});
      }
    } else if (t > 0 && tasks.back().end == Task::kWhole && !tasks.back().together &&
               tensors[t - 1].source_name == tensor.source_name &&
               ElementCount(tensor.shape) <= kWholeTensorBytes / size) {
      tasks.back().last = t + 1;
    } else if (t > 0 && ReadsTogether(tensors, tasks.back())) {
      tasks.back().last = t + 1;
      tasks.back().together = true;
    } else {
      tasks.push_back({.first = t, .last = t + 1});
    }
  }
  return tasks;
}

// The CRC-32 of a tensor's bytes, from those of its blocks.
struct BlockCrc {
  uint32_t crc32 = 0;
  uint64_t bytes = 0;
};

// Joins bytes that are adjacent in the file, in order of their offsets.
std::vector<OutputBytes> Joined(std::vector<OutputBytes> parts) {
  std::ranges::sort(parts, {}, &OutputBytes::offset_bytes);
  std::vector<OutputBytes> joined;
  for (OutputBytes& part : parts) {
    if (!joined.empty() &&
        joined.back().offset_bytes + joined.back().bytes.size() == part.offset_bytes) {
      joined.back().bytes += part.bytes;
    } else {
      joined.push_back(std::move(part));
    }
  }
  return joined;
}

class Writer {
 public:
  Writer(const OutputSource& source, Storage& storage, std::string_view directory,
         const OutputOptions& options, uint64_t total_bytes)
      : workers_(source, options),
        storage_(storage),
        directory_(directory),
        progress_(options.progress, total_bytes) {}

  absl::StatusOr<DigestsByName> Write(const std::vector<OutputFile>& files) {
    for (const OutputFile& file : files) TESSERA_RETURN_IF_ERROR(WriteFile(file));
    TESSERA_RETURN_IF_ERROR(storage_.SyncDirectory(directory_));
    return workers_.Digests();
  }

 private:
  absl::Status WriteFile(const OutputFile& file) {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> out,
                             storage_.Create(JoinPath(directory_, file.name), file.size_bytes));
    TESSERA_RETURN_IF_ERROR(out->WriteAt(0, std::as_bytes(std::span(file.header))));
    progress_.Advance(file.header.size());
    const std::vector<Task> tasks = CutIntoTasks(file.tensors);
    std::vector<std::vector<BlockCrc>> crcs(tasks.size());  // of each tensor of a task
    TESSERA_RETURN_IF_ERROR(workers_.Run(tasks.size(), [&](Worker& worker, size_t i) {
      return WriteTask(file, tasks[i], worker, *out, crcs[i]);
    }));
    if (file.finish != nullptr) {
      for (const OutputBytes& rest : Joined(file.finish(Crc32Of(file, tasks, crcs)))) {
        TESSERA_RETURN_IF_ERROR(
            out->WriteAt(rest.offset_bytes, std::as_bytes(std::span(rest.bytes))));
        progress_.Advance(rest.bytes.size());
      }
    }
    TESSERA_RETURN_IF_ERROR(out->Sync());
    return out->Close();
  }

  absl::Status WriteTask(const OutputFile& file, const Task& task, Worker& worker,
                         WritableFile& out, std::vector<BlockCrc>& crcs) {
    if (task.together) return WriteTogether(file, task, worker, out, crcs);
    for (size_t t = task.first; t < task.last; ++t) {
      const OutputTensor& tensor = file.tensors[t];
      TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> block,
                               worker.Read(tensor, task.begin, task.EndIn(tensor)));
      const uint64_t at = static_cast<uint64_t>(task.begin) * DTypeSize(tensor.dtype);
      TESSERA_RETURN_IF_ERROR(out.WriteAt(tensor.offset_bytes + at, block));
      if (file.finish != nullptr) crcs.push_back({ExtendZipCrc32(0, block), block.size()});
      progress_.Advance(block.size());
    }
    return absl::OkStatus();
  }

  // Tensors without anything between them are written at once.
  absl::Status WriteTogether(const OutputFile& file, const Task& task, Worker& worker,
                             WritableFile& out, std::vector<BlockCrc>& crcs) {
    const std::span tensors = std::span(file.tensors).subspan(task.first, task.last - task.first);
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> block, worker.ReadSpan(tensors));
    const uint64_t base = tensors.front().offset_bytes;
    uint64_t begin = base;
    for (size_t t = 0; t < tensors.size(); ++t) {
      const uint64_t from = tensors[t].offset_bytes, end = EndOf(tensors[t]);
      if (file.finish != nullptr) {
        crcs.push_back({ExtendZipCrc32(0, block.subspan(from - base, end - from)), end - from});
      }
      if (t + 1 < tensors.size() && tensors[t + 1].offset_bytes == end) continue;
      TESSERA_RETURN_IF_ERROR(out.WriteAt(begin, block.subspan(begin - base, end - begin)));
      progress_.Advance(end - begin);
      if (t + 1 < tensors.size()) begin = tensors[t + 1].offset_bytes;
    }
    return absl::OkStatus();
  }

  static std::vector<uint32_t> Crc32Of(const OutputFile& file, const std::vector<Task>& tasks,
                                       const std::vector<std::vector<BlockCrc>>& crcs) {
    std::vector<uint32_t> crc32(file.tensors.size());
    for (size_t i = 0; i < tasks.size(); ++i) {
      for (size_t k = 0; k < crcs[i].size(); ++k) {
        uint32_t& sum = crc32[tasks[i].first + k];
        sum = static_cast<uint32_t>(
            crc32_combine(sum, crcs[i][k].crc32, static_cast<z_off_t>(crcs[i][k].bytes)));
      }
    }
    return crc32;
  }

  Workers workers_;
  Storage& storage_;
  const std::string directory_;
  Progress progress_;
};

}  // namespace

std::vector<StoredPiece> RowMajorPieces(const Shape& shape, size_t element_bytes, int64_t begin,
                                        int64_t end) {
  std::vector<StoredPiece> pieces;
  uint64_t offset = 0;
  for (Box& box : FlatRangeToBoxes(WholeBox(shape), begin, end)) {
    StoredPiece piece = {.offset_bytes = offset, .strides = ContiguousStrides(box.shape)};
    offset += static_cast<uint64_t>(ElementCount(box.shape)) * element_bytes;
    piece.box = std::move(box);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

absl::StatusOr<DigestsByName> WriteOutput(const OutputSource& source,
                                          const std::vector<OutputFile>& files, Storage& storage,
                                          std::string_view directory,
                                          const OutputOptions& options) {
  uint64_t total_bytes = 0;
  for (const OutputFile& file : files) total_bytes += file.size_bytes;
  return Writer(source, storage, directory, options, total_bytes).Write(files);
}

}  // namespace tessera::ckpt::convert
