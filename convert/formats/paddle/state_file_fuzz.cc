// A fuzz target: any bytes are a state dict whose arrays lie inside the file, or inside what is
// decoded behind it, or an error. As metadata, they are shards that have files and as many offsets
// as extents, or an error.

#include <cstddef>
#include <cstdint>
#include <string>

#include "convert/formats/paddle/distributed_files.h"
#include "convert/formats/paddle/files.h"
#include "convert/formats/paddle/state_file.h"
#include "convert/testing/fuzz_check.h"
#include "convert/testing/string_file.h"
#include "layout/box.h"

namespace {

namespace ckpt = tessera::ckpt;
using tessera::ckpt::convert::Check;

void CheckArray(const ckpt::convert::PaddleArray& array, size_t file_bytes) {
  uint64_t elements = 0;
  for (const ckpt::pickle::NumpyArray& part : array.parts) {
    ckpt::convert::CheckInside(part, file_bytes);
    elements += static_cast<uint64_t>(tessera::ElementCount(part.shape));
  }
  Check(elements == static_cast<uint64_t>(tessera::ElementCount(array.shape)));
  ckpt::convert::ParsePaddleStateKey(array.key);
}

}  // namespace

void FuzzOneInput(const std::string& input) {
  const ckpt::convert::StringFile file(input);
  const auto shards = ckpt::convert::ReadPaddleMetadata(file);
  for (size_t i = 0; shards.ok() && i < shards->size(); ++i) {
    const ckpt::convert::PaddleShard& shard = (*shards)[i];
    Check(!shard.file.empty() && shard.box.shape.size() == shard.box.global_offset.size());
    ckpt::convert::ParsePaddleShardKey(shard.key);
  }
  const auto state = ckpt::convert::ReadPaddleStateFile(file);
  if (!state.ok()) return;
  const size_t bytes = input.size() + state->decoded.size();
  for (const auto& array : state->arrays) CheckArray(array, bytes);
  for (const auto& array : state->master_weights) CheckArray(array, bytes);
}
