// A fuzz target: any bytes are the metadata of a checkpoint or an error.

#include <cstdlib>
#include <string>

#include "convert/formats/dcp/metadata.h"
#include "convert/testing/string_file.h"
#include "layout/box.h"

namespace {

bool LeavesTheFolder(const std::string& file) {
  return file.starts_with('/') || ("/" + file + "/").find("/../") != std::string::npos;
}

}  // namespace

void FuzzOneInput(const std::string& input) {
  namespace ckpt = tessera::ckpt;
  const ckpt::convert::StringFile file(input);
  const auto metadata = ckpt::convert::ReadDcpMetadata(file);
  if (!metadata.ok()) return;
  for (const ckpt::convert::DcpTensor& tensor : metadata->tensors) {
    for (const ckpt::convert::DcpChunk& chunk : tensor.chunks) {
      const bool inside = tessera::Contains(tessera::WholeBox(tensor.shape), chunk.box);
      if (!inside || chunk.box.empty() || LeavesTheFolder(chunk.blob.file)) std::abort();
    }
  }
}
