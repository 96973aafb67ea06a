// A fuzz target: any bytes are the metadata of a checkpoint or an error.

#include <cstddef>
#include <cstdint>
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

extern "C" int FuzzOneInput(const uint8_t* data, size_t size) {
  namespace ckpt = tessera::ckpt;
  const ckpt::convert::StringFile file(std::string(reinterpret_cast<const char*>(data), size));
  const auto metadata = ckpt::convert::ReadDcpMetadata(file);
  if (!metadata.ok()) return 0;
  for (const ckpt::convert::DcpTensor& tensor : metadata->tensors) {
    for (const ckpt::convert::DcpChunk& chunk : tensor.chunks) {
      const bool inside = tessera::Contains(tessera::WholeBox(tensor.shape), chunk.box);
      if (!inside || chunk.box.empty() || LeavesTheFolder(chunk.blob.file)) std::abort();
    }
  }
  return 0;
}
