// A fuzz target: any bytes as a state dict, whose tensors lie inside the file in its order, as
// metadata.json, whose segments lie inside their parts, or as trainer_state.json; or an error.

#include <cstddef>
#include <cstdint>
#include <string>

#include "convert/formats/infinitrain/state_file.h"
#include "convert/testing/fuzz_check.h"
#include "convert/testing/string_file.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace ckpt = tessera::ckpt;
using tessera::ckpt::convert::Check;

extern "C" int FuzzOneInput(const uint8_t* data, size_t size) {
  const ckpt::convert::StringFile file(std::string(reinterpret_cast<const char*>(data), size));
  (void)ckpt::convert::FindInfiniTrainNumber(file.contents(), "global_step");
  const auto shards = ckpt::convert::ParseInfiniTrainMetadata(file.contents());
  for (size_t i = 0; shards.ok() && i < shards->size(); ++i) {
    for (const auto& segment : (*shards)[i].segments) {
      const tessera::Shape& part = (*shards)[i].local_shape;
      Check(part.empty() || segment.local_offset + segment.length <= part[(*shards)[i].dim]);
    }
  }
  const auto tensors = ckpt::convert::ReadInfiniTrainStateFile(file);
  if (!tensors.ok()) return 0;
  Check(tensors->size() < size);
  uint64_t end = 0;
  for (const ckpt::convert::InfiniTrainTensor& tensor : *tensors) {
    Check(tensor.offset_bytes > end);
    end = tensor.offset_bytes +
          static_cast<uint64_t>(tessera::ElementCount(tensor.shape)) * ElementSize(tensor.dtype);
  }
  Check(tensors->empty() || end == size);
  return 0;
}
