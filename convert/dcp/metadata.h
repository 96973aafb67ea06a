#ifndef TESSERA_CONVERT_DCP_METADATA_H_
#define TESSERA_CONVERT_DCP_METADATA_H_

// The file .metadata of torch.distributed.checkpoint (DCP): a pickle of the names of a state dict,
// and where each chunk of each tensor is stored.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/include/storage.h"
#include "convert/pickle/value.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {

inline constexpr char kDcpMetadataFile[] = ".metadata";

// Where something is stored: part of a file inside the folder.
struct DcpBlob {
  std::string file;
  pickle::Extent part;
};

struct DcpChunk {
  Box box;
  DcpBlob blob;
};

struct DcpTensor {
  std::string name;
  DType dtype = DType::kUnspecified;  // if torch has one that this version does not know
  Shape shape;
  std::vector<DcpChunk> chunks;  // those that hold any elements
};

// Anything else: torch.save() of a Python object.
struct DcpObject {
  std::string name;
  DcpBlob blob;
};

struct DcpMetadata {
  std::vector<DcpTensor> tensors;
  std::vector<DcpObject> objects;
  bool is_nested = false;  // written: names are keys of a dict below "model" or "optimizer"
};

// Memory is proportional to the file. Paths stay inside the folder. Errors: DataLoss with offset or
// name; Unimplemented where chunks are transformed (compressed).
absl::StatusOr<DcpMetadata> ReadDcpMetadata(const ReadableFile& file);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_DCP_METADATA_H_
