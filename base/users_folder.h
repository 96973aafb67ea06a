#ifndef TESSERA_BASE_USERS_FOLDER_H_
#define TESSERA_BASE_USERS_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace tessera {

// `bazel run` starts a program in a folder of Bazel's own; relative paths refer to the user's
// folder. Call first in main.
inline void EnterUsersFolder() {
  const char* folder = std::getenv("BUILD_WORKING_DIRECTORY");
  std::error_code gone;
  if (folder != nullptr) std::filesystem::current_path(folder, gone);
}

}  // namespace tessera

#endif  // TESSERA_BASE_USERS_FOLDER_H_
