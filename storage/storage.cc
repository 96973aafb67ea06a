#include "storage/storage.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "storage/checks.h"

namespace tessera {

std::unique_ptr<PendingIo> WritableFile::StartWriteAt(uint64_t offset_bytes,
                                                      std::span<const std::byte> data,
                                                      const ChunkChecksums& checksums) {
  return WaitToDo([this, offset_bytes, data, checksums] {
    return WriteCheckedAt(offset_bytes, data, checksums);
  });
}

std::unique_ptr<PendingIo> ReadableFile::StartReadAt(uint64_t offset_bytes,
                                                     std::span<std::byte> out,
                                                     bool original) const {
  return WaitToDo([this, offset_bytes, out, original] {
    return original ? ReadOriginalAt(offset_bytes, out) : ReadAt(offset_bytes, out);
  });
}

ChunkChecksums ChunkChecksums::From(uint64_t offset_bytes) const {
  if (chunk_bytes == 0 || offset_bytes % chunk_bytes != 0) return {};
  return {chunk_bytes,
          crc32c.subspan(std::min<uint64_t>(offset_bytes / chunk_bytes, crc32c.size()))};
}

std::optional<uint32_t> ChunkChecksums::OfRange(uint64_t offset_bytes, uint64_t size_bytes) const {
  if (chunk_bytes == 0 || offset_bytes % chunk_bytes != 0 || size_bytes % chunk_bytes != 0 ||
      (offset_bytes + size_bytes) / chunk_bytes > crc32c.size()) {
    return std::nullopt;
  }
  uint32_t crc = 0;
  for (const uint32_t next : crc32c.subspan(offset_bytes / chunk_bytes, size_bytes / chunk_bytes)) {
    crc = CombineCrc32c(crc, next, chunk_bytes);
  }
  return crc;
}

absl::StatusOr<std::string> Storage::Write(std::string_view path, std::string_view contents,
                                           const WriteCondition& condition) {
  if (!condition.version.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("Write ", Describe(path), ": files have no versions"));
  }
  // Two processes may be at it at the same time.
  const std::string temporary =
      absl::StrFormat("%s.tmp-%08x", std::string(path), std::random_device()());
  absl::Status status = WriteAll(*this, temporary, contents);
  if (status.ok() && condition.ready) status = condition.ready();
  if (status.ok()) status = Rename(temporary, path);
  if (!status.ok()) {
    Delete(temporary).IgnoreError();
    return status;
  }
  TESSERA_RETURN_IF_ERROR(SyncDirectory(SplitPath(path).first));
  return std::string();
}

absl::StatusOr<VersionedContents> Storage::Read(std::string_view path, uint64_t max_bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::string contents, ReadAll(*this, path, max_bytes));
  return VersionedContents{.contents = std::move(contents)};
}

absl::Status Storage::DeleteFiles(std::string_view directory,
                                  const std::vector<std::string>& names) {
  absl::Status first_error;
  for (const std::string& name : names) {
    const absl::Status deleted =
        Delete(absl::StrCat(std::string(directory), directory.empty() ? "" : "/", name));
    if (!absl::IsNotFound(deleted)) first_error.Update(deleted);
  }
  return first_error;
}

bool Storage::IsLink(std::string_view /*path*/) { return false; }

std::optional<std::string> Storage::LocalPath(std::string_view /*path*/) const {
  return std::nullopt;
}

absl::StatusOr<uint64_t> Storage::FreeBytes() {
  return absl::UnimplementedError(absl::StrCat(Describe(""), ": free space is not known"));
}

std::vector<uint32_t> Storage::ReadersOf(std::string_view /*path*/) const { return {}; }

absl::StatusOr<std::string> ReadAll(Storage& storage, std::string_view path, uint64_t max_bytes) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage.Open(path);
  if (!file.ok()) return file.status();
  const uint64_t size_bytes = (*file)->size_bytes();
  if (size_bytes > max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(storage.Describe(path), ": file has ",
                                                     size_bytes, " bytes, at most ", max_bytes,
                                                     " are accepted"));
  }
  std::string contents(size_bytes, '\0');
  absl::Status status = (*file)->ReadAt(0, std::as_writable_bytes(std::span<char>(contents)));
  if (!status.ok()) return status;
  return contents;
}

absl::Status WriteAll(Storage& storage, std::string_view path, std::string_view contents) {
  absl::StatusOr<std::unique_ptr<WritableFile>> file = storage.Create(path, contents.size());
  if (!file.ok()) return file.status();
  absl::Status status = (*file)->WriteAt(0, std::as_bytes(std::span<const char>(contents)));
  if (status.ok()) status = (*file)->Sync();
  if (!status.ok()) return status;
  return (*file)->Close();
}

}  // namespace tessera
