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

void FuzzOneInput(const std::string& input) {
  const ckpt::convert::StringFile file(input);
  (void)ckpt::convert::FindInfiniTrainNumber(input, "global_step");
  const auto shards = ckpt::convert::ParseInfiniTrainMetadata(input);
  for (size_t i = 0; shards.ok() && i < shards->size(); ++i) {
    for (const auto& segment : (*shards)[i].segments) {
      const tessera::Shape& part = (*shards)[i].local_shape;
      Check(part.empty() || segment.local_offset + segment.length <= part[(*shards)[i].dim]);
    }
  }
  const auto tensors = ckpt::convert::ReadInfiniTrainStateFile(file);
  if (!tensors.ok()) return;
  Check(tensors->size() < input.size());
  uint64_t end = 0;
  for (const ckpt::convert::InfiniTrainTensor& tensor : *tensors) {
    Check(tensor.offset_bytes > end);
    end = tensor.offset_bytes +
          static_cast<uint64_t>(tessera::ElementCount(tensor.shape)) * ElementSize(tensor.dtype);
  }
  Check(tensors->empty() || end == input.size());
}
