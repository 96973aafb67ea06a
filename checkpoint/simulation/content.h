#ifndef TESSERA_CHECKPOINT_SIMULATION_CONTENT_H_
#define TESSERA_CHECKPOINT_SIMULATION_CONTENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"

namespace tessera::simulation {

// One rank's part of a state whose every element follows from the number of the save.
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

// What the manifest says besides.
ckpt::Metadata DescribeSave(int64_t id, int64_t step, bool healthy);
double LossOf(int64_t id);
int64_t IdOf(const ckpt::Manifest& manifest);  // -1: none
bool IsHealthy(const ckpt::Manifest& manifest);

// A checkpoint as it is found in a storage.
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
absl::StatusOr<std::vector<Sighting>> LookAround(ckpt::Storage& storage);

// Loads all of a checkpoint and compares it with what its save wrote; returns "" if it is equal.
std::string ReadBack(ckpt::Storage& storage, const Sighting& sighting);

}  // namespace tessera::simulation

#endif  // TESSERA_CHECKPOINT_SIMULATION_CONTENT_H_
