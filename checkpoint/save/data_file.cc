#include "checkpoint/save/data_file.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/elements/digest_elements.h"
#include "checkpoint/format/pieces.h"
#include "checkpoint/plan/rank_states.h"
#include "checkpoint/plan/save_plan.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "layout/elements/copy_elements.h"

namespace tessera::ckpt {
namespace {

// Fewer bytes cost less to copy than a write of their own does.
constexpr uint64_t kLeastInPlaceBytes = uint64_t{64} << 10;

// A range with more bytes than these that are not in place is copied as a whole.
constexpr uint64_t kMaxBetweenBytes = 1 << 20;

}  // namespace

FileContents::Source FileContents::MakeSource(const WriteItem& item, const StateDict& state,
                                              size_t digest_slot) {
  const ShardedTensor& tensor = state.tensors[item.local_tensor()];
  const Shard& shard = tensor.shards[item.local_shard()];
  const Box box = ItemBox(item);
  const size_t element_bytes = ElementSize(DTypeOf(tensor));
  const std::vector<int64_t> origin(tensor.global_shape.size(), 0);
  return {.begin = item.file_offset(),
          .end = item.file_offset() + ElementCount(box.shape) * element_bytes,
          .element_bytes = element_bytes,
          .digest_slot = digest_slot,
          .data = static_cast<const std::byte*>(shard.data),
          .memory = BoxRuns(box, box, shard.box.global_offset, ShardStrides(shard)),
          .global = BoxRuns(box, box, origin, ContiguousStrides(tensor.global_shape)),
          .device = shard.device,
          .handle = shard.handle,
          .dtype = DTypeOf(tensor),
          .box = box,
          .origin = shard.box.global_offset};
}

absl::StatusOr<FileContents> FileContents::Make(const StateDict& state, const RankState& local,
                                                const FilePlan& plan, DigestSlots& slots) {
  FileContents file;
  file.index_ = plan.file_index();
  file.path_ = plan.path();
  file.size_bytes_ = plan.size_bytes();
  TESSERA_ASSIGN_OR_RETURN(file.header_, DataFileHeader(local, plan));
  for (const WriteItem& item : plan.items()) {
    const size_t slot = slots.try_emplace(item.manifest_tensor(), slots.size()).first->second;
    file.sources_.push_back(MakeSource(item, state, slot));
  }
  std::ranges::sort(file.sources_, {}, &Source::begin);
  return file;
}

std::span<const std::byte> FileContents::HeaderIn(uint64_t begin, uint64_t end) const {
  const auto header =
      std::as_bytes(std::span(header_)).first(std::min<uint64_t>(end, header_.size()));
  return header.subspan(std::min<uint64_t>(begin, header.size()));
}

void FileContents::CopySource(const Source& source, int64_t first, int64_t last, std::byte* to) {
  const int64_t size = source.element_bytes;
  source.memory.ForEach(first, last, [&](const BoxRuns::Run& run) {
    const StridedDim dim = {run.count, source.memory.run_stride(), 1};
    CopyStrided({&dim, 1}, size, source.data + run.strided_element * size,
                to + (run.outer_element - first) * size);
  });
}

void FileContents::Copy(uint64_t begin, uint64_t end, std::byte* out) const {
  std::ranges::copy(HeaderIn(begin, end), out);
  ForEachStored(sources_, begin, end, [&](const Source& source, int64_t first, int64_t last) {
    if (source.device != nullptr) return;
    const int64_t size = source.element_bytes;
    CopySource(source, first, last, out + (source.begin + first * size - begin));
  });
}

bool FileContents::OnDevice(uint64_t begin, uint64_t end) const {
  bool any = false;
  ForEachStored(sources_, begin, end,
                [&](const Source& source, int64_t, int64_t) { any |= source.device != nullptr; });
  return any;
}

absl::Status FileContents::StartCopy(uint64_t begin, uint64_t end, std::byte* out,
                                     DeviceCopies& copies) const {
  ForEachStored(sources_, begin, end, [&](const Source& source, int64_t first, int64_t last) {
    if (source.device == nullptr) return;
    copies.Add(source.device.get(), source.handle, source.origin,
               FlatRangeToBoxes(source.box, first, last),
               out + (source.begin + first * source.element_bytes - begin), source.dtype);
  });
  TESSERA_RETURN_IF_ERROR(copies.Start(DeviceMemory::Direction::kToHost));
  Copy(begin, end, out);
  return absl::OkStatus();
}

const std::byte* FileContents::InMemory(const Source& source, int64_t first, int64_t last) {
  const std::optional<int64_t> at = source.memory.Contiguous(first, last);
  return at ? source.data + *at * static_cast<int64_t>(source.element_bytes) : nullptr;
}

uint32_t FileContents::Checksum(uint64_t begin, uint64_t end, const std::byte* copy,
                                std::vector<LogicalDigest>& digests, uint32_t crc) const {
  crc = ExtendCrc32c(crc, HeaderIn(begin, end));
  std::vector<std::byte> packed;
  ForEachStored(sources_, begin, end, [&](const Source& source, int64_t first, int64_t last) {
    const int64_t size = source.element_bytes;
    const std::byte* from = copy != nullptr ? copy + (source.begin + first * size - begin)
                                            : InMemory(source, first, last);
    if (from == nullptr) {
      packed.resize((last - first) * size);
      CopySource(source, first, last, packed.data());
      from = packed.data();
    }
    digests[source.digest_slot] += ChecksumRuns(source.global, first, last, from, size, crc);
  });
  return crc;
}

void FileContents::CopyAndDigest(uint64_t begin, uint64_t end, std::byte* out,
                                 std::vector<LogicalDigest>& digests,
                                 const std::function<void(std::span<const std::byte>)>& fn) const {
  const std::span<const std::byte> header = HeaderIn(begin, end);
  std::ranges::copy(header, out);
  fn(header);
  ForEachStored(sources_, begin, end, [&](const Source& source, int64_t first, int64_t last) {
    const int64_t size = source.element_bytes;
    std::byte* const to = out + (source.begin + first * size - begin);
    const size_t size_bytes = (last - first) * size;
    LogicalDigest& digest = digests[source.digest_slot];
    if (const std::byte* const from = InMemory(source, first, last)) {
      digest += CopyAndDigestRuns(source.global, first, last, from, to, size);
      fn({from, size_bytes});
    } else {
      CopySource(source, first, last, to);
      digest += DigestRuns(source.global, first, last, to, size);
      fn({to, size_bytes});
    }
  });
}

// Returns the bytes in [begin, end) that lie in memory as they do in the file. A run is contiguous
// in memory; several tensors in one buffer can be one run.
std::vector<FileContents::Segment> FileContents::RunsInMemory(uint64_t begin, uint64_t end) const {
  std::vector<Segment> runs;
  ForEachStored(sources_, begin, end, [&](const Source& source, int64_t first, int64_t last) {
    const std::byte* const data = InMemory(source, first, last);
    if (data == nullptr) return;
    const Segment run = {source.begin + first * source.element_bytes,
                         source.begin + last * source.element_bytes, data};
    if (!runs.empty() && runs.back().end == run.begin &&
        runs.back().in_place + (run.begin - runs.back().begin) == data) {
      runs.back().end = run.end;
    } else {
      runs.push_back(run);
    }
  });
  return runs;
}

// Cuts at the whole blocks [first, last) in the middle of each run:
//
//   begin        run.begin  first                     last  run.end        end
//     |..............|########|#########################|######|............|
//     | assembled             | in place                | assembled         |
//
// An assembled segment takes more of the run if it would be too small for a write of its own.
std::vector<FileContents::Segment> FileContents::Segments(uint64_t begin, uint64_t end,
                                                          uint64_t alignment) const {
  if (alignment == 0) return {{begin, end, nullptr}};
  std::vector<Segment> segments;
  uint64_t at = begin;
  for (const Segment& run : RunsInMemory(begin, end)) {
    const uint64_t least_first = run.begin > at ? at + kLeastInPlaceBytes : at;
    const uint64_t first = RoundUp(std::max(run.begin, least_first), kIoAlignmentBytes);
    const uint64_t last = RoundDown(run.end, kIoAlignmentBytes);
    if (last < first + kLeastInPlaceBytes) continue;
    const std::byte* const data = run.in_place + (first - run.begin);
    if (reinterpret_cast<uintptr_t>(data) % alignment != 0) continue;
    if (at < first) segments.push_back({at, first, nullptr});
    segments.push_back({first, last, data});
    at = last;
  }
  if (at < end && !segments.empty() && end - at < kLeastInPlaceBytes) {
    Segment& before = segments.back();
    at -= std::min(before.end - before.begin, kLeastInPlaceBytes);
    before.end = at;
    if (before.begin == before.end) segments.pop_back();
  }
  if (at < end) segments.push_back({at, end, nullptr});
  return segments;
}

void FileContents::ForEachMemory(
    uint64_t begin, uint64_t end,
    const std::function<void(const std::byte*, const std::byte*)>& fn) const {
  ForEachStored(sources_, begin, end, [&](const Source& source, int64_t first, int64_t last) {
    const int64_t size = source.element_bytes;
    int64_t low = std::numeric_limits<int64_t>::max(), high = std::numeric_limits<int64_t>::min();
    source.memory.ForEach(first, last, [&](const BoxRuns::Run& run) {
      const int64_t back = run.strided_element + (run.count - 1) * source.memory.run_stride();
      low = std::min({low, run.strided_element, back});
      high = std::max({high, run.strided_element, back});
    });
    fn(source.data + low * size, source.data + (high + 1) * size);
  });
}

FileWriter::FileWriter(const Place& place, FileContents contents)
    : place_(place),
      contents_(std::move(contents)),
      path_(JoinPath(place.directory, contents_.path())),
      crcs_(CeilDivide(contents_.size_bytes(), uint64_t{place.chunk_bytes})) {}

bool FileWriter::IsInPlace(uint64_t begin, uint64_t end) const {
  if (contents_.OnDevice(begin, end)) return false;
  uint64_t between = 0;
  bool any = false;
  for (const auto& segment : contents_.Segments(begin, end, place_.in_place_alignment)) {
    if (segment.in_place != nullptr) any = true;
    if (segment.in_place == nullptr) between += segment.end - segment.begin;
  }
  return any && between <= kMaxBetweenBytes;
}

void FileWriter::Copy(uint64_t begin, uint64_t end, std::byte* out, Digests& digests) {
  TraceSpan span("save", "copy and checksum");
  span.Add("bytes", static_cast<int64_t>(end - begin));
  uint64_t at = begin;
  const auto extend_checksums = [&](std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const uint64_t chunk = at / place_.chunk_bytes;
      const uint64_t left = (chunk + 1) * place_.chunk_bytes - at;
      const std::span<const std::byte> next = bytes.first(std::min<uint64_t>(left, bytes.size()));
      crcs_[chunk] = ExtendCrc32c(crcs_[chunk], next);
      at += next.size();
      bytes = bytes.subspan(next.size());
    }
  };
  for (uint64_t block = begin; block < end; block += kDigestBlockBytes) {
    contents_.CopyAndDigest(block, std::min(end, block + kDigestBlockBytes), out + (block - begin),
                            digests, extend_checksums);
  }
}

