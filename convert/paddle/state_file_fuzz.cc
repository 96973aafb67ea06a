// A fuzz target: any bytes are a state dict whose arrays lie inside the file, or an error.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "convert/paddle/files.h"
#include "convert/testing/string_file.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace {

namespace ckpt = tessera::ckpt;

void Check(bool condition) {
  if (!condition) std::abort();
}

void CheckArray(const ckpt::convert::PaddleArray& array, size_t file_bytes) {
  uint64_t elements = 0;
  for (const ckpt::pickle::NumpyArray& part : array.parts) {
    Check(part.shape.size() == part.strides.size());
    const auto count = static_cast<uint64_t>(tessera::ElementCount(part.shape));
    elements += count;
    Check(count == 0 || part.offset_bytes + count * ElementSize(part.dtype) <= file_bytes);
  }
  Check(elements == static_cast<uint64_t>(tessera::ElementCount(array.shape)));
  ckpt::convert::ParsePaddleStateKey(array.key);
}

}  // namespace

extern "C" int FuzzOneInput(const uint8_t* data, size_t size) {
  const ckpt::convert::StringFile file(std::string(reinterpret_cast<const char*>(data), size));
  const auto state = ckpt::convert::ReadPaddleStateFile(file);
  if (!state.ok()) return 0;
  for (const auto& array : state->arrays) CheckArray(array, size);
  for (const auto& array : state->master_weights) CheckArray(array, size);
  return 0;
}
