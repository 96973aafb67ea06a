// A fuzz target: any bytes are a file of a rank of Megatron-LM, with tensors that lie inside the
// file, or an error.

#include <cstddef>
#include <string>

#include "convert/core/foreign_checkpoint.h"
#include "convert/formats/megatron/rank_file.h"
#include "convert/formats/megatron/run.h"
#include "convert/pickle/torch_archive.h"
#include "convert/testing/fuzz_check.h"
#include "convert/testing/string_file.h"

namespace {

namespace convert = tessera::ckpt::convert;
using convert::Check;
using convert::CheckInside;

void CheckVectors(const convert::StateVectors& vectors, size_t file_bytes) {
  for (const auto& [kind, tensor] : vectors) CheckInside(tensor, file_bytes);
}

}  // namespace

void FuzzOneInput(const std::string& input) {
  const convert::StringFile file(input);
  const auto archive = convert::ReadTorchArchive(file, {0, input.size()});
  if (!archive.ok()) return;
  const tessera::ckpt::pickle::Value root = archive->contents.root();
  const convert::MegatronRun run(root);
  convert::ForeignCheckpoint checkpoint;
  run.Describe(checkpoint);
  Check(!run.ArgumentsAsJson().empty() && run.BucketElements() >= 0);
  if (const auto chunks = convert::ReadRankChunks(*archive); chunks.ok()) {
    for (const convert::RankChunk& chunk : *chunks) {
      for (const auto& [name, tensor] : chunk.tensors) CheckInside(tensor, input.size());
    }
  }
  const auto groups = convert::ReadNumberedState(*archive, root.Find("optimizer"));
  if (groups.ok()) {
    for (const convert::MegatronGroup& group : *groups) {
      for (const auto& vectors : group.parameters) CheckVectors(vectors, input.size());
    }
  }
  if (const auto buffers = convert::ReadGatheredState(*archive, root); buffers.ok()) {
    for (const convert::GatheredBuffer& buffer : *buffers) {
      for (const auto& [kind, tensor] : buffer.vectors) Check(tensor.shape[0] == buffer.elements);
      CheckVectors(buffer.vectors, input.size());
    }
  }
}
