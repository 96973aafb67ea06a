#include "storage/checks.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/no_space.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace tessera {
namespace {

constexpr size_t kMaxPathBytes = 4095;
constexpr size_t kMaxComponentBytes = 255;

absl::Status Refuse(std::string_view operation, std::string_view path, const char* reason) {
  // Escaped and truncated: a bad path may contain any bytes and have any length.
  const std::string shown = absl::CHexEscape(std::string(path.substr(0, 200)));
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(operation), " \"", shown, "\": ", reason));
}

}  // namespace

absl::Status CheckPath(std::string_view operation, std::string_view path, bool root_allowed) {
  if (path.empty()) {
    return root_allowed ? absl::OkStatus() : Refuse(operation, path, "the path is empty");
  }
  if (path.size() > kMaxPathBytes) return Refuse(operation, path, "the path is too long");
  if (path.find('\0') != std::string_view::npos) {
    return Refuse(operation, path, "the path contains a NUL");
  }
  if (path.front() == '/') return Refuse(operation, path, "the path is absolute");
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view component = path.substr(begin, end - begin);
    if (component.empty()) return Refuse(operation, path, "the path has an empty component");
    if (component == "." || component == "..") {
      return Refuse(operation, path, "the path has a \".\" or \"..\" component");
    }
    if (component.size() > kMaxComponentBytes) {
      return Refuse(operation, path, "the path has a component of more than 255 bytes");
    }
    begin = end + 1;
  }
  return absl::OkStatus();
}

std::pair<std::string_view, std::string_view> SplitPath(std::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return {std::string_view(), path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

absl::Status ShortReadStatus(const std::string& name, uint64_t offset_bytes,
                             uint64_t expected_bytes, uint64_t file_bytes) {
  const uint64_t found_bytes =
      offset_bytes < file_bytes ? std::min(expected_bytes, file_bytes - offset_bytes) : 0;
  return absl::DataLossError(absl::StrCat("ReadAt ", name, ": expected ", expected_bytes,
                                          " bytes at offset ", offset_bytes, ", found ",
                                          found_bytes, ": the file ends at ", file_bytes));
}

absl::Status CheckRoom(Storage& storage, std::string_view root, std::string_view what,
                       uint64_t needed_bytes) {
  const absl::StatusOr<uint64_t> free = storage.FreeBytes();
  if (absl::IsUnimplemented(free.status())) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(free.status());
  if (*free >= needed_bytes) return absl::OkStatus();
  return NoSpaceError(absl::StrCat(std::string(what), " needs ", needed_bytes, " bytes (",
                                   HumanBytes(needed_bytes), ") but ", storage.Describe(root),
                                   " has ", *free, " (", HumanBytes(*free), ") left"));
}

absl::StatusOr<std::vector<std::string>> ListIfThere(Storage& storage, std::string_view directory) {
  absl::StatusOr<std::vector<std::string>> names = storage.List(directory);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  return names;
}

uint64_t BytesBelow(Storage& storage, const std::string& directory) {
  uint64_t bytes = 0;
  for (const std::string& name :
       ListIfThere(storage, directory).value_or(std::vector<std::string>())) {
    const auto file = storage.Open(directory.empty() ? name : absl::StrCat(directory, "/", name));
    if (file.ok()) bytes += (*file)->size_bytes();
  }
  return bytes;
}

}  // namespace tessera
