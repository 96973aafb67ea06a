#include "checkpoint/convert/output.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/crc32c.h"
#include "base/mutex.h"
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

// Counts bytes for the caller's progress bar.
class Progress {
 public:
  Progress(const OutputOptions& options, uint64_t total) : options_(options), total_(total) {}

  void Advance(uint64_t bytes) {
    const MutexLock lock(&mutex_);
    done_ += bytes;
    if (options_.progress) options_.progress(done_, total_);
  }

 private:
  const OutputOptions& options_;
  const uint64_t total_;
  Mutex mutex_;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
};

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
    if (buffer_.size_bytes() < skip + bytes) {
      TESSERA_ASSIGN_OR_RETURN(buffer_, AlignedBuffer::Allocate(bytes + kIoAlignmentBytes));
    }
    const std::span<std::byte> block = buffer_.span().subspan(skip, bytes);
    const std::vector<StoredPiece> pieces = tensor.pieces(begin, end);
    int64_t filled = 0;
    for (const StoredPiece& piece : pieces) filled += ElementCount(piece.box.shape);
    if (filled < end - begin) std::ranges::fill(block, std::byte{0});
    TESSERA_RETURN_IF_ERROR(reader_.Read(tensor, pieces, block, digest));
    return block;
  }

  const DigestsByName& digests() const { return digests_; }

 private:
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

  static constexpr int64_t kWhole = -1;
  int64_t EndIn(const OutputTensor& tensor) const { return end == kWhole ? tensor.elements : end; }
};

// Neighbours that are parts of one tensor, which a reader keeps whole, are one task.
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
    } else if (t > 0 && tasks.back().end == Task::kWhole &&
               tensors[t - 1].source_name == tensor.source_name &&
               ElementCount(tensor.shape) <= kWholeTensorBytes / size) {
      tasks.back().last = t + 1;
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
        progress_(options, total_bytes) {}

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

absl::StatusOr<DigestsByName> ReadDigests(const OutputSource& source,
                                          const OutputOptions& options) {
  uint64_t total_bytes = 0;
  for (const DataFile& file : source.manifest.files()) total_bytes += file.size_bytes();
  std::vector<OutputTensor> tensors;
  for (const LogicalTensor& logical : source.manifest.tensors()) {
    if (!logical.alias_of().empty()) continue;
    OutputTensor& tensor = tensors.emplace_back(OutputTensor{.name = logical.name(),
                                                             .source_name = logical.name(),
                                                             .role = logical.role(),
                                                             .dtype = logical.dtype(),
                                                             .shape = GlobalShape(logical)});
    tensor.elements = ElementCount(tensor.shape);
    tensor.pieces = [shape = tensor.shape, size = DTypeSize(tensor.dtype)](int64_t begin,
                                                                           int64_t end) {
      return RowMajorPieces(shape, size, begin, end);
    };
  }
  Workers workers(source, options);
  Progress progress(options, total_bytes);
  const std::vector<Task> tasks = CutIntoTasks(tensors);
  TESSERA_RETURN_IF_ERROR(workers.Run(tasks.size(), [&](Worker& worker, size_t i) {
    const OutputTensor& tensor = tensors[tasks[i].first];
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> block,
                             worker.Read(tensor, tasks[i].begin, tasks[i].EndIn(tensor)));
    progress.Advance(block.size());
    return absl::OkStatus();
  }));
  DigestsByName digests = workers.Digests();
  for (const LogicalTensor& logical : source.manifest.tensors()) {
    if (!logical.alias_of().empty()) digests[logical.name()] = digests[logical.alias_of()];
  }
  return digests;
}

}  // namespace tessera::ckpt::convert
