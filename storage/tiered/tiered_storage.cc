#include "storage/tiered/tiered_storage.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/errno_status.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "storage/aligned_buffer.h"
#include "storage/checks.h"
#include "storage/written_ranges.h"

namespace tessera {
namespace {

constexpr uint64_t kMinUploadBlockBytes = 8 << 20;
constexpr uint64_t kChunkBytes = 1 << 20;  // of checksums that the writer has not computed

// A file that is written to the staging tier. Sync() uploads what was written since the last one,
// and compares it with the checksums of what was written.
class StagedFile final : public WritableFile {
 public:
  StagedFile(Storage& staging, std::string_view path, std::string name,
             std::unique_ptr<WritableFile> file, std::unique_ptr<WritableFile> remote,
             uint64_t upload_block_bytes)
      : staging_(staging),
        path_(path),
        name_(std::move(name)),
        file_(std::move(file)),
        remote_(std::move(remote)),
        upload_block_bytes_(upload_block_bytes) {}

  absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) override {
    return WriteCheckedAt(offset_bytes, data, {});
  }

  absl::Status WriteCheckedAt(uint64_t offset_bytes, std::span<const std::byte> data,
                              const ChunkChecksums& checksums) override {
    TESSERA_RETURN_IF_ERROR(Staged(file_->WriteAt(offset_bytes, data)));
    const uint64_t chunk_bytes = checksums.chunk_bytes > 0 ? checksums.chunk_bytes : kChunkBytes;
    Chunks chunks;
    for (uint64_t at = 0; at < data.size(); at += chunk_bytes) {
      const uint64_t size = std::min<uint64_t>(chunk_bytes, data.size() - at);
      const std::span<const uint32_t> known = checksums.From(at).crc32c;
      chunks[offset_bytes + at] = {offset_bytes + at + size,
                                   known.empty() ? Crc32c(data.subspan(at, size)) : known[0]};
    }
    const MutexLock lock(&mutex_);
    TESSERA_RETURN_IF_ERROR(written_.Claim(name_, offset_bytes, data.size()));
    chunks_.merge(chunks);
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    TESSERA_RETURN_IF_ERROR(UploadOnce());
    return remote_->Sync();
  }

  absl::Status Close() override {
    absl::Status status = UploadOnce();
    status.Update(Staged(file_->Close()));
    status.Update(remote_->Close());
    return status;
  }

 private:
  struct Chunk {
    uint64_t end = 0;
    uint32_t crc32c = 0;
  };
  using Chunks = std::map<uint64_t, Chunk>;  // by their beginnings

  // After an error, the remote file lacks what was to be uploaded.
  absl::Status UploadOnce() {
    if (failed_.ok()) failed_ = Upload();
    return failed_;
  }

  absl::Status Upload() {
    WrittenRanges written;
    Chunks chunks;
    {
      const MutexLock lock(&mutex_);
      std::swap(written, written_);
      std::swap(chunks, chunks_);
    }
    if (written.ranges().empty()) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> source, staging_.Open(path_));
    TESSERA_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(upload_block_bytes_));
    // Neighbours are uploaded in large blocks, whatever the size of the writes was.
    for (const auto& [begin, end] : written.ranges()) {
      TESSERA_RETURN_IF_ERROR(UploadRange(*source, begin, end, chunks, buffer.span()));
    }
    return absl::OkStatus();
  }

  // Uploads a range, which consists of whole chunks.
  absl::Status UploadRange(const ReadableFile& source, uint64_t begin, uint64_t end,
                           const Chunks& chunks, std::span<std::byte> buffer) {
    auto chunk = chunks.find(begin);
    uint32_t crc = 0;  // of what was read of the chunk
    while (begin < end) {
      const std::span<std::byte> block =
          buffer.first(std::min<uint64_t>(end - begin, buffer.size()));
      TESSERA_RETURN_IF_ERROR(Staged(source.ReadAt(begin, block)));
      // The remote file gets the checksums of chunks of one size from the block's beginning on.
      const uint64_t chunk_bytes = chunk->first == begin ? chunk->second.end - begin : 0;
      std::vector<uint32_t> known;
      for (uint64_t at = 0; at < block.size();) {
        const uint64_t size = std::min(block.size() - at, chunk->second.end - (begin + at));
        crc = ExtendCrc32c(crc, block.subspan(at, size));
        at += size;
        if (begin + at < chunk->second.end) break;
        if (crc != chunk->second.crc32c) return Damaged(chunk->first, chunk->second.end);
        if (at == (known.size() + 1) * chunk_bytes) known.push_back(crc);
        crc = 0;
        ++chunk;
      }
      TESSERA_RETURN_IF_ERROR(remote_->WriteCheckedAt(begin, block, {chunk_bytes, known}));
      begin += block.size();
    }
    return absl::OkStatus();
  }

  absl::Status Damaged(uint64_t begin, uint64_t end) const {
    return Staged(absl::DataLossError(absl::StrCat(staging_.Describe(path_), ": bytes [", begin,
                                                   ", ", end, ") are not what was written there")));
  }

  // Adds the remote file's name to an error of the staging tier.
  absl::Status Staged(const absl::Status& status) const {
    if (status.ok()) return status;
    return WithMessage(status, absl::StrCat(status.message(), " (to be uploaded to ", name_, ")"));
  }

  Storage& staging_;
  const std::string path_;
  const std::string name_;  // for messages
  const std::unique_ptr<WritableFile> file_;
  const std::unique_ptr<WritableFile> remote_;
  const uint64_t upload_block_bytes_;
  absl::Status failed_;  // of an upload
  Mutex mutex_;
  WrittenRanges written_ ABSL_GUARDED_BY(mutex_);  // and not yet uploaded
  Chunks chunks_ ABSL_GUARDED_BY(mutex_);          // of these ranges
};

