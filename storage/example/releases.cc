// Releases of a file in a storage that several programs share: a folder or a prefix of a bucket.
//
//   releases STORAGE put FILE      adds a release, and prints its number
//   releases STORAGE get NUMBER    prints the file
//   releases STORAGE list
//
// Release 7 is the directory "7". Whoever creates "7/owner" has the number; "7/data" is the file;
// the release exists once "7/done" does. So no two programs share a number, and no reader sees a
// file that is not complete, whenever a program or the machine stops.

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;

// The first number that no other program has.
absl::StatusOr<std::string> TakeNumber(tessera::Storage& storage) {
  for (int number = 1;; ++number) {
    const std::string directory = absl::StrCat(number);
    TESSERA_RETURN_IF_ERROR(storage.MakeDirectory(directory));
    const absl::Status taken =
        storage.Write(directory + "/owner", absl::StrCat("process ", getpid(), "\n"), {}).status();
    if (absl::IsAlreadyExists(taken)) continue;
    TESSERA_RETURN_IF_ERROR(taken);
    return directory;
  }
}

absl::StatusOr<std::string> Put(tessera::Storage& storage, const std::string& contents) {
  TESSERA_ASSIGN_OR_RETURN(const std::string directory, TakeNumber(storage));
  TESSERA_RETURN_IF_ERROR(WriteAll(storage, directory + "/data", contents));
  TESSERA_RETURN_IF_ERROR(storage.SyncDirectory(directory));
  TESSERA_RETURN_IF_ERROR(
      storage.Write(directory + "/done", absl::StrCat(contents.size(), " bytes\n"), {}).status());
  return directory + "\n";
}

absl::StatusOr<std::string> Get(tessera::Storage& storage, const std::string& number) {
  TESSERA_RETURN_IF_ERROR(storage.Open(number + "/done").status());
  return ReadAll(storage, number + "/data", kMaxFileBytes);
}

absl::StatusOr<std::string> List(tessera::Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
  std::string text;
  for (std::string name : names) {
    if (!name.ends_with('/')) continue;
    const absl::StatusOr<tessera::VersionedContents> done = storage.Read(name + "done", 100);
    if (absl::IsNotFound(done.status())) continue;
    TESSERA_RETURN_IF_ERROR(done.status());
    name.pop_back();
    absl::StrAppend(&text, name, ": ", done->contents);
  }
  return text;
}

absl::StatusOr<std::string> Run(const std::string& name, const std::string& command,
                                const std::string& argument) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<tessera::Storage> storage,
                           tessera::OpenStorage(name, {.create_root = command == "put"}));
  if (command == "get") return Get(*storage, argument);
  if (command == "list") return List(*storage);
  if (command != "put") return absl::InvalidArgumentError("the commands are put, get and list");
  std::ifstream file(argument, std::ios::binary);
  if (!file) return absl::NotFoundError(argument);
  return Put(*storage, std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace

int main(int argc, char** argv) {
  const absl::StatusOr<std::string> printed =
      argc < 3 ? absl::InvalidArgumentError("releases STORAGE put FILE | get NUMBER | list")
               : Run(argv[1], argv[2], argc > 3 ? argv[3] : "");
  if (printed.ok()) {
    std::cout << *printed;
    return 0;
  }
  std::cerr << printed.status() << "\n";
  return 1;
}
