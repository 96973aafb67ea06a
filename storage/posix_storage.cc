#include "storage/posix_storage.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <mutex>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/file_calls.h"
#include "base/files.h"
#include "base/no_space.h"
#include "base/status_macros.h"
#include "storage/checks.h"
#include "storage/open_files.h"
#include "storage/posix_file.h"

namespace tessera {
namespace {

using internal::BouncePool;
using internal::OpenFiles;
using internal::PosixReadableFile;
using internal::PosixWritableFile;

constexpr int kDirectoryFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

// "" is the directory itself.
const char* AtPath(const std::string& path) { return path.empty() ? "." : path.c_str(); }

std::string PathBelow(const std::string& root, std::string_view path) {
  if (path.empty()) return root;
  if (root == ".") return std::string(path);
  return absl::StrCat(root, root.ends_with('/') ? "" : "/", std::string(path));
}

std::string LastName(const std::string& path) { return std::string(SplitPath(path).second); }

// Returns the names and types (DT_DIR, ...) of the entries of an open directory, without "." and
// "..".
absl::StatusOr<std::vector<std::pair<std::string, unsigned char>>> ListEntries(int directory) {
  ScopedFd fd(openat(directory, ".", kDirectoryFlags));  // closedir() closes it
  DIR* const stream = fd.valid() ? fdopendir(fd.get()) : nullptr;
  if (stream == nullptr) return ErrnoStatus(errno);
  fd.release();
  std::vector<std::pair<std::string, unsigned char>> entries;
  errno = 0;
  while (const dirent* const entry = readdir(stream)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") entries.emplace_back(name, entry->d_type);
    errno = 0;
  }
  const absl::Status status = ErrnoStatus(errno);
  closedir(stream);
  if (!status.ok()) return status;
  return entries;
}

// Deletes `name` in the directory `parent`, with everything below it, without following links.
// Entries that another process deletes meanwhile are not errors. Deletes what it can, and returns
// the first error.
absl::Status RemoveBelow(int parent, const std::string& name, const std::string& where) {
  if (unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return absl::OkStatus();
  const int unlink_error = errno;
  ScopedFd directory(openat(parent, name.c_str(), kDirectoryFlags | O_NOFOLLOW));
  if (!directory.valid()) {
    if (errno == ENOENT) return absl::OkStatus();
    // Not a directory: report why it could not be unlinked.
    const int error = errno == ENOTDIR || errno == ELOOP ? unlink_error : errno;
    return Named("DeleteTree", where, ErrnoStatus(error));
  }
  const auto entries = ListEntries(directory.get());
  if (!entries.ok()) return Named("DeleteTree", where, entries.status());
  absl::Status first_error;
  for (const auto& [entry, type] : *entries) {
    first_error.Update(RemoveBelow(directory.get(), entry, absl::StrCat(where, "/", entry)));
  }
  TESSERA_RETURN_IF_ERROR(first_error);
  if (unlinkat(parent, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
    return Named("DeleteTree", where, ErrnoStatus(errno));
  }
  return absl::OkStatus();
}

// Makes the open directory `fd` as private as PosixStorageOptions::private_to promises.
absl::Status MakePrivate(int fd, uid_t user, const std::string& root) {
  struct stat info;
  if (fstat(fd, &info) != 0) return Named("cannot examine the folder", root, ErrnoStatus(errno));
  if (info.st_uid != user) {
    return absl::PermissionDeniedError(
        absl::StrCat(root, " belongs to another user (", info.st_uid, ")"));
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0 || fchmod(fd, S_IRWXU) == 0) {
    return absl::OkStatus();
  }
  return Named("cannot take the permissions of others away from the folder", root,
               ErrnoStatus(errno));
}

class PosixStorage final : public Storage {
 public:
  PosixStorage(std::string root, ScopedFd root_fd, const PosixStorageOptions& options)
      : root_(std::move(root)),
        absolute_root_(AbsolutePath(root_)),
        root_fd_(std::move(root_fd)),
        options_(options),
        bounce_(options.bounce_buffer_bytes, options.max_bounce_buffers) {}

  // Finds the alignment with a file that has no name: not every file system has direct I/O, and
  // each asks for another alignment.
  StorageTraits Traits() override {
    std::call_once(probed_, [&] {
      if (!options_.direct_io) return;
      const ScopedFd fd(
          openat(root_fd_.get(), ".", O_TMPFILE | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600));
      if (fd.valid()) in_place_alignment_bytes_ = internal::DirectMemoryAlignment(fd.get());
    });
    return {.replaces_versions = true, .in_place_alignment_bytes = in_place_alignment_bytes_};
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path_view,
                                                       uint64_t size_hint_bytes) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("Create", path_view, /*root_allowed=*/false));
    const std::string path(path_view);
    absl::StatusOr<ScopedFd> created = CreateExclusively(path);
    if (!created.ok()) return Named("Create", Describe(path), NameWhatLacks(created.status()));
    ScopedFd fd = *std::move(created);
    absl::Status reserved;
    if (size_hint_bytes > 0) reserved = Reserve(fd.get(), path, size_hint_bytes);
    if (!reserved.ok()) {
      unlinkat(root_fd_.get(), path.c_str(), 0);
      return reserved;
    }
    ScopedFd direct;
    if (size_hint_bytes >= options_.direct_min_bytes) direct = OpenDirect(path, O_WRONLY, fd.get());
    const internal::DualFileOptions file_options = FileOptions(direct);
    return std::make_unique<PosixWritableFile>(Describe(path), std::move(fd), std::move(direct),
                                               file_options, &bounce_);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path_view) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("Open", path_view, /*root_allowed=*/false));
    const std::string path(path_view);
    struct stat first = {};
    TESSERA_ASSIGN_OR_RETURN(OpenFiles::File opened, OpenToRead(path, first));
    const auto reopen = [this, path, first]() -> absl::StatusOr<OpenFiles::File> {
      struct stat again = {};
      absl::StatusOr<OpenFiles::File> file = OpenToRead(path, again);
      // Not every file system keeps the number of an inode.
      const auto identity = [](const struct stat& info) {
        return std::tuple(info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
      };
      const bool is_gone = absl::IsNotFound(file.status());
      if (file.ok() ? identity(again) == identity(first) : !is_gone) return file;
      return absl::AbortedError(absl::StrCat("Open ", Describe(path), ": it was ",
                                             is_gone ? "deleted or renamed" : "replaced or changed",
                                             " while it was read"));
    };
    return OpenFiles::OfProcess().Keep(std::move(opened), options_.direct_io ? 2 : 1, reopen);
  }

