#ifndef TESSERA_CHECKPOINT_SCAN_TENSOR_DIGESTS_H_
#define TESSERA_CHECKPOINT_SCAN_TENSOR_DIGESTS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "checkpoint/directory/file_map.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/verify_options.h"
#include "checkpoint/scan/scan.h"
#include "layout/elements/box_runs.h"

namespace tessera::ckpt {

// The logical digests of all tensors of a checkpoint, summed up while a scan visits their bytes.
class TensorDigests {
 public:
  TensorDigests(const Manifest& manifest, const FileMap& map, int workers);

  // Returns the shards whose elements chunks may cut, see FindCutElements(), with the indices of
  // their files. Such shards are left out.
  const std::vector<std::pair<uint32_t, Damage>>& cut() const { return cut_; }

  // Adds the elements of a chunk. Calls with different workers may overlap.
  void Add(int worker, const FilePiece& chunk, const std::byte* data);
  LogicalDigest Sum(int tensor) const;

 private:
  std::vector<std::vector<StoredBox>> boxes_;     // by file, ascending
  std::vector<std::vector<LogicalDigest>> sums_;  // by worker and tensor
  std::vector<std::pair<uint32_t, Damage>> cut_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SCAN_TENSOR_DIGESTS_H_
