#include "storage/storage.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "storage/checks.h"

namespace tessera {
namespace {

constexpr char kTemporarySuffix[] = ".tmp-";

// Returns the length of the contents and 96 bits of hashes. Other contents have the same version
// only by chance; nothing guards against an adversary.
std::string VersionOf(std::string_view contents) {
  return absl::StrCat(contents.size(), "-", std::hash<std::string_view>()(contents), "-",
                      Crc32c(AsBytes(contents)));
}

}  // namespace

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

// Replacing a version in a storage with directories, where no single operation compares and
// replaces:
//
// 1. The writer makes a temporary file beside the old one, and then looks whether the old one still
//    has the version.
// 2. It renames its file over the old one. A rename can be late, if the writer stood still after 1.
// 3. It deletes all other temporary files, and then looks whether its own file is still there.
//
// Two writers that both found the version in 1 have both made their files before. The first one
// that reaches 3 deletes the other one's file, so that its rename fails; or the other one's rename
// was faster, and the first one finds that in 3. Writers that come to 1 later find another version.
// So exactly one of them succeeds, and what it wrote can be replaced only by writers that have read
// it.
absl::StatusOr<std::string> Storage::Write(std::string_view path, std::string_view contents,
                                           const WriteCondition& condition) {
  const bool replaces = !condition.version.empty();
  if (replaces && !Traits().replaces_versions) {
    return absl::UnimplementedError(
        absl::StrCat("Write ", Describe(path), ": files have no versions"));
  }
  // Two processes may write at the same time.
  const std::string temporary = absl::StrCat(View(path), kTemporarySuffix, RandomHex(8));
  const std::string version = VersionOf(contents);
  absl::Status status = WriteAll(*this, temporary, contents);
  if (status.ok() && condition.ready) status = condition.ready();
  if (status.ok() && replaces) status = CheckVersion(path, condition.version);
  if (status.ok()) status = replaces ? Replace(temporary, path) : Rename(temporary, path);
  // The temporary file is gone: another writer has deleted it, or the reply to the rename was lost.
  if (replaces && absl::IsNotFound(status)) status = CheckVersion(path, version);
  if (!status.ok()) {
    Delete(temporary).IgnoreError();
    return status;
  }
  TESSERA_RETURN_IF_ERROR(SyncDirectory(SplitPath(path).first));
  if (replaces) TESSERA_RETURN_IF_ERROR(KeepOthersOut(path, version));
  return version;
}

absl::StatusOr<VersionedContents> Storage::Read(std::string_view path, uint64_t max_bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::string contents, ReadAll(*this, path, max_bytes));
  std::string version = VersionOf(contents);
  return VersionedContents{.contents = std::move(contents), .version = std::move(version)};
}

// OK if the file has the version; Aborted if it has another one or is gone.
absl::Status Storage::CheckVersion(std::string_view path, std::string_view version) {
  const absl::StatusOr<std::string> there =
      ReadAll(*this, path, std::numeric_limits<uint64_t>::max());
  if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
  if (there.ok() && VersionOf(*there) == version) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("Write ", Describe(path), ": ",
                                         there.ok() ? "another version is there" : "it is gone"));
}

// Keeps writers that have found an older version from replacing this one. Aborted if one of them
// was faster.
absl::Status Storage::KeepOthersOut(std::string_view path, std::string_view version) {
  const auto [directory, name] = SplitPath(path);
  const std::string prefix = absl::StrCat(std::string(name), kTemporarySuffix);
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> names, List(directory));
  std::erase_if(names, [&](const std::string& other) { return !other.starts_with(prefix); });
  TESSERA_RETURN_IF_ERROR(DeleteFiles(directory, names));
  return CheckVersion(path, version);
}

absl::Status Storage::Replace(std::string_view from, std::string_view to) {
  return absl::UnimplementedError(
      absl::StrCat("Replace ", Describe(to), " by ", std::string(from), ": no file is replaced"));
}

absl::Status Storage::DeleteVersion(std::string_view path, std::string_view version) {
  // A storage that replaces no versions may have none, which is any.
  const absl::Status is_there = version.empty() ? absl::OkStatus() : CheckVersion(path, version);
  if (!is_there.ok()) return absl::IsAborted(is_there) ? absl::OkStatus() : is_there;
  const absl::Status deleted = Delete(path);
  return absl::IsNotFound(deleted) ? absl::OkStatus() : deleted;
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

absl::StatusOr<std::string> ReadAll(Storage& storage, std::string_view path, uint64_t max_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, storage.Open(path));
  const uint64_t size_bytes = file->size_bytes();
  if (size_bytes > max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(storage.Describe(path), ": file has ",
                                                     size_bytes, " bytes, at most ", max_bytes,
                                                     " are accepted"));
  }
  std::string contents(size_bytes, '\0');
  TESSERA_RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(contents))));
  return contents;
}

absl::Status WriteAll(Storage& storage, std::string_view path, std::string_view contents) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file,
                           storage.Create(path, contents.size()));
  TESSERA_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(contents)));
  TESSERA_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace tessera
