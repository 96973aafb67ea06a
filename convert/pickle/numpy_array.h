#ifndef TESSERA_CONVERT_PICKLE_NUMPY_ARRAY_H_
#define TESSERA_CONVERT_PICKLE_NUMPY_ARRAY_H_

// numpy's arrays and scalars in pickles, whose elements stay in the file.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/pickle/value.h"
#include "convert/pickle/write.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "storage/storage.h"

namespace tessera::ckpt::pickle {

struct NumpyArray {
  DType dtype = DType::kUnspecified;
  Shape shape;
  std::vector<int64_t> strides;  // in elements, one per dim
  uint64_t offset_bytes = 0;     // of its first element, from the beginning of the file
  bool operator==(const NumpyArray&) const = default;
};

// Returns whether a value is an array that numpy 1 or 2 pickled with protocol 2 to 5. False for
// arrays of protocol 5 with out-of-band buffers.
bool IsNumpyArray(const Value& value);
// Returns the same of a scalar, such as numpy.float64(0.5).
bool IsNumpyScalar(const Value& value);

// Returns the elements of an array or a scalar of a pickle in `file`, which fill its bytes exactly.
// Protocol 2 has no bytes, and Python 3 writes them as text: such elements are appended to
// `decoded`, and offsets there continue those of the file. Errors: DataLoss for a malformed
// description; Unimplemented for dtypes that this library does not have, for big-endian elements,
// and for arrays that Python 2 wrote. Precondition: one of the above.
absl::StatusOr<NumpyArray> ResolveNumpyArray(const Value& value, const ReadableFile& file,
                                             std::string& decoded);

// Writes an array as numpy 1 does, which numpy 2 reads, too, less its elements, which the caller
// puts between the two calls (Writer::BeginBytes()). Precondition: a dtype that numpy has.
void BeginNumpyArray(DType dtype, const Shape& shape, Writer& writer);
void EndNumpyArray(Writer& writer);

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CONVERT_PICKLE_NUMPY_ARRAY_H_
