#ifndef TESSERA_BASE_MAKE_DIRECTORIES_H_
#define TESSERA_BASE_MAKE_DIRECTORIES_H_

#include <string>

namespace tessera {

// Creates a directory with its parents; 0, or an errno: EEXIST where something else has the name.
// `path` counts from the open directory `at`, or, with AT_FDCWD, as everywhere.
//
// The names of all directories on the path are durable on return. Those that were there are synced
// too: whoever made them may not have done it, or may be a process on another machine. Only
// directories that were there and may not be read are left alone.
int MakeDirectories(int at, const std::string& path);

}  // namespace tessera

#endif  // TESSERA_BASE_MAKE_DIRECTORIES_H_
