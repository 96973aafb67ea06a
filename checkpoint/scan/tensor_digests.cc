#include "checkpoint/scan/tensor_digests.h"

#include <optional>

#include "checkpoint/elements/digest_elements.h"
#include "checkpoint/format/manifest_codec.h"

namespace tessera::ckpt {

TensorDigests::TensorDigests(const Manifest& manifest, const FileMap& map, int workers)
    : boxes_(manifest.files_size()),
      sums_(workers, std::vector<LogicalDigest>(manifest.tensors_size())) {
  for (uint32_t f = 0; f < boxes_.size(); ++f) {
    for (const FileMap::Extent& extent : map.extents(f)) {
      const LogicalTensor& tensor = manifest.tensors(extent.tensor);
      const Box box = ShardBox(tensor, extent.shard);
      if (box.empty()) continue;
      if (std::optional<Damage> damage = FindCutElements(manifest, f, extent.begin, tensor)) {
        cut_.emplace_back(f, *std::move(damage));
        continue;
      }
      const Shape shape = GlobalShape(tensor);
      boxes_[f].push_back(
          {extent.begin, extent.end, extent.tensor, ElementSize(FromProto(tensor.dtype())),
           BoxRuns(box, box, std::vector<int64_t>(shape.size(), 0), ContiguousStrides(shape))});
    }
  }
}

void TensorDigests::Add(int worker, const FilePiece& chunk, const std::byte* data) {
  DigestStored(boxes_[chunk.file_index], chunk.begin, chunk.end, data, sums_[worker]);
}

LogicalDigest TensorDigests::Sum(int tensor) const {
  LogicalDigest sum;
  for (const std::vector<LogicalDigest>& sums : sums_) sum += sums[tensor];
  return sum;
}

}  // namespace tessera::ckpt
