#include "checkpoint/storage/storage.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::ckpt {

bool Storage::IsLink(std::string_view /*path*/) { return false; }

std::optional<std::string> Storage::LocalPath(std::string_view /*path*/) const {
  return std::nullopt;
}

absl::StatusOr<uint64_t> Storage::FreeBytes() {
  return absl::UnimplementedError(absl::StrCat(Describe(""), ": free space is not known"));
}

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

}  // namespace tessera::ckpt
