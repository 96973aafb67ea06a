#ifndef TESSERA_TESTS_WORLDS_JOBS_SITE_H_
#define TESSERA_TESTS_WORLDS_JOBS_SITE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/s3/testing/s3_server.h"
#include "storage/storage.h"
#include "tests/worlds/jobs/model.h"
#include "tests/worlds/jobs/run_case.h"
#include "tests/worlds/power/durable_files.h"

namespace tessera::simulation {

// The place where jobs save: a folder of the simulated disk, or a prefix of a simulated object
// store.
class Site {
 public:
  // Works in `root`, a folder of the simulated disk. Look() reports to the model.
  Site(const Script& script, const std::string& root, Model& model);

  // Opens the storage of a rank of a job; if `blind`, another storage than the other ranks have.
  absl::StatusOr<std::unique_ptr<Storage>> Open(const Phase& phase, bool blind);
  std::string StopFile() const { return root_ + "/stop"; }
  // Returns the contents of the storage, read without faults, and compares them with the model.
  Model::View Look();

  // Makes blind ranks see the storage as it was before `newest`.
  void MakeStale(const std::string& newest);
  // Deletes a tree as a user does; damages a file as a disk does.
  void DeleteTree(const std::string& directory);
  void Rot(const std::string& directory);
  // Makes the object store accept only new tokens, which processes can read after the outage.
  void ExpireToken(int64_t outage_ns);
  // Writes or removes the stop file, which at first does not exist.
  void WriteStopFile(bool is_there);

 private:
  absl::StatusOr<std::unique_ptr<Storage>> OpenRemote(bool blind, bool create_root);

  const Script& script_;
  const std::string root_;
  Model& model_;
  std::unique_ptr<s3::S3Server> store_, other_;
  int token_ = 0;
  int64_t readable_at_ns_ = 0;
};

// A folder of real files, on which the code under test works with the calls of the C library, into
// which file_calls.cc inserts faults. Files that a process has open are closed when it dies.
class Disk {
 public:
  static Disk& Get();

  struct Options {
    uint64_t capacity_bytes = uint64_t{1} << 40;
    // Behaves like NFS: no rename that replaces nothing; a lost reply is repeated.
    bool renames_by_link = false;
  };
  void Begin(const std::string& root, const std::vector<std::string>& folders,
             const Options& options);
  const std::string& root() const { return root_; }
  const Options& options() const { return options_; }

  // Loses files that are not durable, or keeps them, as `seed` decides. No process may be alive.
  void LosePower(uint64_t seed);
  void CloseFilesOf(int process);

  // Returns the name below the root of the file that a call names, for file_calls.cc; nullopt if it
  // is not on this disk.
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

#endif  // TESSERA_TESTS_WORLDS_JOBS_SITE_H_
