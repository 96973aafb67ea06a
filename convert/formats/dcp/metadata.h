#ifndef TESSERA_CONVERT_FORMATS_DCP_METADATA_H_
#define TESSERA_CONVERT_FORMATS_DCP_METADATA_H_

// The file .metadata of torch.distributed.checkpoint (DCP): a pickle of the names of a state dict,
// and of the place of each chunk of each tensor.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/core/output.h"
#include "convert/core/value.h"
#include "convert/pickle/value.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

inline constexpr char kDcpMetadataFile[] = ".metadata";

// The place of stored data: a part of a file inside the folder.
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
  Path path;                          // in the state dict; empty: the name is a key at the top
  DType dtype = DType::kUnspecified;  // if torch has one that this version does not know
  Shape shape;
  std::vector<DcpChunk> chunks;  // those that hold any elements
};

// A value that is not a tensor: torch.save() of a Python object.
struct DcpObject {
  std::string name;
  Path path;
  DcpBlob blob;
};

struct DcpMetadata {
  std::vector<DcpTensor> tensors;
  std::vector<DcpObject> objects;
};

// Reads .metadata. Memory is proportional to the file. Paths stay inside the folder. Errors:
// DataLoss with offset or name; Unimplemented if chunks are transformed (compressed).
absl::StatusOr<DcpMetadata> ReadDcpMetadata(const ReadableFile& file);

// The contents of a new folder of torch.distributed.checkpoint (DCP), before tensors are written.

// Returns the contents of .metadata, which ReadDcpMetadata() reads.
std::string DcpMetadataPickle(const DcpMetadata& metadata);

// The files of data, which are archives of torch.save() one after the other, each with one chunk.
class DcpDataFiles {
 public:
  // `max_file_bytes` limits a file, unless a single chunk is larger.
  explicit DcpDataFiles(uint64_t max_file_bytes);
  ~DcpDataFiles();

  // Adds a chunk of that shape with all of the tensor's elements. Sets the tensor's place.
  DcpBlob Add(const Shape& shape, OutputTensor tensor);
  std::vector<OutputFile> Finish() &&;

 private:
  struct PlacedArchive;

  const uint64_t max_file_bytes_;
  std::vector<OutputFile> files_;
  std::vector<std::vector<PlacedArchive>> archives_;  // of each file
};

// Returns a file of torch.save() with an object whose only tensor, if it has one, shows `storage`.
OutputFile TorchObjectFile(std::string name, std::string pickle, std::string_view storage = "");

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_DCP_METADATA_H_
