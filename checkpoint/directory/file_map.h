#ifndef TESSERA_CHECKPOINT_DIRECTORY_FILE_MAP_H_
#define TESSERA_CHECKPOINT_DIRECTORY_FILE_MAP_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/directory/damage.h"
#include "checkpoint/format/manifest.pb.h"

namespace tessera::ckpt {

// Which tensor lies where in the data files.
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

  // Ascending by begin.
  const std::vector<Extent>& extents(uint32_t file_index) const { return extents_[file_index]; }

  // "wte.weight, wpe.weight and 3 more": the tensors with bytes in [begin, end) of the file. Empty
  // where there are none.
  std::string TensorsIn(uint32_t file_index, uint64_t begin, uint64_t end) const;

 private:
  const Manifest& manifest_;
  std::vector<std::vector<Extent>> extents_;
};

// The only place where one changed byte explains that `found` is the CRC-32C of `length_bytes`
// bytes instead of `expected`: an offset from their beginning. nullopt where no or several places
// do. Cost: O(length).
std::optional<uint64_t> LocateSingleByteError(uint32_t expected, uint32_t found,
                                              uint64_t length_bytes);

// What to say of chunk `chunk` of a file whose checksum is `found` instead of the manifest's. Names
// the damaged byte where only one is, else the chunk.
Damage DescribeChecksumError(const Manifest& manifest, const FileMap& map, uint32_t file_index,
                             uint64_t chunk, uint32_t found);

// Of a file that has another size than the manifest says.
Damage DescribeSizeError(const Manifest& manifest, const FileMap& map, uint32_t file_index,
                         uint64_t found_bytes);

// One line with all that is in it.
std::string ToString(const Damage& damage);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_FILE_MAP_H_
