#include "convert/core/output.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/block_reader.h"
#include "layout/dtype.h"
#include "storage/aligned_buffer.h"
#include "zlib.h"

namespace tessera::ckpt::convert {
namespace {

constexpr int64_t kCopyBlockBytes = int64_t{8} << 20;
// Threads, each with a block that it reads, copies and digests, and one that is being written.
constexpr int kMaxWorkers = 3;
// For chunks of the source that neighbouring blocks share.
constexpr uint64_t kEndBytes = uint64_t{24} << 20;

uint64_t EndOf(const OutputTensor& tensor) {
  return tensor.offset_bytes + static_cast<uint64_t>(tensor.elements) * ElementSize(tensor.dtype);
}

// What one thread keeps from one block to the next.
class Worker {
 public:
  Worker(const Checkpoint& source, EdgeChunkCache& ends, bool allow_overflow)
      : reader_(source, ends, allow_overflow) {}

  // Reads elements [begin, end) of the tensor as they are in its file, and adds their digest. The
  // result is to be written with StartWrite(), and has the same offset within a page as its bytes
  // in the file, so that it is written without a copy.
  absl::StatusOr<std::span<std::byte>> Read(const OutputTensor& tensor, int64_t begin,
                                            int64_t end) {
    LogicalDigest& digest = digests_[tensor.name];
    if (begin == end) return std::span<std::byte>();
    const auto size = ElementSize(tensor.dtype);
    const auto bytes = static_cast<size_t>((end - begin) * size);
    const uint64_t skip =
        (tensor.offset_bytes + static_cast<uint64_t>(begin * size)) % kIoAlignmentBytes;
    TESSERA_RETURN_IF_ERROR(MakeRoom(skip + bytes));
    const std::span<std::byte> block = blocks_[now_].buffer.span().subspan(skip, bytes);
    TESSERA_RETURN_IF_ERROR(
        reader_.Read(tensor, PiecesOf(tensor, begin, end, block), block, digest));
    return block;
  }

  // Reads tensors that follow each other in their file, as above; the result is the bytes from the
  // first one's to the last one's, zero between them. Those that are read into place share one load
  // and thereby the checksum chunks that they have in common.
  absl::StatusOr<std::span<std::byte>> ReadSpan(std::span<const OutputTensor> tensors) {
    const uint64_t begin = tensors.front().offset_bytes;
    const uint64_t bytes = EndOf(tensors.back()) - begin, skip = begin % kIoAlignmentBytes;
    TESSERA_RETURN_IF_ERROR(MakeRoom(skip + bytes));
    const std::span<std::byte> block = blocks_[now_].buffer.span().subspan(skip, bytes);
    std::vector<BlockPart> together, alone;
    uint64_t end = begin;
    for (const OutputTensor& tensor : tensors) {
      std::ranges::fill(block.subspan(end - begin, tensor.offset_bytes - end), std::byte{0});
      end = EndOf(tensor);
      const std::span<std::byte> part =
          block.subspan(tensor.offset_bytes - begin, end - tensor.offset_bytes);
      LogicalDigest& digest = digests_[tensor.name];
      if (tensor.elements == 0) continue;
      std::vector<StoredPiece> pieces = PiecesOf(tensor, 0, tensor.elements, part);
      const bool in_place = std::ranges::all_of(
          pieces, [&](const StoredPiece& piece) { return IsRange(tensor.shape, piece); });
      (in_place && FitsInLoad(together, tensor) ? together : alone)
          .push_back({tensor, std::move(pieces), part, digest});
    }
    if (!together.empty()) TESSERA_RETURN_IF_ERROR(reader_.ReadTogether(together));
    for (const BlockPart& part : alone) {
      TESSERA_RETURN_IF_ERROR(reader_.Read(part.tensor, part.pieces, part.block, part.digest));
    }
    return block;
  }

  // Starts to write the block that was read last, which is not changed until the write has ended.
  void StartWrite(WritableFile& out, uint64_t offset_bytes, std::span<const std::byte> block) {
    blocks_[now_].write = out.StartWriteAt(offset_bytes, block, {});
  }

  // Waits for all writes.
  absl::Status FinishWrites() {
    absl::Status status = FinishWrite(blocks_[1 - now_]);
    status.Update(FinishWrite(blocks_[now_]));
    return status;
  }

  const DigestsByName& digests() const { return digests_; }

