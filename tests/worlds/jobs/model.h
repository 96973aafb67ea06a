#ifndef TESSERA_TESTS_WORLDS_JOBS_MODEL_H_
#define TESSERA_TESTS_WORLDS_JOBS_MODEL_H_

// The promises of the library to its user, without their implementation:
//
// - A committed checkpoint stays loadable and equal until retention or the user deletes it.
//   Retention deletes a checkpoint that has `newest` later ones and is not among the `best`, and a
//   rolling one that has a later one, but never the newest healthy one. Prune() deletes those that
//   have `keep` later ones.
// - A quarantined checkpoint stays complete for ever; only damaged, diverged and abandoned ones are
//   quarantined.
// - A restart takes the newest healthy checkpoint or ends with an error; it never begins anew if
//   there are some.
// - A checkpoint is one save's, as a whole, and Verify() never calls a sound one damaged.
// - A job that ends without an error has saved its last step.
//
// Broken promises are findings of the Journal.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/manager/retention.h"

namespace tessera::simulation {

// One rank's part of a state in which every element follows from the number of the save.
class Content {
 public:
  Content(int rank, int ranks);
  const ckpt::StateDict& state() const { return state_; }
  void Fill(int64_t id);
  bool Is(int64_t id) const;

 private:
  struct Part {
    Box box;
    std::vector<float> memory;
  };
  void Add(std::string name, ckpt::TensorRole role, const Shape& shape, Box box);
  template <typename Function>
  void ForEach(int64_t id, Function function);

  std::vector<Part> parts_;
  ckpt::StateDict state_;
};

// Returns the metadata of a save, from which IdOf() and IsHealthy() read.
ckpt::Metadata DescribeSave(int64_t id, int64_t step, bool healthy);
double LossOf(int64_t id);
int64_t IdOf(const ckpt::Manifest& manifest);  // -1: none
bool IsHealthy(const ckpt::Manifest& manifest);

// A checkpoint as found in a storage.
struct Sighting {
  int64_t id = -1;
  int64_t step = 0;
  bool healthy = true;
  std::string directory;
  std::string manifest;    // the file's name
  bool committed = false;  // a reader finds it; otherwise it is under another name
  bool complete = false;   // all of its files are there
};

// Returns all checkpoints, quarantined ones included. Call while every process stands still.
absl::StatusOr<std::vector<Sighting>> LookAround(Storage& storage);

// Loads all of a checkpoint and compares it with what its save wrote; returns "" if it is equal.
std::string ReadBack(Storage& storage, const Sighting& sighting);

class Model {
 public:
  // `tight`: the disk is small, so that old checkpoints are deleted to make space for saves.
  Model(const ckpt::RetentionOptions& retention, bool tight)
      : retention_(retention), tight_(tight) {}

  // Actions of a job.
  // A job has the state of this step, and saves it if it is time.
  void MayBeSaved(int64_t id, int64_t step, bool healthy);
  void SaveSucceeded(int64_t id, bool rolling);
  void Abandons(int64_t after_step);
  // Records that retention runs, whose deletions may take effect for minutes.
  void RetentionRuns();
  void PruneRuns(int keep);
  // Records that a job succeeded; `last` is the save of its last step.
  void JobSucceeded(int64_t last);

  // Events of the storage.
  void UserDeletes(int64_t id) { records_[id].fate = Fate::kDeletedByUser; }
  void Rots(int64_t id) { records_[id].rotten = true; }
  void PowerGoes();

  // Everything that is in the storage.
  using View = std::vector<Sighting>;
  void Look(const View& view);
  // Checks that a job may take this checkpoint, or begin anew, if it began to look for one at
  // `before` and finds `now`.
  void Resumes(const View& before, const View& now, std::optional<int64_t> taken);
  // Returns whether a save is sound as far as is known, so that its contents can be checked.
  bool IsSound(int64_t id) const;

 private:
  enum class Fate { kKept, kAside, kDeleted, kDeletedByUser };
  struct Record {
    int64_t id = 0;
    int64_t step = 0;
    bool rolling = false;
    bool healthy = true;
    bool succeeded = false;  // the job was told so
    bool seen = false;       // committed since the last loss of power
    bool rotten = false;
    bool abandoned = false;
    int64_t deletable_until_ns = 0;  // retention has chosen it
    Fate fate = Fate::kKept;
  };
  struct Prune {
    int keep;
    int64_t until_ns;
  };
  void LookAtAside(Record& record, const Sighting& sighting);
  bool MayBeDeleted(const Record& record) const;

  const ckpt::RetentionOptions retention_;
  const bool tight_;
  std::map<int64_t, Record> records_;
  std::vector<Prune> prunes_;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_WORLDS_JOBS_MODEL_H_
