#include "storage/checked/checked_storage.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/errno_status.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "storage/checks.h"
#include "zlib.h"

namespace tessera {
namespace {

constexpr uint64_t kCheckBlockBytes = uint64_t{1} << 20;
constexpr size_t kMaxNameBytes = 200;  // of a record, in messages

// Bytes [begin, end) of a file.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};

absl::Status DamagedRecord(const StoredRecord& record, uint32_t found) {
  return absl::DataLossError(absl::StrFormat(
      "record %s of %d bytes at offset %d: its CRC-32 is %08x, expected %08x: the file is damaged",
      absl::CHexEscape(View(std::string_view(record.name).substr(0, kMaxNameBytes))),
      record.size_bytes, record.offset_bytes, found, record.crc32));
}

// Reads a record from its beginning to its end.
template <typename Block>
absl::Status ReadRecord(const ReadableFile& file, const StoredRecord& record, Block block) {
  std::vector<std::byte> buffer(std::min(record.size_bytes, kCheckBlockBytes));
  for (uint64_t at = 0; at < record.size_bytes; at += buffer.size()) {
    const std::span<std::byte> bytes =
        std::span(buffer).first(std::min<uint64_t>(buffer.size(), record.size_bytes - at));
    TESSERA_RETURN_IF_ERROR(file.ReadAt(record.offset_bytes + at, bytes));
    block(bytes);
  }
  return absl::OkStatus();
}

// A record and the checksums of the parts of it that have been read.
class RecordState {
 public:
  explicit RecordState(StoredRecord record) : record_(std::move(record)) {}

  const StoredRecord& record() const { return record_; }
  uint64_t end() const { return record_.offset_bytes + record_.size_bytes; }
  // Returns DataLoss if all of the record has been read and its checksum differs, else OK.
  absl::Status status() const {
    return is_complete_ && found_ != record_.crc32 ? DamagedRecord(record_, found_)
                                                   : absl::OkStatus();
  }

  // Returns the ranges in this one that have not been read.
  std::vector<Range> Missing(Range range) const {
    std::vector<Range> missing;
    if (is_complete_) return missing;
    auto part = parts_.upper_bound(range.begin);
    if (part != parts_.begin()) range.begin = std::max(range.begin, std::prev(part)->second.end);
    for (; part != parts_.end() && part->first < range.end; ++part) {
      if (part->first > range.begin) missing.push_back({range.begin, part->first});
      range.begin = part->second.end;
    }
    if (range.begin < range.end) missing.push_back(range);
    return missing;
  }

  // Precondition: all of the range is missing.
  void Add(const Range& range, uint32_t crc32) {
    auto part = parts_.emplace(range.begin, Part{range.end, crc32}).first;
    if (part != parts_.begin() && std::prev(part)->second.end == range.begin) {
      part = std::prev(part);
      Append(part);
    }
    const auto next = std::next(part);
    if (next != parts_.end() && next->first == part->second.end) Append(part);
    if (part->first != record_.offset_bytes || part->second.end != end()) return;
    is_complete_ = true;
    found_ = part->second.crc32;
    parts_.clear();
  }

 private:
  struct Part {
    uint64_t end;
    uint32_t crc32;
  };

  // Joins this part and the next one.
  void Append(std::map<uint64_t, Part>::iterator part) {
    const auto next = std::next(part);
    part->second.crc32 =
        static_cast<uint32_t>(crc32_combine(part->second.crc32, next->second.crc32,
                                            static_cast<z_off_t>(next->second.end - next->first)));
    part->second.end = next->second.end;
    parts_.erase(next);
  }

  const StoredRecord record_;
  std::map<uint64_t, Part> parts_;  // by their beginnings; disjoint
  bool is_complete_ = false;
  uint32_t found_ = 0;
};

}  // namespace

absl::Status CheckRecord(const ReadableFile& file, const StoredRecord& record) {
  uint32_t found = 0;
  TESSERA_RETURN_IF_ERROR(ReadRecord(file, record, [&](std::span<const std::byte> bytes) {
    found = ExtendZipCrc32(found, bytes);
  }));
  return found == record.crc32 ? absl::OkStatus() : DamagedRecord(record, found);
}

class CheckedStorage::FileRecords final : public StatedChecksums {
 public:
  void Add(StoredRecord record) override {
    const MutexLock lock(&mutex_);
    const uint64_t offset = record.offset_bytes;
    if (record.size_bytes > 0) records_.try_emplace(offset, std::move(record));
  }
  void AddUnchecked() override {
    const MutexLock lock(&mutex_);
    is_unchecked_ = true;
  }
  bool is_unchecked() const {
    const MutexLock lock(&mutex_);
    return is_unchecked_;
  }

  bool Contains(const Range& range) const {
    const MutexLock lock(&mutex_);
    const auto after = records_.upper_bound(range.begin);
    return after != records_.begin() && std::prev(after)->second.end() >= range.end;
  }

  std::vector<StoredRecord> All() const {
    const MutexLock lock(&mutex_);
    std::vector<StoredRecord> all;
    for (const auto& [unused, state] : records_) all.push_back(state.record());
    return all;
  }

