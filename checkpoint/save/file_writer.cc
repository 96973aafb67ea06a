#include "checkpoint/save/file_writer.h"

#include <algorithm>

#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "checkpoint/directory/directory.h"

namespace tessera::ckpt {
namespace {

// The unit of copying, digesting and checksumming: well within the second-level cache. A multiple
// of every element size, as are all chunk sizes, so that no element crosses a boundary.
constexpr uint64_t kBlockBytes = 128 << 10;

// A range with more bytes than these that are not in place is copied as a whole.
constexpr uint64_t kMaxBetweenBytes = 1 << 20;

}  // namespace

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
  TraceSpan span("save", "copy and check");
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
  for (uint64_t block = begin; block < end; block += kBlockBytes) {
    contents_.CopyAndDigest(block, std::min(end, block + kBlockBytes), out + (block - begin),
                            digests, extend_checksums);
  }
}

void FileWriter::Check(uint64_t begin, uint64_t end, const std::byte* copy, Digests& digests) {
  const TraceSpan span("save", "check");
  for (uint64_t next; begin < end; begin = next) {
    uint32_t& crc = crcs_[begin / place_.chunk_bytes];
    next = std::min<uint64_t>(end, (begin / place_.chunk_bytes + 1) * place_.chunk_bytes);
    crc = contents_.Check(begin, next, copy, digests, crc);
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
