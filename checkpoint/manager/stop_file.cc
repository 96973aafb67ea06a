#include "checkpoint/manager/stop_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/errno_status.h"
#include "base/file_in_folder.h"
#include "base/files.h"
#include "base/mutex.h"
#include "base/no_memory.h"
#include "base/scoped_fd.h"
#include "base/text.h"
#include "base/threads.h"

namespace tessera::ckpt {
namespace {

// More than any integer needs.
constexpr size_t kMaxBytes = 64;

// The result of one read. Two equal results mean that the file was not written in between.
struct Reading {
  std::string contents;
  std::string identity;  // of the file and of the time when it was written
  std::string problem;

  bool operator==(const Reading&) const = default;
};

Reading ReadOnce(FileInFolder& file) {
  const absl::StatusOr<ScopedFd> fd = file.Open();
  if (fd.status() == ReadErrnoStatus(ENOENT)) return {};
  if (!fd.ok()) return {.problem = std::string(fd.status().message())};
  struct stat status = {};
  char buffer[kMaxBytes];
  const ssize_t bytes =
      ::fstat(fd->get(), &status) == 0 ? ::pread(fd->get(), buffer, kMaxBytes, 0) : -1;
  if (bytes < 0) return {.problem = std::string(ErrnoStatus(errno).message())};
  return {.contents = std::string(buffer, static_cast<size_t>(bytes)),
          .identity = absl::StrCat(status.st_ino, " ", status.st_mtim.tv_sec, ".",
                                   status.st_mtim.tv_nsec, " ", status.st_size)};
}

}  // namespace

struct StopFile::Shared {
  Shared(const std::string& path, std::string identity)
      : file(AbsolutePath(path)), acted_upon(std::move(identity)) {}

  FileInFolder file;  // this and the next are used by Read() alone
  std::string moved_to;
  const std::string acted_upon;
  Mutex mutex;
  CondVar changed;
  bool wanted ABSL_GUARDED_BY(mutex) = true;  // another read
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  Reading newest ABSL_GUARDED_BY(mutex);
  StopRequest request ABSL_GUARDED_BY(mutex);
  std::string note ABSL_GUARDED_BY(mutex);
};

absl::StatusOr<int64_t> ParseStopFile(std::string_view contents) {
  const absl::string_view text = absl::StripAsciiWhitespace(View(contents));
  if (text.empty()) return 0;
  int64_t step = 0;
  if (contents.size() < kMaxBytes && absl::SimpleAtoi(text, &step)) return step;
  std::string shown(text.substr(0, 20));
  for (char& c : shown) c = absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
  return absl::InvalidArgumentError(absl::StrCat("expected an integer, not \"", shown, "\""));
}

StopFile::StopFile(const std::string& path, const std::string& acted_upon,
                   absl::Duration first_read)
    : shared_(std::make_shared<Shared>(path, acted_upon)) {
  absl::StatusOr<std::thread> thread = StartThread([shared = shared_] {
    while (true) {
      Read(shared);
      MutexLock lock(&shared->mutex);
      while (!shared->wanted && !shared->stopping) shared->changed.Wait(&shared->mutex);
      if (shared->stopping) return;
    }
  });
  if (!thread.ok()) return;  // Poll() reads
  has_thread_ = true;
  thread->detach();
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(first_read);
  MutexLock lock(&shared_->mutex);
  while (shared_->request.version == 0) {
    if (!shared_->changed.WaitUntil(&shared_->mutex, deadline)) return;
  }
}

StopFile::~StopFile() {
  const MutexLock lock(&shared_->mutex);
  shared_->stopping = true;
  shared_->changed.NotifyAll();
}

// Without memory nothing is read until the next Poll().
void StopFile::Read(const std::shared_ptr<Shared>& shared) {
  CatchExceptions("read a stop file", [&] {
    {
      const MutexLock lock(&shared->mutex);
      shared->wanted = false;
    }
    const std::string path = shared->file.path();
    Reading reading = ReadOnce(shared->file);
    std::string moved_to = shared->file.MovedTo();
    const absl::StatusOr<int64_t> step = ParseStopFile(reading.contents);
    const MutexLock lock(&shared->mutex);
    if (!moved_to.empty() && moved_to != shared->moved_to) {
      shared->note = absl::StrCat("stop file ", path, " is read in ", moved_to,
                                  ", where the path has led first: it leads to another folder now");
    }
    shared->moved_to = std::move(moved_to);
    if (shared->request.version == 0 || reading != shared->newest) {
      const bool is_new = reading.identity.empty() || reading.identity != shared->acted_upon;
      if (!reading.problem.empty() || !step.ok()) {  // first, since it takes memory
        shared->note =
            absl::StrCat("stop file ", path, " has no effect: ",
                         step.ok() ? absl::string_view(reading.problem) : step.status().message());
      }
      shared->request = {.step = is_new ? step.value_or(0) : 0,
                         .version = shared->request.version + 1};
      shared->newest = std::move(reading);
    }
    shared->changed.NotifyAll();
    return absl::OkStatus();
  }).IgnoreError();
}

StopRequest StopFile::Poll() {
  if (!has_thread_) Read(shared_);
  const MutexLock lock(&shared_->mutex);
  shared_->wanted = true;
  shared_->changed.NotifyAll();
  return shared_->request;
}

std::string StopFile::Identity(int64_t version) const {
  const MutexLock lock(&shared_->mutex);
  return version == shared_->request.version ? shared_->newest.identity : "";
}

std::string StopFile::TakeNote() {
  const MutexLock lock(&shared_->mutex);
  return std::exchange(shared_->note, {});
}

}  // namespace tessera::ckpt
