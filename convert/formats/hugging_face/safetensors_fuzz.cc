// A fuzz target: any bytes are a safetensors file whose tensors fill it, or an error. What is read
// can be written again, and is read from there as before.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checkpoint/format/safetensors.h"
#include "convert/testing/fuzz_check.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace {

namespace ckpt = tessera::ckpt;
using tessera::ckpt::convert::Check;

void CheckEntries(const ckpt::SafetensorsHeader& header, uint64_t file_bytes) {
  uint64_t end = header.data_offset;
  for (const ckpt::SafetensorsEntry& entry : header.entries) {
    Check(entry.file_offset == end);
    const auto elements = static_cast<uint64_t>(tessera::ElementCount(entry.shape));
    Check(entry.length_bytes == elements * ElementSize(entry.dtype));
    end += entry.length_bytes;
  }
  Check(end == file_bytes);
}

void CheckWrittenAgain(ckpt::SafetensorsHeader header) {
  const auto bytes = ckpt::BuildSafetensorsHeader(header);
  if (!bytes.ok()) return;
  const auto read = ckpt::ParseSafetensorsHeader(*bytes, header.file_size_bytes);
  Check(read.ok() && read->metadata == header.metadata);
  Check(read->entries.size() == header.entries.size());
  CheckEntries(*read, header.file_size_bytes);
}

}  // namespace

extern "C" int FuzzOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto header_bytes = ckpt::SafetensorsHeaderBytes(file.substr(0, 8), size);
  if (!header_bytes.ok()) return 0;
  Check(*header_bytes <= size);
  const auto header = ckpt::ParseSafetensorsHeader(file.substr(0, *header_bytes), size);
  if (!header.ok()) return 0;
  CheckEntries(*header, size);
  CheckWrittenAgain(*header);
  return 0;
}
