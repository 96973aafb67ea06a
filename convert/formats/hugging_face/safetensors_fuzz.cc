// A fuzz target: any bytes are a safetensors file whose tensors fill it, or an error. What is read
// can be written again, and is read from there as before.

#include <cstdint>
#include <string>

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
    const uint64_t element_bytes = ElementSize(entry.dtype);
    Check(element_bytes == 0 || entry.length_bytes == elements * element_bytes);
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

void FuzzOneInput(const std::string& input) {
  const auto header_bytes = ckpt::SafetensorsHeaderBytes(input.substr(0, 8), input.size());
  if (!header_bytes.ok()) return;
  Check(*header_bytes <= input.size());
  const auto header = ckpt::ParseSafetensorsHeader(input.substr(0, *header_bytes), input.size());
  if (!header.ok()) return;
  CheckEntries(*header, input.size());
  CheckWrittenAgain(*header);
}
