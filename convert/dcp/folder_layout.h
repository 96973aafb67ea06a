#ifndef TESSERA_CONVERT_DCP_FOLDER_LAYOUT_H_
#define TESSERA_CONVERT_DCP_FOLDER_LAYOUT_H_

// What a new folder of torch.distributed.checkpoint (DCP) holds, before any tensor is written.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/output.h"
#include "convert/dcp/metadata.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {

// The contents of .metadata: the inverse of ReadDcpMetadata().
std::string DcpMetadataPickle(const DcpMetadata& metadata);

// Files of data, which are archives of torch.save() one after the other, each with one chunk.
class DcpDataFiles {
 public:
  // `max_file_bytes`: of one file, unless a single chunk is larger.
  explicit DcpDataFiles(uint64_t max_file_bytes);
  ~DcpDataFiles();

  // A chunk of that shape, whose elements are all of the tensor's. Sets the tensor's place.
  DcpBlob Add(const Shape& shape, OutputTensor tensor);
  std::vector<OutputFile> Finish() &&;

 private:
  struct PlacedArchive;

  const uint64_t max_file_bytes_;
  std::vector<OutputFile> files_;
  std::vector<std::vector<PlacedArchive>> archives_;  // of each file
};

// A file of torch.save() with an object whose one tensor, if it has any, shows `storage`.
OutputFile TorchObjectFile(std::string name, std::string pickle, std::string_view storage = "");

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_DCP_FOLDER_LAYOUT_H_
