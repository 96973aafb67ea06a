#ifndef TESSERA_BASE_MAKE_DIRECTORIES_H_
#define TESSERA_BASE_MAKE_DIRECTORIES_H_

#include <string>

namespace tessera {

// Creates a directory with its parents. Returns 0, or an errno: EEXIST where something else has the
// name. `path` is relative to the open directory `at`, or, with AT_FDCWD, to the current one.
//
// The names of all directories on the path are durable on return. Existing ones are synced too:
// their creator may not have done it, or may be a process on another machine. Only existing
// directories that may not be read are skipped.
int MakeDirectories(int at, const std::string& path);

}  // namespace tessera

#endif  // TESSERA_BASE_MAKE_DIRECTORIES_H_
