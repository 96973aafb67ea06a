#ifndef TESSERA_CHECKPOINT_LOAD_NAMED_TENSORS_H_
#define TESSERA_CHECKPOINT_LOAD_NAMED_TENSORS_H_

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/include/manifest.pb.h"

namespace tessera::ckpt {

// The tensors of a valid manifest by their names. A load of a few tensors uses a manifest of only
// these (ManifestOf()), so that its cost does not depend on the others. Thread-safe. The whole
// manifest must outlive the object.
class NamedTensors {
 public:
  explicit NamedTensors(const Manifest& manifest);

  // Returns null if there is no such tensor.
  const LogicalTensor* Find(std::string_view name) const;

  // Returns a manifest of these tensors and the files that hold them. Adds the targets of aliases,
  // takes the master weight for a weight that was not saved, and skips unknown names.
  Manifest ManifestOf(std::span<const std::string> names) const;

 private:
  const Manifest& manifest_;
  std::map<std::string_view, const LogicalTensor*> tensors_;
  std::map<std::string_view, std::string_view> masters_;  // see MasterNames()
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_NAMED_TENSORS_H_