 private:
  struct Block {
    AlignedBuffer buffer;
    std::unique_ptr<PendingIo> write;  // null: nothing of it is being written
  };

  static absl::Status FinishWrite(Block& block) {
    const std::unique_ptr<PendingIo> write = std::move(block.write);
    return write != nullptr ? write->Wait() : absl::OkStatus();
  }

  // Switches to the other block once its write has ended.
  absl::Status MakeRoom(size_t bytes) {
    now_ = 1 - now_;
    TESSERA_RETURN_IF_ERROR(FinishWrite(blocks_[now_]));
    AlignedBuffer& buffer = blocks_[now_].buffer;
    if (buffer.size_bytes() >= bytes) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(buffer, AlignedBuffer::Allocate(bytes + kIoAlignmentBytes));
    return absl::OkStatus();
  }

  // Returns the pieces of elements [begin, end). Clears the block where it has padding.
  static std::vector<StoredPiece> PiecesOf(const OutputTensor& tensor, int64_t begin, int64_t end,
                                           std::span<std::byte> block) {
    std::vector<StoredPiece> pieces = tensor.pieces(begin, end);
    int64_t filled = 0;
    for (const StoredPiece& piece : pieces) filled += ElementCount(piece.box.shape);
    if (filled < end - begin) std::ranges::fill(block, std::byte{0});
    return pieces;
  }

  // Returns whether the tensor can be read in one load with the parts. Elements of one source must
  // not overlap: all of them must belong to one tensor.
  static bool FitsInLoad(const std::vector<BlockPart>& parts, const OutputTensor& tensor) {
    return std::ranges::all_of(parts, [&](const BlockPart& part) {
      return part.tensor.source_name != tensor.source_name ||
             (part.tensor.name == tensor.name && part.tensor.dtype == tensor.dtype);
    });
  }

  BlockReader reader_;
  std::array<Block, 2> blocks_;
  size_t now_ = 0;
  DigestsByName digests_;
};

// Threads with what they keep.
class Workers {
 public:
  Workers(const Checkpoint& source, const IoOptions& options) {
    const int count = std::clamp(options.io_threads, 1, kMaxWorkers);
    for (int w = 0; w < count; ++w) {
      workers_.push_back(std::make_unique<Worker>(source, ends_, options.allow_overflow));
    }
  }

  // Runs task(worker, i) for each i below `count`, and waits for the writes that it started.
  // Returns the error of the lowest i that failed.
  template <typename Task>
  absl::Status Run(size_t count, const Task& task) {
    Mutex mutex;
    size_t next = 0, failed = count;
    absl::Status error;
    const auto work = [&](int, size_t w) {
      const auto fail = [&](size_t i, absl::Status status) {
        const MutexLock lock(&mutex);
        if (status.ok() || i >= failed) return;
        failed = i;
        error = std::move(status);
      };
      size_t last = 0;
      while (true) {
        {
          const MutexLock lock(&mutex);
          if (next == count || failed < count) break;
          last = next++;
        }
        fail(last, task(*workers_[w], last));
      }
      fail(last, workers_[w]->FinishWrites());
      return absl::OkStatus();
    };
    const auto threads = static_cast<int>(workers_.size());
    TESSERA_RETURN_IF_ERROR(RunTasks(threads, workers_.size(), work));
    return error;
  }

  DigestsByName Digests() const {
    DigestsByName sums;
    for (const auto& worker : workers_) {
      for (const auto& [name, digest] : worker->digests()) sums[name] += digest;
    }
    return sums;
  }

 private:
  EdgeChunkCache ends_{kEndBytes};
  std::vector<std::unique_ptr<Worker>> workers_;
};

// Neighbours are written together, with zeros between them. So they must be in the file in this
// order, each behind the one before and all behind the header: else one would be overwritten.
absl::Status CheckOrder(const OutputFile& file) {
  uint64_t end = file.header.size();
  for (const OutputTensor& tensor : file.tensors) {
    if (tensor.offset_bytes < end || EndOf(tensor) > file.size_bytes) {
      return absl::InternalError(absl::StrCat(
          file.name, ": tensor ", tensor.name, " has bytes [", tensor.offset_bytes, ", ",
          EndOf(tensor), "), expected between ", end, ", the end of the bytes before it, and ",
          file.size_bytes, ", the end of the file"));
    }
    end = EndOf(tensor);
  }
  return absl::OkStatus();
}

// Tensors [first, last) of a list as a whole, or elements [begin, end) of one.
struct Task {
  size_t first = 0, last = 0;
  int64_t begin = 0, end = kWhole;

