#include "storage/lock/local_folder.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/errno_status.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "storage/open_storage.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kInfix = ".unfinished-";
constexpr size_t kHexDigits = 8;
constexpr int kAttempts = 3;

absl::StatusOr<std::unique_ptr<FolderLock>> TryLock(const std::string& folder) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, OpenStorage(folder, {}));
  return FolderLock::Acquire(std::move(storage), {.wait = absl::ZeroDuration()});
}

std::string PathIn(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

bool IsUnfinished(std::string_view entry, std::string_view name) {
  if (entry.size() != name.size() + kInfix.size() + kHexDigits || !entry.starts_with(name) ||
      !entry.substr(name.size()).starts_with(kInfix)) {
    return false;
  }
  return std::ranges::all_of(entry.substr(entry.size() - kHexDigits), [](unsigned char c) {
    return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
  });
}

}  // namespace

absl::StatusOr<LocalFolder> LocalFolder::Create(const std::string& path,
                                                const std::string& described) {
  std::error_code error;
  fs::path absolute = fs::absolute(path, error).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();  // "a/b/"
  if (fs::exists(fs::symlink_status(absolute, error))) {
    return absl::AlreadyExistsError(
        absl::StrCat(described, " exists, and nothing is ever overwritten"));
  }
  LocalFolder folder;
  folder.above_ = absolute.parent_path().string();
  folder.name_ = absolute.filename().string();
  TESSERA_ASSIGN_OR_RETURN(folder.storage_, OpenStorage(folder.above_, {.create_root = true}));
  folder.RemoveAbandoned();
  TESSERA_RETURN_IF_ERROR(folder.MakeTemporary());
  return folder;
}

std::string LocalFolder::temporary_path() const { return PathIn(above_, temporary_); }

// Another process can take the folder for an abandoned one before it is locked.
absl::Status LocalFolder::MakeTemporary() {
  absl::Status problem;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    temporary_ = absl::StrCat(name_, View(kInfix), RandomHex(8));
    TESSERA_RETURN_IF_ERROR(storage_->MakeDirectory(temporary_));
    auto lock = TryLock(temporary_path());
    problem = lock.status();
    std::error_code error;
    if (!lock.ok() || !fs::exists(PathIn(temporary_path(), FolderLock::kFileName), error)) continue;
    lock_ = *std::move(lock);
    return absl::OkStatus();
  }
  return problem.ok() ? absl::UnavailableError(
                            absl::StrCat(temporary_path(), ": another process has removed it"))
                      : problem;
}

// Removes nothing on a file system without locks, where an abandoned folder cannot be recognised.
void LocalFolder::RemoveAbandoned() {
  std::vector<std::string> entries;
  std::error_code error;
  for (fs::directory_iterator at(above_, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path().filename().string());
  }
  for (const std::string& entry : entries) {
    const std::string path = PathIn(above_, entry);
    if (!IsUnfinished(entry, name_) || !fs::is_directory(fs::symlink_status(path, error)) ||
        !fs::is_regular_file(fs::symlink_status(PathIn(path, FolderLock::kFileName), error))) {
      continue;
    }
    const auto lock = TryLock(path);
    if (!lock.ok() || !(*lock)->warning().empty()) continue;
    if (Delete(entry).ok()) removed_.push_back(path);
  }
}

// The lock file goes last: without it, no process would complete a deletion that was interrupted.
absl::Status LocalFolder::Delete(const std::string& folder) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage_->List(folder));
  for (std::string name : names) {
    if (name == FolderLock::kFileName) continue;
    if (name.ends_with('/')) name.pop_back();
    TESSERA_RETURN_IF_ERROR(storage_->DeleteTree(PathIn(folder, name)));
  }
  return storage_->DeleteTree(folder);
}

// The lock is held until the folder has its name, so that no other process removes it.
absl::Status LocalFolder::Publish() {
  TESSERA_RETURN_IF_ERROR(Rename(temporary_, [this]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(storage_->Delete(PathIn(name_, FolderLock::kFileName)));
    return storage_->SyncDirectory(name_);
  }));
  lock_.reset();
  return absl::OkStatus();
}

absl::Status LocalFolder::PublishFile() {
  TESSERA_RETURN_IF_ERROR(Rename(PathIn(temporary_, name_), [] { return absl::OkStatus(); }));
  Abandon();
  return absl::OkStatus();
}

// Gives what is at `from` its name, durably, when it has been completed; takes the name back after
// an error.
absl::Status LocalFolder::Rename(const std::string& from,
                                 absl::FunctionRef<absl::Status()> complete) {
  TESSERA_RETURN_IF_ERROR(storage_->Rename(from, name_));
  absl::Status named = complete();
  if (named.ok()) named = storage_->SyncDirectory("");
  if (named.ok()) return named;
  const absl::Status back = storage_->Rename(name_, from);
  if (back.ok()) return named;
  return WithMessage(named,
                     absl::StrCat(named.message(), "; it is there all the same: ", back.message()));
}

void LocalFolder::Abandon() {
  Delete(temporary_).IgnoreError();
  lock_.reset();
}

}  // namespace tessera
