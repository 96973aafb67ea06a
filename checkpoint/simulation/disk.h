#ifndef TESSERA_CHECKPOINT_SIMULATION_DISK_H_
#define TESSERA_CHECKPOINT_SIMULATION_DISK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/durable_files.h"

namespace tessera::simulation {

// A folder of real files, on which the code under test works with the calls of the C library:
// file_calls.cc puts faults between. Files that a process has open are closed when it dies.
class Disk {
 public:
  static Disk& Get();

  struct Options {
    uint64_t capacity_bytes = uint64_t{1} << 40;
    // As NFS: no rename that replaces nothing; a lost reply is repeated.
    bool renames_by_link = false;
  };
  void Begin(const std::string& root, const std::vector<std::string>& folders,
             const Options& options);
  const std::string& root() const { return root_; }
  const Options& options() const { return options_; }

  // What is not durable is gone, or not, by `seed`. No process may be alive.
  void LosePower(uint64_t seed);
  void CloseFilesOf(int process);

  // For file_calls.cc. The name below the root of what a call names; nullopt: not on this disk.
  std::optional<std::string> NameOf(int directory, const char* path) const;
  std::optional<std::string> NameOf(int fd) const;
  void Opened(int fd, std::string name);
  void Closed(int fd) { open_.erase(fd); }
  void Synced(int fd);
  uint64_t FreeBytes() const;

 private:
  struct OpenFile {
    int process;
    std::string name;
  };
  std::string root_;
  Options options_;
  std::unique_ptr<DurableFiles> files_;
  std::map<int, OpenFile> open_;  // by descriptor
};

}  // namespace tessera::simulation

#endif  // TESSERA_CHECKPOINT_SIMULATION_DISK_H_
