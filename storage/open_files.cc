#include "storage/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "storage/checks.h"

namespace tessera::internal {
namespace {

// Returns how many files stay open. Each takes up to two descriptors, so that a quarter of those
// that the process may have are taken.
size_t Limit() {
  constexpr rlim_t kLeast = 4, kMost = 1024;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLeast;
  return std::clamp(limit.rlim_cur / 8, kLeast, kMost);
}

}  // namespace

class OpenFiles::KeptFile final : public ReadableFile {
 public:
  KeptFile(OpenFiles& files, uint64_t size_bytes, Open reopen)
      : files_(files), size_bytes_(size_bytes), reopen_(std::move(reopen)) {}
  ~KeptFile() override { files_.Remove(this); }

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    TESSERA_ASSIGN_OR_RETURN(const File file, files_.Find(this, reopen_));
    return file->ReadAt(offset_bytes, out);
  }

  // The file stays open until the transfer has ended.
  std::unique_ptr<PendingIo> StartReadAt(uint64_t offset_bytes, std::span<std::byte> out,
                                         bool original) const override {
    const absl::StatusOr<File> file = files_.Find(this, reopen_);
    if (!file.ok()) return WaitToDo([status = file.status()] { return status; });
    return WaitToDo([file = *file, io = (*file)->StartReadAt(offset_bytes, out, original)] {
      return io->Wait();
    });
  }

  uint64_t size_bytes() const override { return size_bytes_; }

 private:
  OpenFiles& files_;
  const uint64_t size_bytes_;
  const Open reopen_;
};

std::unique_ptr<ReadableFile> OpenFiles::Keep(File opened, Open reopen) {
  auto kept = std::make_unique<KeptFile>(*this, opened->size_bytes(), std::move(reopen));
  Add(kept.get(), std::move(opened));
  return kept;
}

void OpenFiles::Add(const KeptFile* kept, File file) {
  const size_t limit = Limit();
  const MutexLock lock(&mutex_);
  open_[kept] = {std::move(file), ++now_};
  while (open_.size() > limit) {
    open_.erase(std::ranges::min_element(open_, {}, [](const auto& one) { return one.second.at; }));
  }
}

absl::StatusOr<OpenFiles::File> OpenFiles::Find(const KeptFile* kept, const Open& reopen) {
  {
    const MutexLock lock(&mutex_);
    const auto found = open_.find(kept);
    if (found != open_.end()) {
      found->second.at = ++now_;
      return found->second.file;
    }
  }
  TESSERA_ASSIGN_OR_RETURN(File file, reopen());
  Add(kept, file);
  return file;
}

void OpenFiles::Remove(const KeptFile* kept) {
  const MutexLock lock(&mutex_);
  open_.erase(kept);
}

}  // namespace tessera::internal
