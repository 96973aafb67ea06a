#ifndef TESSERA_CONVERT_FORMATS_GGUF_GGUF_FILE_H_
#define TESSERA_CONVERT_FORMATS_GGUF_GGUF_FILE_H_

// The header of GGUF files (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md):
//
//   "GGUF" | u32 version | u64 tensors | u64 entries of metadata
//   each entry:   string key | u32 type | value        string: u64 length | bytes
//   each tensor:  string name | u32 dims | u64 extents, the fastest first | u32 type | u64 offset
//   padding to the alignment, from which offsets count | tensors, each aligned
//
// All numbers are little-endian. An array is u32 type | u64 length | elements.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kGgufMagic = "GGUF";

// A value of the metadata. Not read are arrays, numbers beyond the range of int64_t, and texts that
// are longer than kMaxGgufTextBytes or not UTF-8: monostate.
using GgufValue = std::variant<std::monostate, bool, int64_t, double, std::string,
                               std::vector<std::string>, std::vector<int32_t>, std::vector<float>>;
inline constexpr uint64_t kMaxGgufTextBytes = 4096;

struct GgufTensor {
  std::string name;
  DType dtype = DType::kUnspecified;
  Shape shape;                // row-major
  uint64_t offset_bytes = 0;  // from the beginning of the file

  bool operator==(const GgufTensor&) const = default;
};

struct GgufHeader {
  std::vector<std::pair<std::string, GgufValue>> metadata;
  std::vector<GgufTensor> tensors;
};

// Reads the header of a file of version 2 or 3. Every tensor lies inside the file, is aligned and
// overlaps no other; keys and names are distinct. An fp32 of the metadata becomes the shortest
// decimal number that rounds to it. Memory is proportional to the header's size in the file.
//
// Errors: DataLoss for a file that is cut off or contradicts itself; InvalidArgument, naming it,
// for an unsupported version or type of tensors.
absl::StatusOr<GgufHeader> ReadGgufHeader(const ReadableFile& file);

// Returns the bytes of a header of version 3, padding included, for tensors that follow in this
// order, and sets their offsets. Integers are written as uint32, real numbers as fp32.
//
// Preconditions: integers in range; tensors of F32, F16 or BF16.
std::string BuildGgufHeader(GgufHeader& header);

// Returns the size of the tensor in the file with the padding that follows it.
uint64_t PaddedGgufBytes(const GgufTensor& tensor);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_GGUF_GGUF_FILE_H_
