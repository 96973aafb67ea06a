#ifndef TESSERA_BASE_SHARED_LIBRARY_H_
#define TESSERA_BASE_SHARED_LIBRARY_H_

// Shared libraries of NVIDIA's that are opened at run time, so that programs start without them.

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

struct LibrarySearch {
  // Environment variable that names the only place: "TESSERA_NCCL".
  std::string variable;
  // Names of the file, in order of preference: "libnccl.so.2".
  std::vector<std::string> files;
  // Folders below a Python package folder that PyTorch's packages put it in: "nvidia/nccl/lib".
  std::vector<std::string> package_folders;
  // Prefix of /usr and /usr/local, for tests that have a file system of their own.
  std::string root = "";
};

// Returns the places to open a library from: $`variable` alone if it is set. Otherwise
// - the dynamic linker's own search, $LD_LIBRARY_PATH included;
// - the CUDA toolkit: $CUDA_HOME, /usr/local/cuda, /usr/local/cuda-13.0 and the like;
// - the packages of PyTorch: in the active environment ($VIRTUAL_ENV, $CONDA_PREFIX), of every
//   python3 in $PATH, of the user and of the system.
//
// All places for the first of the files come before the places for the next.
std::vector<std::string> LibraryPlaces(const LibrarySearch& search);

struct SharedLibrary {
  void* handle = nullptr;  // of dlopen(); the library stays open until the process ends
  std::string place;

  // Returns the function's address; null if the library has no such function.
  void* Find(const char* name) const;
};

// Opens the library at the first of `places` that has it. A place is a path, or a name for the
// dynamic linker to search. NotFound if none of them has it.
absl::StatusOr<SharedLibrary> OpenSharedLibrary(std::span<const std::string> places);

}  // namespace tessera

#endif  // TESSERA_BASE_SHARED_LIBRARY_H_
