#include "storage/s3/s3_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/errno_status.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "storage/checks.h"

namespace tessera::s3 {
namespace {

// New memory costs more than filling it.
constexpr size_t kMaxIdleBuffers = 16;

// Fills the bytes of [0, size) that were not written with zeros.
void ZeroGaps(const WrittenRanges& written, uint64_t size, std::byte* data) {
  uint64_t at = 0;
  for (const auto& [begin, end] : written.ranges()) {
    std::fill(data + at, data + begin, std::byte{0});
    at = end;
  }
  if (at < size) std::fill(data + at, data + size, std::byte{0});
}

}  // namespace

uint64_t ChoosePartBytes(uint64_t part_bytes, uint64_t size_hint_bytes) {
  constexpr uint64_t kUnit = uint64_t{1} << 20;
  const uint64_t needed =
      RoundUp(CeilDivide(std::min(size_hint_bytes, kMaxObjectBytes), kMaxParts), kUnit);
  return std::max({part_bytes, needed, kMinPartBytes});
}

bool PartMemory::Take(uint64_t bytes) {
  const MutexLock lock(&mutex_);
  while (taken_bytes_ + bytes > limit_bytes_) {
    if (uploading_bytes_ == 0) return false;
    returned_.Wait(&mutex_);
  }
  taken_bytes_ += bytes;
  return true;
}

void PartMemory::BeginUpload(uint64_t bytes) {
  const MutexLock lock(&mutex_);
  uploading_bytes_ += bytes;
}

void PartMemory::EndUpload(uint64_t bytes) {
  const MutexLock lock(&mutex_);
  uploading_bytes_ -= bytes;
  taken_bytes_ -= bytes;
  returned_.NotifyAll();
}

void PartMemory::Return(uint64_t bytes) {
  const MutexLock lock(&mutex_);
  taken_bytes_ -= bytes;
  returned_.NotifyAll();
}

absl::StatusOr<AlignedBuffer> PartMemory::TakeBuffer(uint64_t bytes) {
  if (bytes == buffer_bytes_) {
    const MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      AlignedBuffer buffer = std::move(idle_.back());
      idle_.pop_back();
      return buffer;
    }
  }
  return AlignedBuffer::Allocate(bytes);
}

void PartMemory::ReturnBuffer(AlignedBuffer buffer) {
  if (buffer.size_bytes() != buffer_bytes_) return;
  const MutexLock lock(&mutex_);
  if (idle_.size() < kMaxIdleBuffers) idle_.push_back(std::move(buffer));
}

S3WritableFile::S3WritableFile(std::string name, std::string key, uint64_t part_bytes,
                               S3Client& client, PartMemory& memory)
    : name_(std::move(name)),
      key_(std::move(key)),
      part_bytes_(part_bytes),
      client_(client),
      memory_(memory) {}

S3WritableFile::~S3WritableFile() {
  const MutexLock lock(&mutex_);
  for (auto& [index, part] : parts_) Release(std::move(part));
  if (!upload_.has_value()) return;
  if (!made_) client_.AbortUpload(upload_->key, upload_->id).IgnoreError();
  client_.AbortTwins(*upload_);
}

void S3WritableFile::Release(Part part) {
  memory_.Return(part.taken_bytes);
  memory_.ReturnBuffer(std::move(part.buffer));
}

absl::Status S3WritableFile::CheckOpen(const char* operation) const {
  if (closed_) {
    return absl::FailedPreconditionError(
        absl::StrCat(operation, " ", name_, ": the file is closed"));
  }
  return Named(operation, name_, error_);
}

absl::Status S3WritableFile::CheckRange(uint64_t offset_bytes, uint64_t size_bytes) const {
  const uint64_t limit = std::min(kMaxParts * part_bytes_, kMaxObjectBytes);
  if (offset_bytes <= limit && size_bytes <= limit - offset_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("WriteAt ", name_, ": ", size_bytes, " bytes at offset ", offset_bytes,
                   " exceed the limit of ", limit, " bytes of a file in parts of ", part_bytes_));
}

absl::Status S3WritableFile::WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) {
  return WriteCheckedAt(offset_bytes, data, {});
}

