#include "checkpoint/elements/strided_read.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "storage/aligned_buffer.h"

namespace tessera::ckpt {
namespace {

// A covering range may hold this many times the wanted elements before smaller ranges are read.
constexpr int64_t kMaxAmplification = 4;

using Dims = std::span<const StridedDim>;

int64_t Count(Dims dims) {
  int64_t count = 1;
  for (const StridedDim& dim : dims) count *= dim.extent;
  return count;
}

// Returns the distance from the first element in the file to the end of the last one.
int64_t Span(Dims dims) {
  int64_t span = 1;
  for (const StridedDim& dim : dims) span += (dim.extent - 1) * dim.from_stride;
  return span;
}

// Orders dims by their stride in the file, largest first, and merges neighbours that are one dim
// both in the file and in memory.
std::vector<StridedDim> Normalize(std::vector<StridedDim> dims) {
  std::erase_if(dims, [](const StridedDim& dim) { return dim.extent == 1; });
  std::ranges::stable_sort(
      dims, [](const StridedDim& a, const StridedDim& b) { return a.from_stride > b.from_stride; });
  return MergeDims(dims);
}

// Buffers that a thread keeps from read to read, since filling new memory costs more than copying
// from it. At most kStridedBufferBytes and a page each, until the thread ends.
thread_local std::array<AlignedBuffer, 2> kept_buffers;

class StridedReader {
 public:
  StridedReader(const ReadableFile& file, size_t element_bytes)
      : file_(file),
        size_(static_cast<int64_t>(element_bytes)),
        buffers_(std::exchange(kept_buffers, {})) {}
  StridedReader(const StridedReader&) = delete;
  StridedReader& operator=(const StridedReader&) = delete;
  ~StridedReader() {
    last_.read.reset();
    kept_buffers = std::move(buffers_);
  }

  absl::Status ReadAll(Dims dims, uint64_t offset_bytes, std::byte* memory) {
    TESSERA_RETURN_IF_ERROR(Read(dims, offset_bytes, memory));
    return FinishLast();
  }

 private:
  absl::Status Read(Dims dims, uint64_t offset_bytes, std::byte* memory) {
    if (dims.empty() || (dims.size() == 1 && dims[0].from_stride == 1 && dims[0].to_stride == 1)) {
      return file_.ReadAt(offset_bytes, {memory, static_cast<size_t>(Count(dims) * size_)});
    }
    const StridedDim& outer = dims.front();
    const int64_t together = IndicesTogether(dims);
    std::vector<StridedDim> group(dims.begin(), dims.end());
    for (int64_t i = 0; i < outer.extent;) {
      const uint64_t at = offset_bytes + static_cast<uint64_t>(i * outer.from_stride * size_);
      std::byte* const to = memory + i * outer.to_stride * size_;
      if (together == 0) {
        TESSERA_RETURN_IF_ERROR(Read(dims.subspan(1), at, to));
        ++i;
        continue;
      }
      group.front().extent = std::min(together, outer.extent - i);
      TESSERA_RETURN_IF_ERROR(ReadCovering(group, at, to));
      i += group.front().extent;
    }
    return absl::OkStatus();
  }

  // Returns the number of indices of the outermost dim for which one covering range is read; 0 if
  // the inner dims are better read on their own.
  int64_t IndicesTogether(Dims dims) const {
    const StridedDim& outer = dims.front();
    const int64_t inner_span = Span(dims.subspan(1)), inner_count = Count(dims.subspan(1));
    const int64_t stride = std::max<int64_t>(outer.from_stride, 1);
    const bool dense =
        stride / kMaxAmplification <= inner_count && inner_span / kMaxAmplification <= inner_count;
    const int64_t limit = (dense ? kStridedBufferBytes : kSparseReadBytes) / size_;
    if (inner_span > limit) return 0;
    const int64_t together = 1 + (limit - inner_span) / stride;
    // One index at a time is left to the inner dims, which may be contiguous; there is always one.
    return together == 1 && outer.extent > 1 && dims.size() > 1 ? 0 : together;
  }

  // Starts to read a range, and copies from the one before meanwhile.
  absl::Status ReadCovering(Dims dims, uint64_t offset_bytes, std::byte* memory) {
    const auto bytes = static_cast<size_t>(Span(dims) * size_);
    const size_t place = file_.OffsetInPage(offset_bytes);
    AlignedBuffer& buffer = buffers_[next_];
    if (buffer.size_bytes() < place + bytes) {
      TESSERA_ASSIGN_OR_RETURN(buffer, AlignedBuffer::Allocate(bytes + kIoAlignmentBytes));
    }
    std::byte* const range = buffer.data() + place;
    Covering now = {{dims.begin(), dims.end()},
                    range,
                    memory,
                    file_.StartReadAt(offset_bytes, {range, bytes}, /*original=*/false)};
    TESSERA_RETURN_IF_ERROR(FinishLast());
    last_ = std::move(now);
    next_ = 1 - next_;
    return absl::OkStatus();
  }

  absl::Status FinishLast() {
    if (last_.read == nullptr) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(std::exchange(last_.read, nullptr)->Wait());
    CopyStrided(last_.dims, static_cast<size_t>(size_), last_.range, last_.memory);
    return absl::OkStatus();
  }

  struct Covering {
    std::vector<StridedDim> dims;
    const std::byte* range = nullptr;
    std::byte* memory = nullptr;
    std::unique_ptr<PendingIo> read;
  };

  const ReadableFile& file_;
  const int64_t size_;
  std::array<AlignedBuffer, 2> buffers_;
  size_t next_ = 0;  // the buffer that nothing is read into
  Covering last_;
};

}  // namespace

absl::Status ReadStrided(const ReadableFile& file, uint64_t offset_bytes,
                         std::vector<StridedDim> dims, size_t element_bytes, std::byte* memory) {
  if (Count(dims) == 0) return absl::OkStatus();
  return StridedReader(file, element_bytes)
      .ReadAll(Normalize(std::move(dims)), offset_bytes, memory);
}

}  // namespace tessera::ckpt
