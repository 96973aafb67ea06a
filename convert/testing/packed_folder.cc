#include "convert/testing/packed_folder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "storage/checks.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt::convert {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 20;
constexpr size_t kMaxParts = 200;
constexpr std::string_view kMark = "\n== ";

void Check(bool condition) {
  if (!condition) std::abort();
}

// A part without the mark, which is written into its file.
void AddPart(std::string_view part, std::map<std::string, std::string>& files) {
  const size_t end = std::min(part.find('\n'), part.size());
  const std::string_view line = part.substr(0, end);
  const std::string_view bytes = part.substr(std::min(end + 1, part.size()));
  const size_t space = line.rfind(' ');
  uint64_t offset = 0;
  if (space == line.npos) return;
  const std::string_view number = line.substr(space + 1);
  if (!absl::SimpleAtoi(View(number), &offset)) return;
  if (offset > kMaxFileBytes || bytes.size() > kMaxFileBytes - offset) return;
  const std::string name(line.substr(0, space));
  if (!CheckPath("Create", name, /*root_allowed=*/false).ok()) return;
  std::string& file = files[name];
  file.resize(std::max<size_t>(file.size(), offset + bytes.size()));
  std::ranges::copy(bytes, file.begin() + static_cast<std::ptrdiff_t>(offset));
}

// Nothing if the path is both a file's and a folder's.
void Write(Storage& storage, const std::string& name, const std::string& contents) {
  for (size_t at = name.find('/'); at != name.npos; at = name.find('/', at + 1)) {
    if (!storage.MakeDirectory(name.substr(0, at)).ok()) return;
  }
  auto file = storage.Create(name, contents.size());
  if (!file.ok()) return;
  Check((*file)->WriteAt(0, std::as_bytes(std::span(contents))).ok());
  Check((*file)->Close().ok());
}

void ReadFolder(ForeignStorage& storage, std::string_view folder) {
  const auto names = storage.List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string path = folder.empty() ? name : std::string(folder) + "/" + name;
    if (name.ends_with('/')) {
      ReadFolder(storage, path.substr(0, path.size() - 1));
      continue;
    }
    const auto file = storage.Open(path);
    Check(file.ok());
    if ((*file)->size_bytes() > kMaxFileBytes) continue;
    std::vector<std::byte> bytes((*file)->size_bytes());
    Check((*file)->ReadAt(0, bytes).ok());
  }
}

}  // namespace

std::shared_ptr<Storage> UnpackFolder(std::string_view packed) {
  std::map<std::string, std::string> files;
  const std::string_view first = kMark.substr(1);
  size_t parts = 0;
  size_t begin = packed.starts_with(first) ? first.size() : packed.npos;
  while (begin < packed.size() && ++parts <= kMaxParts) {
    const size_t end = std::min(packed.find(kMark, begin), packed.size());
    AddPart(packed.substr(begin, end - begin), files);
    begin = end + kMark.size();
  }
  return FolderOf(files);
}

std::shared_ptr<Storage> FolderOf(const std::map<std::string, std::string>& files) {
  auto storage = std::make_shared<MemoryStorage>();
  for (const auto& [name, contents] : files) Write(*storage, name, contents);
  return storage;
}

void ReadTensors(ForeignStorage& storage) { ReadFolder(storage, ""); }

absl::Status ReadPackedFolder(
    std::string_view packed,
    const std::function<absl::StatusOr<ForeignCheckpoint>(Storage&)>& read) {
  return ReadWholeFolder(UnpackFolder(packed), read);
}

absl::Status ReadWholeFolder(
    const std::shared_ptr<Storage>& storage,
    const std::function<absl::StatusOr<ForeignCheckpoint>(Storage&)>& read) {
  TESSERA_ASSIGN_OR_RETURN(ForeignCheckpoint checkpoint, read(*storage));
  TESSERA_ASSIGN_OR_RETURN(const auto presented,
                           ForeignStorage::Create(storage, std::move(checkpoint)));
  ReadTensors(*presented);
  return absl::OkStatus();
}

}  // namespace tessera::ckpt::convert
