#ifndef TESSERA_OPERATIONS_DIFF_H_
#define TESSERA_OPERATIONS_DIFF_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "operations/compare_data.h"
#include "operations/named_checkpoint.h"

namespace tessera::ckpt {

struct DiffOptions {
  bool data = false;  // compares every element instead of the digests in the manifests
  // Whether to compare the elements of tensors whose digests differ, to say by how much. A damaged
  // tensor counts as different and does not end the comparison.
  bool distances = false;
  int io_threads = 4;
};

struct TensorDifference {
  std::string tensor;
  std::string message;
};

// The differences between the states of two checkpoints, whatever their topologies.
struct Differences {
  std::vector<std::string> notes;     // not counted: how it was saved, by which program
  std::vector<std::string> metadata;  // one line per field
  std::vector<TensorDifference> tensors;
  std::map<std::string, DataDifference> data;  // of tensors whose contents were compared
  int64_t equal_by_digest = 0;
  int64_t equal_by_contents = 0;
  int64_t equal_aliases = 0;

  int64_t equal() const { return equal_by_digest + equal_by_contents + equal_aliases; }
  bool none() const { return metadata.empty() && tensors.empty(); }
};

// Compares the contents of two checkpoints by the digests in their manifests, and tensors without a
// digest by their elements. Errors: those of reading; DataLoss for damage.
absl::StatusOr<Differences> Diff(const NamedCheckpoint& a, const NamedCheckpoint& b,
                                 const DiffOptions& options);

nlohmann::ordered_json ToJson(const Differences& differences);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_DIFF_H_