absl::Status S3WritableFile::WriteCheckedAt(uint64_t offset_bytes, std::span<const std::byte> data,
                                            const ChunkChecksums& checksums) {
  {
    const MutexLock lock(&mutex_);
    TESSERA_RETURN_IF_ERROR(CheckOpen("WriteAt"));
    if (data.empty()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(CheckRange(offset_bytes, data.size()));
    if (made_) {
      return absl::FailedPreconditionError(
          absl::StrCat("WriteAt ", name_, ": an object does not change after Sync()"));
    }
    TESSERA_RETURN_IF_ERROR(claimed_.Claim(name_, offset_bytes, data.size()));
  }
  const auto fail = [this](const absl::Status& status) {
    const MutexLock lock(&mutex_);
    if (error_.ok()) error_ = status;
    return Named("WriteAt", name_, status);
  };
  ChunkChecksums rest = checksums;  // of `data`
  while (!data.empty()) {
    const uint64_t index = offset_bytes / part_bytes_, begin = offset_bytes % part_bytes_;
    uint64_t size = 0;
    if (begin == 0) {
      const absl::StatusOr<uint64_t> parts = WriteWholeParts(index, data, rest);
      if (!parts.ok()) return fail(parts.status());
      size = *parts * part_bytes_;
    }
    if (size == 0) {
      size = std::min<uint64_t>(data.size(), part_bytes_ - begin);
      const absl::Status status = WritePart(index, begin, data.first(size));
      if (!status.ok()) return fail(status);
    }
    offset_bytes += size;
    data = data.subspan(size);
    rest = rest.From(size);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> S3WritableFile::WriteWholeParts(uint64_t index,
                                                         std::span<const std::byte> data,
                                                         const ChunkChecksums& checksums) {
  std::vector<S3Client::PartBody> bodies;
  {
    const MutexLock lock(&mutex_);
    while (bodies.size() < kPartsAtOnce && (bodies.size() + 1) * part_bytes_ <= data.size()) {
      const uint64_t at = bodies.size() * part_bytes_, next = index + bodies.size();
      if (parts_.contains(next)) break;
      parts_[next].uploaded = true;
      bodies.push_back({.number = static_cast<int>(next) + 1,
                        .bytes = data.subspan(at, part_bytes_),
                        .crc32c = checksums.OfRange(at, part_bytes_)});
    }
  }
  if (!bodies.empty()) TESSERA_RETURN_IF_ERROR(Upload(bodies));
  return bodies.size();
}

absl::Status S3WritableFile::WritePart(uint64_t index, uint64_t begin,
                                       std::span<const std::byte> data) {
  TESSERA_ASSIGN_OR_RETURN(const bool complete, AddToPart(index, begin, data));
  return complete ? UploadBuffered(index, part_bytes_) : absl::OkStatus();
}

absl::StatusOr<bool> S3WritableFile::AddToPart(uint64_t index, uint64_t begin,
                                               std::span<const std::byte> data) {
  if (!memory_.Take(data.size())) {
    return absl::ResourceExhaustedError(absl::StrCat("parts that are not complete hold ",
                                                     HumanBytes(memory_.limit_bytes()),
                                                     ", the limit: writes are too scattered"));
  }
  std::byte* to = nullptr;
  {
    const MutexLock lock(&mutex_);
    Part& part = parts_[index];
    part.taken_bytes += data.size();
    if (part.buffer.data() == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(part.buffer, memory_.TakeBuffer(part_bytes_));
    }
    to = part.buffer.data() + begin;
  }
  // Other threads copy into other ranges meanwhile.
  std::ranges::copy(data, to);
  const MutexLock lock(&mutex_);
  Part& part = parts_[index];
  TESSERA_RETURN_IF_ERROR(part.written.Claim(name_, begin, data.size()));
  const auto [first, end] = *part.written.ranges().begin();
  part.uploaded = end - first == part_bytes_;
  return part.uploaded;
}

S3WritableFile::Part S3WritableFile::TakePart(uint64_t index, uint64_t size_bytes) {
  Part part;
  {
    const MutexLock lock(&mutex_);
    part = std::exchange(parts_[index], {.uploaded = true});
  }
  if (part.buffer.data() != nullptr) ZeroGaps(part.written, size_bytes, part.buffer.data());
  return part;
}

absl::Status S3WritableFile::SendPart(uint64_t index, uint64_t size_bytes, const SendBytes& send) {
  Part part = TakePart(index, size_bytes);
  memory_.BeginUpload(part.taken_bytes);
  const absl::Status status = send(part.buffer.span().first(size_bytes));
  memory_.EndUpload(part.taken_bytes);
  memory_.ReturnBuffer(std::move(part.buffer));
  return status;
}

absl::Status S3WritableFile::UploadBuffered(uint64_t index, uint64_t size_bytes) {
  return SendPart(index, size_bytes,
                  [&](std::span<const std::byte> bytes) { return UploadOne(index, bytes); });
}

absl::StatusOr<S3Client::Upload> S3WritableFile::StartedUpload() {
  const MutexLock start_lock(&start_mutex_);
  {
    const MutexLock lock(&mutex_);
    if (upload_.has_value()) return *upload_;
  }
  TESSERA_ASSIGN_OR_RETURN(S3Client::Upload upload, client_.CreateUpload(key_));
  const MutexLock lock(&mutex_);
  upload_ = std::move(upload);
  return *upload_;
}

absl::Status S3WritableFile::Upload(std::span<const S3Client::PartBody> bodies) {
  TESSERA_ASSIGN_OR_RETURN(const S3Client::Upload upload, StartedUpload());
  TESSERA_ASSIGN_OR_RETURN(const std::vector<UploadedPart> parts,
                           client_.UploadParts(upload, bodies));
  const MutexLock lock(&mutex_);
  uploaded_.insert(uploaded_.end(), parts.begin(), parts.end());
  return absl::OkStatus();
}

absl::Status S3WritableFile::UploadOne(uint64_t index, std::span<const std::byte> data) {
  const S3Client::PartBody body = {.number = static_cast<int>(index) + 1, .bytes = data};
  return Upload({&body, 1});
}

absl::Status S3WritableFile::Finish(const char* operation, bool close) {
  {
    const MutexLock lock(&mutex_);
    const absl::Status open = CheckOpen(operation);
    closed_ |= close;
    if (!open.ok() || made_) return open;
  }
  const absl::Status status = MakeObject();
  const MutexLock lock(&mutex_);
  made_ = status.ok();
  error_ = status;
  return Named(operation, name_, status);
}

absl::Status S3WritableFile::MakeObject() {
  uint64_t size_bytes = 0;
  bool has_upload = false;
  {
    const MutexLock lock(&mutex_);
    size_bytes = claimed_.end_bytes();
    has_upload = upload_.has_value();
  }
  if (!has_upload && size_bytes <= part_bytes_) return PutWhole(size_bytes);
  TESSERA_RETURN_IF_ERROR(UploadRest(size_bytes));
  std::vector<UploadedPart> uploaded;
  {
    const MutexLock lock(&mutex_);
    uploaded = uploaded_;
  }
  std::ranges::sort(uploaded, {}, &UploadedPart::number);
  TESSERA_ASSIGN_OR_RETURN(const S3Client::Upload upload, StartedUpload());
  return client_.CompleteUpload(upload, uploaded);
}

// Uploads parts that are not complete: the last one, and those with gaps or never written.
absl::Status S3WritableFile::UploadRest(uint64_t size_bytes) {
  for (uint64_t index = 0; index * part_bytes_ < size_bytes; ++index) {
    const uint64_t part_bytes = std::min(part_bytes_, size_bytes - index * part_bytes_);
    bool written = false;
    {
      const MutexLock lock(&mutex_);
      Part& part = parts_[index];
      if (part.uploaded) continue;
      written = part.buffer.data() != nullptr;
      part.uploaded = true;
    }
    const absl::Status status =
        written ? UploadBuffered(index, part_bytes)
                : UploadOne(index, std::vector<std::byte>(part_bytes, std::byte{0}));
    TESSERA_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status S3WritableFile::PutWhole(uint64_t size_bytes) {
  return SendPart(0, size_bytes,
                  [&](std::span<const std::byte> bytes) { return client_.Put(key_, bytes); });
}

S3ReadableFile::S3ReadableFile(std::string name, std::string key, S3Client::ObjectInfo info,
                               S3Client& client)
    : name_(std::move(name)), key_(std::move(key)), info_(std::move(info)), client_(client) {}

absl::Status S3ReadableFile::ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const {
  if (out.empty()) return absl::OkStatus();
  if (offset_bytes > info_.size_bytes || out.size() > info_.size_bytes - offset_bytes) {
    return ShortReadStatus(name_, offset_bytes, out.size(), info_.size_bytes);
  }
  const absl::Status status = client_.Get(key_, info_.etag, offset_bytes, out);
  if (status.ok()) return status;
  return WithMessage(status, absl::StrCat("ReadAt ", name_, ": ", out.size(), " bytes at offset ",
                                          offset_bytes, ": ", status.message()));
}

}  // namespace tessera::s3