// Reads a staged file, or the remote file if the staged one cannot be read.
class StagedCopy final : public ReadableFile {
 public:
  StagedCopy(std::unique_ptr<ReadableFile> staged, std::unique_ptr<ReadableFile> remote)
      : staged_(std::move(staged)), remote_(std::move(remote)) {}

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    return staged_->ReadAt(offset_bytes, out).ok() ? absl::OkStatus()
                                                   : remote_->ReadAt(offset_bytes, out);
  }
  absl::Status ReadOriginalAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    return remote_->ReadAt(offset_bytes, out);
  }
  uint64_t size_bytes() const override { return remote_->size_bytes(); }

 private:
  const std::unique_ptr<ReadableFile> staged_;
  const std::unique_ptr<ReadableFile> remote_;
};

}  // namespace

StorageTraits TieredStorage::Traits() {
  StorageTraits traits = remote_->Traits();
  const StorageTraits staging = staging_->Traits();
  traits.preferred_write_bytes = staging.preferred_write_bytes;
  traits.in_place_alignment_bytes = staging.in_place_alignment_bytes;
  return traits;
}

absl::StatusOr<std::unique_ptr<WritableFile>> TieredStorage::Create(std::string_view path,
                                                                    uint64_t size_hint_bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> remote,
                           remote_->Create(path, size_hint_bytes));
  // A copy of an older file of this name must not be taken for the new one.
  staging_->Delete(path).IgnoreError();
  if (has_room_ && !has_room_(size_hint_bytes)) return remote;
  if (!staging_->MakeDirectory(SplitPath(path).first).ok()) return remote;
  absl::StatusOr<std::unique_ptr<WritableFile>> file = staging_->Create(path, size_hint_bytes);
  if (!file.ok()) return remote;
  return std::make_unique<StagedFile>(
      *staging_, path, Describe(path), *std::move(file), std::move(remote),
      std::max(remote_->Traits().preferred_write_bytes, kMinUploadBlockBytes));
}

absl::StatusOr<std::unique_ptr<ReadableFile>> TieredStorage::Open(std::string_view path) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> remote, remote_->Open(path));
  absl::StatusOr<std::unique_ptr<ReadableFile>> staged = staging_->Open(path);
  if (!staged.ok() || (*staged)->size_bytes() != remote->size_bytes()) return remote;
  return std::make_unique<StagedCopy>(*std::move(staged), std::move(remote));
}

absl::Status TieredStorage::Rename(std::string_view from, std::string_view to) {
  TESSERA_RETURN_IF_ERROR(remote_->Rename(from, to));
  // Otherwise a later file of the old name would be read from this copy.
  staging_->DeleteTree(from).IgnoreError();
  return absl::OkStatus();
}

absl::StatusOr<std::string> TieredStorage::Write(std::string_view path, std::string_view contents,
                                                 const WriteCondition& condition) {
  // A copy of an older file, which may be as long, must not be taken for the new one.
  staging_->Delete(path).IgnoreError();
  return remote_->Write(path, contents, condition);
}

absl::Status TieredStorage::DeleteVersion(std::string_view path, std::string_view version) {
  staging_->Delete(path).IgnoreError();
  return remote_->DeleteVersion(path, version);
}

absl::Status TieredStorage::Delete(std::string_view path) {
  staging_->Delete(path).IgnoreError();
  return remote_->Delete(path);
}

absl::Status TieredStorage::DeleteFiles(std::string_view directory,
                                        const std::vector<std::string>& names) {
  staging_->DeleteFiles(directory, names).IgnoreError();
  return remote_->DeleteFiles(directory, names);
}

absl::Status TieredStorage::DeleteTree(std::string_view path) {
  staging_->DeleteTree(path).IgnoreError();
  return remote_->DeleteTree(path);
}

}  // namespace tessera