  static constexpr int64_t kWhole = -1;
};

// Returns how far tensors from `first` on are read and written as one span: after at least one
// tensor, and at most at `last`.
size_t EndOfSpan(const std::vector<OutputTensor>& tensors, size_t first, size_t last) {
  size_t end = first + 1;
  while (end < last && EndOf(tensors[end]) - tensors[first].offset_bytes <= kCopyBlockBytes) ++end;
  return end;
}

// Neighbours are one task up to the size of a block, and also where they are parts of one tensor,
// which a reader keeps whole.
std::vector<Task> CutIntoTasks(const std::vector<OutputTensor>& tensors) {
  std::vector<Task> tasks;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const OutputTensor& tensor = tensors[t];
    const auto size = ElementSize(tensor.dtype);
    const int64_t block = kCopyBlockBytes / size;
    const bool continues = t > 0 && tasks.back().end == Task::kWhole;
    if (tensor.elements > block) {
      for (int64_t begin = 0; begin < tensor.elements; begin += block) {
        tasks.push_back({t, t + 1, begin, std::min(tensor.elements, begin + block)});
      }
    } else if (continues && (EndOfSpan(tensors, tasks.back().first, t + 1) == t + 1 ||
                             (tensors[t - 1].source_name == tensor.source_name &&
                              ElementCount(tensor.shape) <= kWholeTensorBytes / size))) {
      tasks.back().last = t + 1;
    } else {
      tasks.push_back({.first = t, .last = t + 1});
    }
  }
  return tasks;
}

// The CRC-32 of a tensor's bytes, combined from its blocks.
struct BlockCrc {
  uint32_t crc32 = 0;
  uint64_t bytes = 0;
};

struct TaskResult {
  std::vector<BlockCrc> crcs;        // of each of its tensors; none if the file has no checksums
  std::vector<OutputBytes> outside;  // records outside of what the task has written
};

// Copies bytes of the file into the block that begins at this offset, as far as they lie in it.
void PlaceInBlock(std::vector<OutputBytes>& parts, uint64_t offset_bytes,
                  std::span<std::byte> block) {
  std::erase_if(parts, [&](const OutputBytes& part) {
    if (part.offset_bytes < offset_bytes ||
        part.offset_bytes + part.bytes.size() > offset_bytes + block.size()) {
      return false;
    }
    std::ranges::copy(std::as_bytes(std::span(part.bytes)),
                      block.begin() + static_cast<ptrdiff_t>(part.offset_bytes - offset_bytes));
    return true;
  });
}

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
  Writer(const Checkpoint& source, Storage& storage, std::string_view directory,
         const IoOptions& options, uint64_t total_bytes)
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
    TESSERA_RETURN_IF_ERROR(CheckOrder(file));
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> out,
                             storage_.Create(JoinPath(directory_, file.name), file.size_bytes));
    TESSERA_RETURN_IF_ERROR(out->WriteAt(0, std::as_bytes(std::span(file.header))));
    progress_.Add(file.header.size());
    const std::vector<Task> tasks = CutIntoTasks(file.tensors);
    std::vector<TaskResult> results(tasks.size());
    TESSERA_RETURN_IF_ERROR(workers_.Run(tasks.size(), [&](Worker& worker, size_t i) {
      return tasks[i].end == Task::kWhole ? WriteSpans(file, tasks[i], worker, *out, results[i])
                                          : WriteBlock(file, tasks[i], worker, *out, results[i]);
    }));
    TESSERA_RETURN_IF_ERROR(WriteRest(file, tasks, results, *out));
    TESSERA_RETURN_IF_ERROR(out->Sync());
    return out->Close();
  }

  // Returns whether the file has checksums of its tensors.
  static bool HasCrc32(const OutputFile& file) {
    return file.records != nullptr || file.finish != nullptr;
  }

  absl::Status WriteBlock(const OutputFile& file, const Task& task, Worker& worker,
                          WritableFile& out, TaskResult& result) {
    const OutputTensor& tensor = file.tensors[task.first];
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> block,
                             worker.Read(tensor, task.begin, task.end));
    const uint64_t at = static_cast<uint64_t>(task.begin) * ElementSize(tensor.dtype);
    if (HasCrc32(file)) result.crcs.push_back({ExtendZipCrc32(0, block), block.size()});
    worker.StartWrite(out, tensor.offset_bytes + at, block);
    progress_.Add(block.size());
    return absl::OkStatus();
  }

  absl::Status WriteSpans(const OutputFile& file, const Task& task, Worker& worker,
                          WritableFile& out, TaskResult& result) {
    for (size_t first = task.first; first < task.last;) {
      const size_t last = EndOfSpan(file.tensors, first, task.last);
      const std::span tensors = std::span(file.tensors).subspan(first, last - first);
      TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> block, worker.ReadSpan(tensors));
      const uint64_t begin = tensors.front().offset_bytes;
      for (size_t t = first; t < last && HasCrc32(file); ++t) {
        const OutputTensor& tensor = file.tensors[t];
        const std::span bytes =
            block.subspan(tensor.offset_bytes - begin, EndOf(tensor) - tensor.offset_bytes);
        result.crcs.push_back({ExtendZipCrc32(0, bytes), bytes.size()});
        if (file.records == nullptr) continue;
        std::vector<OutputBytes> records = file.records(t, result.crcs.back().crc32);
        PlaceInBlock(records, begin, block);
        std::ranges::move(records, std::back_inserter(result.outside));
      }
      worker.StartWrite(out, begin, block);
      progress_.Add(block.size());
      first = last;
    }
    return absl::OkStatus();
  }

  // Writes all bytes that are neither in a block nor in a span of tensors.
  absl::Status WriteRest(const OutputFile& file, const std::vector<Task>& tasks,
                         std::vector<TaskResult>& results, WritableFile& out) {
    const std::vector<uint32_t> crc32 = Crc32Of(file, tasks, results);
    std::vector<OutputBytes> rest;
    for (size_t i = 0; i < tasks.size(); ++i) {
      std::ranges::move(results[i].outside, std::back_inserter(rest));
      if (file.records == nullptr || tasks[i].begin != 0 || tasks[i].end == Task::kWhole) continue;
      std::ranges::move(file.records(tasks[i].first, crc32[tasks[i].first]),
                        std::back_inserter(rest));
    }
    if (file.finish != nullptr) std::ranges::move(file.finish(crc32), std::back_inserter(rest));
    for (const OutputBytes& bytes : Joined(std::move(rest))) {
      TESSERA_RETURN_IF_ERROR(
          out.WriteAt(bytes.offset_bytes, std::as_bytes(std::span(bytes.bytes))));
      progress_.Add(bytes.bytes.size());
    }
    return absl::OkStatus();
  }

  static std::vector<uint32_t> Crc32Of(const OutputFile& file, const std::vector<Task>& tasks,
                                       const std::vector<TaskResult>& results) {
    std::vector<uint32_t> crc32(file.tensors.size());
    for (size_t i = 0; i < tasks.size(); ++i) {
      for (size_t k = 0; k < results[i].crcs.size(); ++k) {
        const BlockCrc& block = results[i].crcs[k];
        uint32_t& sum = crc32[tasks[i].first + k];
        sum = static_cast<uint32_t>(
            crc32_combine(sum, block.crc32, static_cast<z_off_t>(block.bytes)));
      }
    }
    return crc32;
  }

  Workers workers_;
  Storage& storage_;
  const std::string directory_;
  ByteProgress progress_;
};

}  // namespace

std::function<std::vector<StoredPiece>(int64_t, int64_t)> RowMajorPieces(Shape shape, DType dtype) {
  return [box = WholeBox(shape), dtype](int64_t begin, int64_t end) {
    std::vector<StoredPiece> pieces;
    uint64_t offset = 0;
    for (const Box& part : FlatRangeToBoxes(box, begin, end)) {
      pieces.push_back(
          {.box = part, .offset_bytes = offset, .strides = ContiguousStrides(part.shape)});
      offset += ByteCount(part.shape, dtype);
    }
    return pieces;
  };
}

absl::StatusOr<DigestsByName> WriteOutput(const Checkpoint& source,
                                          const std::vector<OutputFile>& files, Storage& storage,
                                          std::string_view directory, const IoOptions& options) {
  uint64_t total_bytes = 0;
  for (const OutputFile& file : files) total_bytes += file.size_bytes;
  return Writer(source, storage, directory, options, total_bytes).Write(files);
}

}  // namespace tessera::ckpt::convert