  absl::Status Rename(std::string_view from_view, std::string_view to_view) override {
    for (std::string_view path : {from_view, to_view}) {
      TESSERA_RETURN_IF_ERROR(CheckPath("Rename", path, /*root_allowed=*/false));
    }
    const std::string from(from_view), to(to_view);
    const std::string where = absl::StrCat(Describe(from), " to ", Describe(to));
    const int root = root_fd_.get();
    return Named("Rename", where, RenameNameIfFree(root, from.c_str(), root, to.c_str()));
  }

  absl::Status Replace(std::string_view from_view, std::string_view to_view) override {
    for (std::string_view path : {from_view, to_view}) {
      TESSERA_RETURN_IF_ERROR(CheckPath("Replace", path, /*root_allowed=*/false));
    }
    const std::string from(from_view), to(to_view);
    const std::string where = absl::StrCat(Describe(to), " by ", Describe(from));
    const absl::StatusOr<ScopedFd> parent = OpenParent(to);
    if (!parent.ok()) return Named("Replace", where, parent.status());
    return Named("Replace", where,
                 RenameName(root_fd_.get(), from.c_str(), parent->get(), LastName(to).c_str()));
  }

  absl::Status MakeDirectory(std::string_view path_view) override {
    const absl::Status status = CheckPath("MakeDirectory", path_view, /*root_allowed=*/true);
    if (!status.ok() || path_view.empty()) return status;
    const std::string path(path_view);
    absl::Status made = MakeDirectories(root_fd_.get(), path);
    if (absl::IsAlreadyExists(made)) {
      made = absl::AlreadyExistsError("the name exists, but is not a directory");
    }
    return Named("MakeDirectory", Describe(path), NameWhatLacks(made));
  }

