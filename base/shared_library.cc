#include "base/shared_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/program.h"

namespace tessera {
namespace {

void AddMatches(const std::string& pattern, std::vector<std::string>* places) {
  glob_t found = {};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) places->push_back(found.gl_pathv[i]);
  }
  globfree(&found);
}

// Returns patterns of the folders that hold Python's packages, each once.
std::vector<std::string> PackageFolders(const std::string& root) {
  std::vector<std::string> folders;
  const auto add = [&folders](const std::string& prefix, const char* folder) {
    const std::string pattern = absl::StrCat(prefix, folder);
    if (std::ranges::find(folders, pattern) == folders.end()) folders.push_back(pattern);
  };
  constexpr char kSite[] = "/lib/python3*/site-packages/";
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string environment = EnvironmentVariable(variable);
    if (!environment.empty()) add(environment, kSite);
  }
  // An environment is used without being active by running its python3.
  for (const absl::string_view path : absl::StrSplit(EnvironmentVariable("PATH"), ':')) {
    if (!absl::EndsWith(path, "/bin")) continue;
    if (access(absl::StrCat(path, "/python3").c_str(), X_OK) != 0) continue;
    add(std::string(path.substr(0, path.size() - strlen("/bin"))), kSite);
  }
  const std::string user = EnvironmentVariable("HOME");
  if (!user.empty()) add(user + "/.local", kSite);
  add(root + "/usr/local", "/lib/python3*/dist-packages/");
  add(root + "/usr/local", kSite);
  add(root + "/usr", "/lib/python3/dist-packages/");
  add(root + "/usr", kSite);
  return folders;
}

// Returns lib64 of the CUDA toolkits; of those with a version in their names, the newest first.
std::vector<std::string> ToolkitFolders(const std::string& root) {
  std::vector<std::string> folders;
  const std::string home = EnvironmentVariable("CUDA_HOME");
  if (!home.empty()) folders.push_back(home + "/lib64/");
  folders.push_back(root + "/usr/local/cuda/lib64/");
  std::vector<std::string> versions;
  AddMatches(root + "/usr/local/cuda-[0-9]*/lib64/", &versions);
  std::ranges::sort(versions, [](const std::string& a, const std::string& b) {
    return strverscmp(a.c_str(), b.c_str()) > 0;
  });
  folders.insert(folders.end(), versions.begin(), versions.end());
  return folders;
}

}  // namespace

std::vector<std::string> LibraryPlaces(const LibrarySearch& search) {
  const std::string chosen = EnvironmentVariable(search.variable);
  if (!chosen.empty()) return {chosen};
  std::vector<std::string> places;
  for (const std::string& file : search.files) {
    places.push_back(file);
    for (const std::string& toolkit : ToolkitFolders(search.root)) places.push_back(toolkit + file);
    for (const std::string& packages : PackageFolders(search.root)) {
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
