#ifndef TESSERA_CHECKPOINT_LOAD_COMPARE_H_
#define TESSERA_CHECKPOINT_LOAD_COMPARE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/elements/copy_elements.h"
#include "checkpoint/elements/placed_digest.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/load/options.h"
#include "checkpoint/plan/load_plan.h"
#include "checkpoint/plan/state_dict.h"

namespace tessera::ckpt {

// Where a wanted box goes in memory.
struct Destination {
  Box box;
  std::byte* data;
  std::vector<int64_t> strides;
  size_t element_bytes;
  CopyElements copy;  // from the saved dtype
  // Takes the digest while elements are placed; null: nobody does.
  std::shared_ptr<PlacedDigest> digest = nullptr;
};

// What one process wants against what was saved.
struct Comparison {
  // Parallel. What remains to be read once everything is agreed on.
  std::vector<WantedBox> wanted;
  std::vector<Destination> destinations;

  std::vector<std::string> mismatches;  // lines that name the tensor and both sides
  std::vector<std::string> missing;     // only where that is allowed
  std::vector<std::string> from_master;
  std::vector<bool> used;  // by saved tensor
};

// Preconditions: a valid manifest, CheckStateDict(state).
Comparison Compare(const Manifest& manifest, const StateDict& state, const LoadOptions& options);

// Saved tensors that nobody uses; aliases are none, since what they name is there.
std::vector<std::string> UnexpectedTensors(const Manifest& manifest, const std::vector<bool>& used);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_COMPARE_H_