  absl::Status SyncDirectory(std::string_view path_view) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("SyncDirectory", path_view, /*root_allowed=*/true));
    const std::string path(path_view);
    const ScopedFd fd(openat(root_fd_.get(), AtPath(path), kDirectoryFlags));
    return Named("SyncDirectory", Describe(path),
                 fd.valid() ? SyncNames(fd.get()) : ErrnoStatus(errno));
  }

  absl::StatusOr<std::vector<std::string>> List(std::string_view path_view) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("List", path_view, /*root_allowed=*/true));
    const std::string path(path_view);
    const ScopedFd fd(openat(root_fd_.get(), AtPath(path), kDirectoryFlags));
    if (!fd.valid()) return Named("List", Describe(path), ErrnoStatus(errno));
    auto entries = ListEntries(fd.get());
    if (!entries.ok()) return Named("List", Describe(path), entries.status());
    std::vector<std::string> names;
    for (auto& [name, type] : *entries) {
      struct stat info;
      const bool unclear = type == DT_LNK || type == DT_UNKNOWN;
      if (type == DT_DIR ||
          (unclear && fstatat(fd.get(), name.c_str(), &info, 0) == 0 && S_ISDIR(info.st_mode))) {
        name += '/';
      }
      names.push_back(std::move(name));
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status Delete(std::string_view path_view) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("Delete", path_view, /*root_allowed=*/false));
    const std::string path(path_view);
    const absl::StatusOr<ScopedFd> parent = OpenParent(path);
    if (!parent.ok()) return Named("Delete", Describe(path), parent.status());
    const std::string name = LastName(path);
    if (unlinkat(parent->get(), name.c_str(), 0) == 0) return absl::OkStatus();
    const bool is_folder = errno == EISDIR;
    if (is_folder && unlinkat(parent->get(), name.c_str(), AT_REMOVEDIR) == 0) {
      return absl::OkStatus();
    }
    return Named("Delete", Describe(path), ErrnoStatus(errno));
  }

  absl::Status DeleteTree(std::string_view path_view) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("DeleteTree", path_view, /*root_allowed=*/false));
    const std::string path(path_view);
    const std::string name = LastName(path);
    const absl::StatusOr<ScopedFd> parent = OpenParent(path);
    if (!parent.ok()) return Named("DeleteTree", Describe(path), parent.status());
    struct stat info;
    if (fstatat(parent->get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      return Named("DeleteTree", Describe(path), ErrnoStatus(errno));
    }
    return RemoveBelow(parent->get(), name, Describe(path));
  }

  bool IsLink(std::string_view path_view) override {
    struct stat info;
    return CheckPath("IsLink", path_view, /*root_allowed=*/false).ok() &&
           fstatat(root_fd_.get(), std::string(path_view).c_str(), &info, AT_SYMLINK_NOFOLLOW) ==
               0 &&
           S_ISLNK(info.st_mode);
  }

  absl::StatusOr<uint64_t> FreeBytes() override {
    struct statvfs info;
    while (fstatvfs(root_fd_.get(), &info) != 0) {
      if (errno != EINTR) return Named("FreeBytes", root_, ErrnoStatus(errno));
    }
    return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  }

  std::optional<std::string> LocalPath(std::string_view path) const override {
    return PathBelow(RootNow(), path);
  }
  std::string Describe(std::string_view path) const override { return PathBelow(root_, path); }

 private:
  // Asks the system where the root is, unless its path still leads there.
  std::string RootNow() const {
    struct stat ours, there;
    if (fstat(root_fd_.get(), &ours) == 0 && stat(absolute_root_.c_str(), &there) == 0 &&
        ours.st_dev == there.st_dev && ours.st_ino == there.st_ino) {
      return absolute_root_;
    }
    std::error_code error;
    const std::string now =
        std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", root_fd_.get()), error);
    const bool is_known = now.starts_with('/') && !now.ends_with(" (deleted)");
    return is_known ? now : absolute_root_;
  }

  // Explains the error of a name that could not be made on a disk with space, but without inodes.
  absl::Status NameWhatLacks(const absl::Status& status) const {
    if (!IsNoSpace(status)) return status;
    struct statvfs info;
    // A file system that makes inodes as it needs them reports that it has none at all, or as many
    // as fit into its free space.
    const bool lacks_inodes = fstatvfs(root_fd_.get(), &info) == 0 && info.f_files > 0 &&
                              info.f_favail == 0 && info.f_bavail > 0;
    if (!lacks_inodes) return status;
    return WithMessage(status, absl::StrCat(status.message(), " (no inode is free)"));
  }

  // Creates a new file under a name that may exist already.
  absl::StatusOr<ScopedFd> CreateExclusively(const std::string& path) {
    // Creates a new inode and never uses O_TRUNC: another name may share the old one by a hard
    // link, and a symbolic link might point anywhere. Another process can take the name between the
    // two calls.
    constexpr int kAttempts = 10;
    for (int attempt = 0;; ++attempt) {
      absl::StatusOr<ScopedFd> fd =
          OpenRegularFile(root_fd_.get(), path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
      if (!absl::IsAlreadyExists(fd.status()) || attempt == kAttempts) return fd;
      TESSERA_ASSIGN_OR_RETURN(const ScopedFd parent, OpenParent(path));
      if (unlinkat(parent.get(), LastName(path).c_str(), 0) != 0 && errno != ENOENT) {
        return ErrnoStatus(errno);
      }
    }
  }

  absl::StatusOr<OpenFiles::File> OpenToRead(const std::string& path, struct stat& info) {
    absl::StatusOr<ScopedFd> opened = OpenRegularFile(root_fd_.get(), path, O_RDONLY);
    if (!opened.ok()) return Named("Open", Describe(path), opened.status());
    ScopedFd fd = *std::move(opened);
    if (fstat(fd.get(), &info) != 0) return Named("Open", Describe(path), ReadErrnoStatus(errno));
    ScopedFd direct = OpenDirect(path, O_RDONLY, fd.get());
    // With direct I/O only single blocks go through the cache: reading ahead would be wasted.
    if (direct.valid()) posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
    const internal::DualFileOptions file_options = FileOptions(direct);
    return std::make_shared<PosixReadableFile>(Describe(path), std::move(fd), std::move(direct),
                                               file_options, &bounce_,
                                               static_cast<uint64_t>(info.st_size));
  }

  // Opens the same file again for direct I/O; invalid if that is not possible.
  ScopedFd OpenDirect(const std::string& path, int access, int fd) {
    if (!options_.direct_io) return ScopedFd();
    absl::StatusOr<ScopedFd> direct = OpenRegularFile(root_fd_.get(), path, access | O_DIRECT);
    // The name may refer to another file since `fd` was opened.
    struct stat ours, theirs;
    const bool same = direct.ok() && fstat(fd, &ours) == 0 && fstat(direct->get(), &theirs) == 0 &&
                      ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
    return same ? *std::move(direct) : ScopedFd();
  }

  // Opens the directory that contains a path's last component, without following a link, so that
  // nothing outside of the root can be deleted. FailedPrecondition for a link.
  absl::StatusOr<ScopedFd> OpenParent(const std::string& path) const {
    constexpr int kFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    ScopedFd directory(openat(root_fd_.get(), ".", kFlags));
    if (!directory.valid()) return ErrnoStatus(errno);
    for (size_t begin = 0, end; (end = path.find('/', begin)) != std::string::npos;
         begin = end + 1) {
      const std::string name = path.substr(begin, end - begin);
      ScopedFd next(openat(directory.get(), name.c_str(), kFlags));
      const absl::Status status = ErrnoStatus(next.valid() ? 0 : errno);
      struct stat info;
      if (!status.ok() && fstatat(directory.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
          S_ISLNK(info.st_mode)) {
        return absl::FailedPreconditionError(
            "a directory on the path is a symbolic link, behind which nothing is deleted");
      }
      TESSERA_RETURN_IF_ERROR(status);
      directory = std::move(next);
    }
    return directory;
  }

  absl::Status Reserve(int fd, const std::string& path, uint64_t size_bytes) {
    int error = EFBIG;
    if (size_bytes <= static_cast<uint64_t>(std::numeric_limits<off_t>::max())) {
      do {
        error = fallocate(fd, 0, 0, static_cast<off_t>(size_bytes)) == 0 ? 0 : errno;
      } while (error == EINTR);
    }
    if (error == 0) return absl::OkStatus();
    const absl::StatusOr<uint64_t> free_bytes = FreeBytes();
    const bool unsupported = error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
    if (unsupported && (!free_bytes.ok() || *free_bytes >= size_bytes)) return absl::OkStatus();
    const absl::Status status =
        Named("Create", Describe(path), ErrnoStatus(unsupported ? ENOSPC : error));
    std::string message = absl::StrCat(status.message(), " (", size_bytes, " bytes needed");
    if (free_bytes.ok()) absl::StrAppend(&message, ", ", *free_bytes, " free");
    return WithMessage(status, absl::StrCat(message, ")"));
  }

  internal::DualFileOptions FileOptions(const ScopedFd& direct) const {
    return {options_.direct_min_bytes,
            direct.valid() ? internal::DirectMemoryAlignment(direct.get()) : kIoAlignmentBytes,
            options_.io_uring,
            options_.io_calls != nullptr ? *options_.io_calls : internal::IoCalls()};
  }

  const std::string root_;           // as it was named, for messages
  const std::string absolute_root_;  // which leads there until the root is renamed
  const ScopedFd root_fd_;
  const PosixStorageOptions options_;
  BouncePool bounce_;
  std::once_flag probed_;
  uint64_t in_place_alignment_bytes_ = 0;  // once it is probed
};

}  // namespace

