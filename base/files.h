#ifndef TESSERA_BASE_FILES_H_
#define TESSERA_BASE_FILES_H_

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// Returns whether a name matches a pattern: * stands for any characters, ? for one, [...] for one
// of a set.
bool MatchesGlob(const std::string& pattern, const std::string& name);

// Opens a regular file, without ever waiting: refuses pipes, devices and sockets. Every package
// opens files with this function. `flags`, as for open(), get O_CLOEXEC, O_NONBLOCK and O_NOCTTY in
// addition. `path` is relative to the open directory `at` or, with AT_FDCWD, to the current one.
// Returns the descriptor, or -1 with errno: EISDIR for a folder, EINVAL for any other file that is
// not a regular one.
int OpenRegularFile(int at, const std::string& path, int flags);

// Returns the id of this boot of the machine, the same for all processes; empty if it is not known.
std::string BootId();

// Returns the bytes of a regular file, which may be one of the kernel's that has no size. Returns
// nullopt with errno, as OpenRegularFile() sets it, if the file cannot be opened or read; ESRCH if
// its process has ended.
std::optional<std::string> ReadWholeFile(const std::string& path);

// Creates a directory with its parents. Returns 0, or an errno: EEXIST if something else has the
// name. `path` is relative to the open directory `at`, or, with AT_FDCWD, to the current one.
//
// The names of all directories on the path are durable on return. Existing ones are synced too:
// their creator may not have done it, or may be a process on another machine. Only existing
// directories that may not be read are skipped.
int MakeDirectories(int at, const std::string& path);

// Writes `text` to a file descriptor without ever waiting longer than `limit`: for the last message
// of a process that must end even if its pipe, terminal or socket has no reader. Returns true if
// all of it was written. Does not change the descriptor's own flags, which other processes share.
//
// May be called from any thread; allocates nothing.
bool WriteBounded(int fd, std::string_view text, std::chrono::milliseconds limit);

}  // namespace tessera

#endif  // TESSERA_BASE_FILES_H_
