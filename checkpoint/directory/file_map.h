#ifndef TESSERA_CHECKPOINT_DIRECTORY_FILE_MAP_H_
#define TESSERA_CHECKPOINT_DIRECTORY_FILE_MAP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/verify_options.h"

namespace tessera::ckpt {

// Maps bytes of the data files to tensors.
class FileMap {
 public:
  struct Extent {
    uint64_t begin;
    uint64_t end;
    uint32_t tensor;  // into Manifest.tensors
    int64_t shard;
  };

  // Precondition: a valid manifest, which must outlive the map.
  explicit FileMap(const Manifest& manifest);

  // Returns the extents of a file, ascending by begin.
  const std::vector<Extent>& extents(uint32_t file_index) const { return extents_[file_index]; }

  // Returns "wte.weight, wpe.weight and 3 more", the tensors with bytes in [begin, end) of the
  // file; empty if no tensor has bytes there.
  std::string TensorsIn(uint32_t file_index, uint64_t begin, uint64_t end) const;

 private:
  const Manifest& manifest_;
  std::vector<std::vector<Extent>> extents_;
};

// Describes chunk `chunk` of a file whose checksum is `found` instead of the manifest's. Names the
// damaged byte if there is only one, otherwise the chunk.
Damage DescribeChecksumError(const Manifest& manifest, const FileMap& map, uint32_t file_index,
                             uint64_t chunk, uint32_t found);

// Describes a file whose size differs from the manifest's.
Damage DescribeSizeError(const Manifest& manifest, const FileMap& map, uint32_t file_index,
                         uint64_t found_bytes);

// Returns all fields in one line.
std::string ToString(const Damage& damage);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_FILE_MAP_H_