void FileWriter::Checksum(uint64_t begin, uint64_t end, const std::byte* copy, Digests& digests) {
  const TraceSpan span("save", "checksum");
  for (uint64_t next; begin < end; begin = next) {
    uint32_t& crc = crcs_[begin / place_.chunk_bytes];
    next = std::min<uint64_t>(end, (begin / place_.chunk_bytes + 1) * place_.chunk_bytes);
    crc = contents_.Checksum(begin, next, copy, digests, crc);
    if (copy != nullptr) copy += next - begin;
  }
}

absl::Status FileWriter::Create() {
  std::call_once(created_, [&] {
    auto created = place_.storage.Create(path_, contents_.size_bytes());
    create_status_ = created.status();
    if (created.ok()) file_ = *std::move(created);
  });
  return create_status_;
}

absl::Status FileWriter::StartWriteOfCopy(uint64_t begin, uint64_t end, const std::byte* copy,
                                          Writes& writes) {
  TESSERA_RETURN_IF_ERROR(Create());
  const std::span crcs = std::span(crcs_).subspan(begin / place_.chunk_bytes);
  writes.push_back(file_->StartWriteAt(begin, {copy, end - begin}, {place_.chunk_bytes, crcs}));
  return absl::OkStatus();
}

// Writes the memory in place while the bytes between are collected.
absl::Status FileWriter::StartWriteInPlace(uint64_t begin, uint64_t end, AlignedBuffer& between,
                                           Writes& writes) {
  TESSERA_RETURN_IF_ERROR(Create());
  const std::vector<FileContents::Segment> segments =
      contents_.Segments(begin, end, place_.in_place_alignment);
  for (const FileContents::Segment& segment : segments) {
    if (segment.in_place == nullptr) continue;
    writes.push_back(
        file_->StartWriteAt(segment.begin, {segment.in_place, segment.end - segment.begin}, {}));
  }
  for (const FileContents::Segment& segment : segments) {
    if (segment.in_place != nullptr) continue;
    if (between.size_bytes() == 0) {
      TESSERA_ASSIGN_OR_RETURN(between, AlignedBuffer::Allocate(kMaxBetweenBytes));
    }
    contents_.Copy(segment.begin, segment.end, between.data());
    TESSERA_RETURN_IF_ERROR(
        file_->WriteAt(segment.begin, {between.data(), segment.end - segment.begin}));
  }
  return absl::OkStatus();
}

absl::Status FileWriter::Sync() {
  const TraceSpan span("save", "sync");
  TESSERA_RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

absl::Status FileWriter::CheckThere() const {
  return CheckDataFile(place_.storage, path_, contents_.size_bytes());
}

void FileWriter::AddTo(WriteReport& report) const {
  FileReport& file = *report.add_files();
  file.set_file_index(contents_.index());
  file.mutable_chunk_crc32c()->Add(crcs_.begin(), crcs_.end());
  report.set_bytes(report.bytes() + contents_.size_bytes());
}

}  // namespace tessera::ckpt
