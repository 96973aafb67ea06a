#include "convert/unpublished_folder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::ckpt::convert {
namespace {

class FileInMemory final : public ReadableFile {
 public:
  FileInMemory(std::string name, std::string contents)
      : name_(std::move(name)), contents_(std::move(contents)) {}

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (offset_bytes > contents_.size() || out.size() > contents_.size() - offset_bytes) {
      return absl::DataLossError(absl::StrCat(name_, ": ", out.size(), " bytes at offset ",
                                              offset_bytes, " of a file of ", contents_.size()));
    }
    if (!out.empty()) std::memcpy(out.data(), contents_.data() + offset_bytes, out.size());
    return absl::OkStatus();
  }
  uint64_t size_bytes() const override { return contents_.size(); }

 private:
  const std::string name_, contents_;
};

}  // namespace

UnpublishedFolder::UnpublishedFolder(std::shared_ptr<Storage> base,
                                     std::map<std::string, std::string> files)
    : ReadOnlyStorage("this view is read-only"), base_(std::move(base)), files_(std::move(files)) {}

absl::StatusOr<std::unique_ptr<ReadableFile>> UnpublishedFolder::Open(std::string_view path) {
  const auto file = files_.find(std::string(path));
  if (file == files_.end()) return base_->Open(path);
  return std::make_unique<FileInMemory>(Describe(path), file->second);
}

absl::StatusOr<std::vector<std::string>> UnpublishedFolder::List(std::string_view path) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> names, base_->List(path));
  if (!path.empty()) return names;
  for (const auto& [name, contents] : files_) names.push_back(name);
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string UnpublishedFolder::Describe(std::string_view path) const {
  return base_->Describe(path);
}

}  // namespace tessera::ckpt::convert