absl::StatusOr<std::unique_ptr<Storage>> OpenPosixStorage(const std::string& name,
                                                          const PosixStorageOptions& options) {
  std::string root = name;
  const bool is_private = options.private_to.has_value();
  // With a slash after it, a link would be followed.
  while (is_private && root.size() > 1 && root.ends_with('/')) root.pop_back();
  if (root.empty() || root.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("the folder's name is empty or contains a NUL");
  }
  if (options.bounce_buffer_bytes == 0 || options.bounce_buffer_bytes % kIoAlignmentBytes != 0 ||
      options.max_bounce_buffers < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "OpenPosixStorage ", root, ": bounce_buffer_bytes must be a positive multiple of ",
        kIoAlignmentBytes, ", found ", options.bounce_buffer_bytes,
        ", and max_bounce_buffers positive, found ", options.max_bounce_buffers));
  }
  if (options.create_root) {
    // If something else is in its place, the check below finds it.
    // A private root itself is created below, with its permissions.
    const std::string parent = (std::filesystem::path(root) / "..").lexically_normal();
    absl::Status made = MakeDirectories(AT_FDCWD, is_private ? parent : root);
    if (made.ok() && is_private && mkdir(root.c_str(), S_IRWXU) != 0) made = ErrnoStatus(errno);
    if (!absl::IsAlreadyExists(made)) {
      TESSERA_RETURN_IF_ERROR(Named("cannot create the folder", root, made));
    }
  }
  ScopedFd fd(open(root.c_str(), kDirectoryFlags | (is_private ? O_NOFOLLOW : 0)));
  const int error = fd.valid() ? 0 : errno;
  struct stat info;
  if (is_private && error != 0 && lstat(root.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(root, " is a symbolic link"));
  }
  if (error == ENOTDIR) return absl::InvalidArgumentError(absl::StrCat(root, " is not a folder"));
  if (error != 0) return Named("cannot open the folder", root, ErrnoStatus(error));
  if (is_private) TESSERA_RETURN_IF_ERROR(MakePrivate(fd.get(), *options.private_to, root));
  return std::make_unique<PosixStorage>(root, std::move(fd), options);
}

}  // namespace tessera