  // Checks records against the bytes. Call with everything that is read.
  absl::Status Check(uint64_t offset, std::span<const std::byte> bytes) {
    const uint64_t end = offset + bytes.size();
    const auto part = [&](const Range& range) {
      return bytes.subspan(range.begin - offset, range.end - range.begin);
    };
    MutexLock lock(&mutex_);
    auto at = records_.upper_bound(offset);
    if (at != records_.begin()) --at;
    for (; at != records_.end() && at->first < end; ++at) {
      RecordState& state = at->second;
      const Range own = {std::max(offset, at->first), std::min(end, state.end())};
      if (own.begin >= own.end) continue;
      for (const Range& missing : state.Missing(own)) {
        lock.Unlock();
        const uint32_t crc32 = ExtendZipCrc32(0, part(missing));
        lock.Lock();
        // Another thread may have read some of it meanwhile.
        for (const Range& range : state.Missing(missing)) {
          const bool is_all = range.begin == missing.begin && range.end == missing.end;
          state.Add(range, is_all ? crc32 : ExtendZipCrc32(0, part(range)));
        }
      }
      TESSERA_RETURN_IF_ERROR(state.status());
    }
    return absl::OkStatus();
  }

 private:
  mutable Mutex mutex_;
  std::map<uint64_t, RecordState> records_ ABSL_GUARDED_BY(mutex_);  // by offset; none is erased
  bool is_unchecked_ ABSL_GUARDED_BY(mutex_) = false;
};

class CheckedStorage::File final : public ReadableFile {
 public:
  File(std::unique_ptr<ReadableFile> base, std::string name, std::shared_ptr<FileRecords> records)
      : base_(std::move(base)), name_(std::move(name)), records_(std::move(records)) {}

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    return Check(base_->ReadAt(offset_bytes, out), offset_bytes, out);
  }
  std::unique_ptr<PendingIo> StartReadAt(uint64_t offset_bytes, std::span<std::byte> out,
                                         bool original) const override {
    return WaitToDo(
        [this, offset_bytes, out, read = base_->StartReadAt(offset_bytes, out, original)] {
          return Check(read->Wait(), offset_bytes, out);
        });
  }
  size_t OffsetInPage(uint64_t offset_bytes) const override {
    return base_->OffsetInPage(offset_bytes);
  }
  uint64_t size_bytes() const override { return base_->size_bytes(); }
  StatedChecksums* stated_checksums() const override { return records_.get(); }

 private:
  absl::Status Check(const absl::Status& read, uint64_t offset_bytes,
                     std::span<const std::byte> bytes) const {
    TESSERA_RETURN_IF_ERROR(read);
    return In(name_, records_->Check(offset_bytes, bytes));
  }

  const std::unique_ptr<ReadableFile> base_;
  const std::string name_;
  const std::shared_ptr<FileRecords> records_;
};

CheckedStorage::CheckedStorage(std::shared_ptr<Storage> base, std::string file)
    : ReadOnlyStorage("files read with checksums are read-only"),
      base_(std::move(base)),
      file_(std::move(file)) {}

CheckedStorage::~CheckedStorage() = default;

absl::StatusOr<std::unique_ptr<ReadableFile>> CheckedStorage::Open(std::string_view path) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, base_->Open(path));
  const MutexLock lock(&mutex_);
  std::shared_ptr<FileRecords>& records = files_[std::string(path)];
  if (records == nullptr) records = std::make_shared<FileRecords>();
  return std::make_unique<File>(std::move(file), base_->Describe(path), records);
}

bool CheckedStorage::HasChecksum(const std::string& path, uint64_t begin, uint64_t end) const {
  const MutexLock lock(&mutex_);
  const auto file = files_.find(path);
  return file != files_.end() && file->second->Contains({begin, end});
}

std::vector<std::string> CheckedStorage::UncheckedFiles() const {
  const MutexLock lock(&mutex_);
  std::vector<std::string> paths;
  for (const auto& [path, records] : files_) {
    if (records->is_unchecked()) paths.push_back(path);
  }
  return paths;
}

std::vector<absl::Status> CheckedStorage::CheckOthers(const std::map<std::string, Ranges>& ranges) {
  std::map<std::string, std::shared_ptr<FileRecords>> files;
  {
    const MutexLock lock(&mutex_);
    files = files_;
  }
  std::vector<absl::Status> damaged;
  for (const auto& [path, records] : files) {
    const auto own = ranges.find(path);
    const Ranges others = own == ranges.end() ? Ranges() : own->second;
    std::unique_ptr<ReadableFile> file;
    for (const StoredRecord& record : records->All()) {
      const uint64_t end = record.offset_bytes + record.size_bytes;
      uint64_t reached = record.offset_bytes;
      for (auto range = others.lower_bound(reached);
           range != others.end() && range->first <= reached; ++range) {
        reached = std::max(reached, range->second);
      }
      if (reached >= end) continue;
      absl::Status status;
      if (file == nullptr) {
        absl::StatusOr<std::unique_ptr<ReadableFile>> opened = Open(path);
        status = opened.status();
        if (opened.ok()) file = *std::move(opened);
      }
      if (status.ok()) status = ReadRecord(*file, record, [](std::span<const std::byte>) {});
      if (!status.ok()) damaged.push_back(std::move(status));
    }
  }
  return damaged;
}

}  // namespace tessera
