#include "base/shared_library.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstddef>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

void AddMatches(const std::string& pattern, std::vector<std::string>* places) {
  glob_t found = {};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) places->push_back(found.gl_pathv[i]);
  }
  globfree(&found);
}

std::string Environment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

// Patterns of the folders that hold Python's packages.
std::vector<std::string> PackageFolders() {
  std::vector<std::string> folders;
  const std::string virtual_environment = Environment("VIRTUAL_ENV"), user = Environment("HOME");
  if (!virtual_environment.empty()) {
    folders.push_back(virtual_environment + "/lib/python3*/site-packages/");
  }
  if (!user.empty()) folders.push_back(user + "/.local/lib/python3*/site-packages/");
  folders.push_back("/usr/local/lib/python3*/dist-packages/");
  folders.push_back("/usr/local/lib/python3*/site-packages/");
  folders.push_back("/usr/lib/python3*/site-packages/");
  return folders;
}

}  // namespace

std::vector<std::string> LibraryPlaces(const LibrarySearch& search) {
  const std::string chosen = Environment(search.variable);
  if (!chosen.empty()) return {chosen};
  std::vector<std::string> places;
  for (const std::string& file : search.files) {
    places.push_back(file);
    for (const std::string& home : {Environment("CUDA_HOME"), std::string("/usr/local/cuda")}) {
      if (!home.empty()) places.push_back(absl::StrCat(home, "/lib64/", file));
    }
    for (const std::string& packages : PackageFolders()) {
      for (const std::string& folder : search.package_folders) {
        AddMatches(absl::StrCat(packages, folder, "/", file), &places);
      }
    }
  }
  return places;
}

void* SharedLibrary::Find(const char* name) const { return dlsym(handle, name); }

absl::StatusOr<SharedLibrary> OpenSharedLibrary(std::span<const std::string> places) {
  for (const std::string& place : places) {
    void* const handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return SharedLibrary{handle, place};
  }
  return absl::NotFoundError(absl::StrCat("not at ", absl::StrJoin(places, ", ")));
}

}  // namespace tessera
