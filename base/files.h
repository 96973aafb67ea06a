#ifndef TESSERA_BASE_FILES_H_
#define TESSERA_BASE_FILES_H_

#include <chrono>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/scoped_fd.h"

namespace tessera {

// Returns whether a name matches a pattern: * stands for any characters, ? for one, [...] for one
// of a set.
bool MatchesGlob(const std::string& pattern, const std::string& name);

// Returns a new descriptor as it is, or another one of the same file if it is a standard stream,
// where a program that has closed it may still write messages. Returns -1 for -1 and, with errno,
// where the process may have no more descriptors.
int AboveStandardStreams(int fd);

// Opens a regular file, without ever waiting: refuses pipes, devices and sockets. Every package
// opens files with this function. `flags`, as for open(), get O_CLOEXEC, O_NONBLOCK and O_NOCTTY in
// addition. `path` is relative to the open directory `at` or, with AT_FDCWD, to the current one.
// The descriptor is never a standard stream. Errors have the reason as their message:
// InvalidArgument ("not a regular file") for anything else, otherwise as ErrnoStatus(), for reading
// as ReadErrnoStatus().
absl::StatusOr<ScopedFd> OpenRegularFile(int at, const std::string& path, int flags);

// Returns a path that stays right when the process changes its directory; `path` itself if it has
// none.
std::string AbsolutePath(const std::string& path);

// Returns the id of this boot of the machine, the same for all processes; empty if it is not known.
std::string BootId();

// Returns the bytes of a regular file, also of one of the kernel's, which has no size. Errors are
// those of OpenRegularFile().
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

// Creates a directory with its parents. `path` is relative to the open directory `at`, or, with
// AT_FDCWD, to the current one. Errors have the reason as their message, and the codes of
// ErrnoStatus(): AlreadyExists if something else has the name.
//
// The names of all directories on the path are durable on return. Existing ones are synced too:
// their creator may not have done it, or may be a process on another machine. Only existing
// directories that may not be read are skipped.
absl::Status MakeDirectories(int at, const std::string& path);

// Writes `text` to a file descriptor without ever waiting longer than `limit`: for the last message
// of a process that must end even if its pipe, terminal or socket has no reader. Returns true if
// all of it was written. Does not change the descriptor's own flags, which other processes share.
//
// May be called from any thread; allocates nothing.
bool WriteBounded(int fd, std::string_view text, std::chrono::milliseconds limit);

}  // namespace tessera

#endif  // TESSERA_BASE_FILES_H_
