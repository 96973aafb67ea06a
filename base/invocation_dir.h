#ifndef TESSERA_BASE_INVOCATION_DIR_H_
#define TESSERA_BASE_INVOCATION_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace tessera {

// Changes to the user's folder, to which relative paths refer: `bazel run` starts a program in a
// folder of Bazel's own. Call first in main.
inline void ChdirToInvocationDir() {
  const char* folder = std::getenv("BUILD_WORKING_DIRECTORY");
  std::error_code gone;
  if (folder != nullptr) std::filesystem::current_path(folder, gone);
}

}  // namespace tessera

#endif  // TESSERA_BASE_INVOCATION_DIR_H_
