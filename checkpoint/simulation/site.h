#ifndef TESSERA_CHECKPOINT_SIMULATION_SITE_H_
#define TESSERA_CHECKPOINT_SIMULATION_SITE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/include/storage.h"
#include "checkpoint/simulation/model.h"
#include "checkpoint/simulation/script.h"
#include "checkpoint/storage/s3/testing/s3_server.h"

namespace tessera::simulation {

// Where jobs save: a folder of the simulated disk, or a prefix of a simulated object store.
class Site {
 public:
  // Works in `root`, a folder of the simulated disk. Look() reports to the model.
  Site(const Script& script, const std::string& root, Model& model);

  // Opens the storage of a rank of a job; `blind`: another storage than that of the other ranks.
  absl::StatusOr<std::unique_ptr<ckpt::Storage>> Open(const Phase& phase, bool blind);
  std::string StopFile() const { return root_ + "/stop"; }
  // Returns what is there, without faults, and compares it with the model.
  Model::View Look();

  // What a blind rank sees is then as it was before `newest`.
  void MakeStale(const std::string& newest);
  // As a user does it; as a disk does.
  void DeleteTree(const std::string& directory);
  void Rot(const std::string& directory);
  // The object store accepts new tokens alone; processes can read them after the outage.
  void ExpireToken(int64_t outage_ns);
  // From the beginning, the stop file is not there.
  void WriteStopFile(bool is_there);

 private:
  absl::StatusOr<std::unique_ptr<ckpt::Storage>> OpenRemote(bool blind, bool create_root);

  const Script& script_;
  const std::string root_;
  Model& model_;
  std::unique_ptr<ckpt::s3::S3Server> store_, other_;
  int token_ = 0;
  int64_t readable_at_ns_ = 0;
};

}  // namespace tessera::simulation

#endif  // TESSERA_CHECKPOINT_SIMULATION_SITE_H_
