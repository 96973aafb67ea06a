#include "storage/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "storage/checks.h"

namespace tessera::internal {
namespace {

// Returns how many descriptors the open files may take.
size_t Limit() {
  constexpr rlim_t kLeast = 8;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLeast;
  return std::max(limit.rlim_cur / 2, kLeast);
}

}  // namespace

class OpenFiles::KeptFile final : public ReadableFile {
 public:
  KeptFile(OpenFiles& files, uint64_t size_bytes, size_t descriptors, Open reopen)
      : files_(files),
        size_bytes_(size_bytes),
        descriptors_(descriptors),
        reopen_(std::move(reopen)) {}
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
  size_t descriptors() const { return descriptors_; }

 private:
  OpenFiles& files_;
  const uint64_t size_bytes_;
  const size_t descriptors_;
  const Open reopen_;
};

OpenFiles& OpenFiles::OfProcess() {
  static auto* const files = new OpenFiles;  // which outlives every thread
  return *files;
}

std::unique_ptr<ReadableFile> OpenFiles::Keep(File opened, size_t descriptors, Open reopen) {
  auto kept =
      std::make_unique<KeptFile>(*this, opened->size_bytes(), descriptors, std::move(reopen));
  Add(kept.get(), std::move(opened));
  return kept;
}

void OpenFiles::Add(const KeptFile* kept, File file) {
  const size_t limit = Limit();
  List closed;
  const MutexLock lock(&mutex_);
  Take(kept, closed);  // what another thread has opened meanwhile
  open_.push_front({kept, std::move(file)});
  places_[kept] = open_.begin();
  descriptors_ += kept->descriptors();
  while (descriptors_ > limit) Take(open_.back().kept, closed);
}

absl::StatusOr<OpenFiles::File> OpenFiles::Find(const KeptFile* kept, const Open& reopen) {
  {
    const MutexLock lock(&mutex_);
    const auto found = places_.find(kept);
    if (found != places_.end()) {
      open_.splice(open_.begin(), open_, found->second);
      return open_.front().file;
    }
  }
  TESSERA_ASSIGN_OR_RETURN(File file, reopen());
  Add(kept, file);
  return file;
}

void OpenFiles::Remove(const KeptFile* kept) {
  List closed;
  const MutexLock lock(&mutex_);
  Take(kept, closed);
}

void OpenFiles::Take(const KeptFile* kept, List& closed) {
  const auto found = places_.find(kept);
  if (found == places_.end()) return;
  descriptors_ -= kept->descriptors();
  closed.splice(closed.end(), open_, found->second);
  places_.erase(found);
}

}  // namespace tessera::internal
