#ifndef TESSERA_CHECKPOINT_LOAD_NAMED_TENSORS_H_
#define TESSERA_CHECKPOINT_LOAD_NAMED_TENSORS_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "checkpoint/include/manifest.pb.h"

namespace tessera::ckpt {

// The tensors of a valid manifest by their names. A load of a few tensors of many uses the manifest
// of these (ManifestOf()), so that its cost does not depend on the others. Thread-safe. The whole
// manifest must outlive the object.
class NamedTensors {
 public:
  explicit NamedTensors(const Manifest& manifest);

  // Returns null if there is no such tensor.
  const LogicalTensor* Find(std::string_view name) const;

  // Returns a manifest that has those of the tensors that exist, the tensors of which they are
  // aliases, and the files that hold them; for a weight that was not saved, its master weight.
  Manifest ManifestOf(std::span<const std::string> names) const;

 private:
  const Manifest& manifest_;
  absl::flat_hash_map<std::string_view, const LogicalTensor*> tensors_;
  absl::flat_hash_map<std::string_view, const std::string*> masters_;  // their names, by parameter
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_NAMED_TENSORS_H_
