#include "checkpoint/storage/upload/upload_storage.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "checkpoint/storage/aligned_buffer.h"
#include "checkpoint/storage/upload/staging_folder.h"

namespace tessera::ckpt {
namespace {

constexpr uint64_t kUploadBlockBytes = 8 << 20;

std::string_view ParentOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? std::string_view() : path.substr(0, slash);
}

// Written nearby; Sync() uploads what was written since the last one.
class UploadedFile final : public WritableFile {
 public:
  UploadedFile(Storage& nearby, std::string_view path, std::string name,
               std::unique_ptr<WritableFile> file, std::unique_ptr<WritableFile> remote)
      : nearby_(nearby),
        path_(path),
        name_(std::move(name)),
        file_(std::move(file)),
        remote_(std::move(remote)) {}

  absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) override {
    TESSERA_RETURN_IF_ERROR(Nearby(file_->WriteAt(offset_bytes, data)));
    const MutexLock lock(&mutex_);
    uint64_t& end = ends_[offset_bytes];  // 0, or that of a longer write at the same place
    end = std::max(end, offset_bytes + data.size());
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    TESSERA_RETURN_IF_ERROR(Upload());
    return remote_->Sync();
  }

  absl::Status Close() override {
    absl::Status status = Upload();
    status.Update(Nearby(file_->Close()));
    status.Update(remote_->Close());
    return status;
  }

 private:
  using Ranges = std::map<uint64_t, uint64_t>;  // begin -> end

  absl::Status Upload() {
    Ranges written;
    {
      const MutexLock lock(&mutex_);
      written.swap(ends_);
    }
    if (written.empty()) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> source, nearby_.Open(path_));
    TESSERA_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(kUploadBlockBytes));
    auto range = written.begin();
    while (range != written.end()) {
      // Neighbours are uploaded in large blocks, whatever the size of the writes was.
      const uint64_t begin = range->first;
      uint64_t end = range->second;
      while (++range != written.end() && range->first <= end) end = std::max(end, range->second);
      TESSERA_RETURN_IF_ERROR(UploadRange(*source, begin, end, buffer.span()));
    }
    return absl::OkStatus();
  }

  absl::Status UploadRange(const ReadableFile& source, uint64_t begin, uint64_t end,
                           std::span<std::byte> buffer) {
    while (begin < end) {
      const std::span<std::byte> block =
          buffer.first(std::min<uint64_t>(end - begin, buffer.size()));
      TESSERA_RETURN_IF_ERROR(Nearby(source.ReadAt(begin, block)));
      TESSERA_RETURN_IF_ERROR(remote_->WriteAt(begin, block));
      begin += block.size();
    }
    return absl::OkStatus();
  }

  // Adds the file's own name to an error of its copy.
  absl::Status Nearby(const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), " (to be uploaded to ", name_, ")"));
  }

  Storage& nearby_;
  const std::string path_;
  const std::string name_;  // for messages
  const std::unique_ptr<WritableFile> file_;
  const std::unique_ptr<WritableFile> remote_;
  Mutex mutex_;
  Ranges ends_ ABSL_GUARDED_BY(mutex_);  // of writes that are not uploaded
};

// A nearby copy, with the remote file for what cannot be read of it.
class NearbyFile final : public ReadableFile {
 public:
  NearbyFile(std::unique_ptr<ReadableFile> nearby, std::unique_ptr<ReadableFile> remote)
      : nearby_(std::move(nearby)), remote_(std::move(remote)) {}

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    return nearby_->ReadAt(offset_bytes, out).ok() ? absl::OkStatus()
                                                   : remote_->ReadAt(offset_bytes, out);
  }
  absl::Status ReadOriginalAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    return remote_->ReadAt(offset_bytes, out);
  }
  uint64_t size_bytes() const override { return remote_->size_bytes(); }

 private:
  const std::unique_ptr<ReadableFile> nearby_;
  const std::unique_ptr<ReadableFile> remote_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WritableFile>> UploadStorage::Create(std::string_view path,
                                                                    uint64_t size_hint_bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> remote,
                           remote_->Create(path, size_hint_bytes));
  // A copy of an older file of this name must not be taken for the new one.
  nearby_->Delete(path).IgnoreError();
  if (has_room_ && !has_room_(size_hint_bytes)) return remote;
  if (!nearby_->MakeDirectory(ParentOf(path)).ok()) return remote;
  absl::StatusOr<std::unique_ptr<WritableFile>> file = nearby_->Create(path, size_hint_bytes);
  if (!file.ok()) return remote;
  return std::make_unique<UploadedFile>(*nearby_, path, Describe(path), *std::move(file),
                                        std::move(remote));
}

absl::StatusOr<std::unique_ptr<ReadableFile>> UploadStorage::Open(std::string_view path) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> remote, remote_->Open(path));
  absl::StatusOr<std::unique_ptr<ReadableFile>> nearby = nearby_->Open(path);
  if (!nearby.ok() || (*nearby)->size_bytes() != remote->size_bytes()) return remote;
  return std::make_unique<NearbyFile>(*std::move(nearby), std::move(remote));
}

absl::Status UploadStorage::Rename(std::string_view from, std::string_view to) {
  TESSERA_RETURN_IF_ERROR(remote_->Rename(from, to));
  // A copy under the old name would be found again by a later file of that name.
  nearby_->DeleteTree(from).IgnoreError();
  return absl::OkStatus();
}

absl::Status UploadStorage::Publish(std::string_view path, std::string_view contents,
                                    const std::function<absl::Status()>& ready) {
  return remote_->Publish(path, contents, ready);
}

absl::Status UploadStorage::MakeDirectory(std::string_view path) {
  return remote_->MakeDirectory(path);
}

absl::Status UploadStorage::SyncDirectory(std::string_view path) {
  return remote_->SyncDirectory(path);
}

absl::StatusOr<std::vector<std::string>> UploadStorage::List(std::string_view path) {
  return remote_->List(path);
}

absl::Status UploadStorage::Delete(std::string_view path) {
  nearby_->Delete(path).IgnoreError();
  return remote_->Delete(path);
}

absl::Status UploadStorage::DeleteFiles(std::string_view directory,
                                        const std::vector<std::string>& names) {
  nearby_->DeleteFiles(directory, names).IgnoreError();
  return remote_->DeleteFiles(directory, names);
}

absl::Status UploadStorage::DeleteTree(std::string_view path) {
  nearby_->DeleteTree(path).IgnoreError();
  return remote_->DeleteTree(path);
}

absl::Status UploadStorage::ForgetAllBut(std::string_view kept) {
  KeepStagingMarker(*nearby_);
  return ForgetBelow("", kept);
}

absl::Status UploadStorage::ForgetBelow(const std::string& directory, std::string_view kept) {
  absl::StatusOr<std::vector<std::string>> names = nearby_->List(directory);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(names.status());
  absl::Status first_error;
  for (std::string_view name : *names) {
    const bool is_directory = name.ends_with('/');
    if (is_directory) name.remove_suffix(1);
    const std::string path = absl::StrCat(directory, directory.empty() ? "" : "/",
                                          absl::string_view(name.data(), name.size()));
    absl::Status status;
    if (path == kept || path == kStagingMarker) {
      continue;
    } else if (is_directory && kept.starts_with(path + "/")) {
      status = ForgetBelow(path, kept);
    } else {
      status = nearby_->DeleteTree(path);
    }
    // Another process of this machine may have been faster.
    if (!absl::IsNotFound(status)) first_error.Update(status);
  }
  return first_error;
}

}  // namespace tessera::ckpt
