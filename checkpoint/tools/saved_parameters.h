#ifndef TESSERA_CHECKPOINT_TOOLS_SAVED_PARAMETERS_H_
#define TESSERA_CHECKPOINT_TOOLS_SAVED_PARAMETERS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/layout/box.h"
#include "checkpoint/tools/sharding_rules.h"

namespace tessera::ckpt {

// A parameter with all that was saved of it.
struct SavedParameter {
  std::string name;
  Shape shape;
  Sharding sharding;
  const LogicalTensor* weight = nullptr;        // null where only states were saved
  std::vector<const LogicalTensor*> states;     // of the same shape, in the manifest's order
  std::vector<const LogicalTensor*> shapeless;  // of another shape: they cannot be cut along
  std::vector<const LogicalTensor*> aliases;    // of any of these
  Shape padded_shape;                           // as saved; empty: not padded
  bool on_both_ends = false;  // tied: the first pipeline stage has it, and the last
};

// In the order in which the manifest mentions them. Tensors that belong to no parameter are
// parameters without states. Precondition: a valid manifest, which must outlive the result. Errors:
// FindSharding's.
absl::StatusOr<std::vector<SavedParameter>> CollectParameters(
    const Manifest& manifest, const std::vector<SplitOverride>& overrides);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_TOOLS_SAVED_PARAMETERS_H_
