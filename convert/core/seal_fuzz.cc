// A fuzz target: any bytes as a seal, as they are and with the checksum that they should have. What
// is accepted is written again with the same meaning, and its ranges lie inside its files.

#include <cstdint>
#include <string>

#include "base/byte_order.h"
#include "base/crc32c.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/seal.h"
#include "convert/testing/fuzz_check.h"

namespace {

namespace convert = tessera::ckpt::convert;
using convert::Check;

void CheckSealOf(const std::string& bytes) {
  const auto seal = convert::DecodeSeal(bytes);
  if (!seal.ok()) return;
  const auto again = convert::EncodeSeal(*seal);
  Check(again.ok() && convert::DecodeSeal(*again).ok());
  const tessera::ckpt::Manifest manifest = convert::ToScannedManifest(*seal);
  Check(manifest.files_size() == seal->files_size());
  for (const tessera::ckpt::LogicalTensor& tensor : manifest.tensors()) {
    for (int64_t s = 0; s < tessera::ckpt::ShardCount(tensor); ++s) {
      const auto index = static_cast<int>(s);
      const uint64_t size = manifest.files(tensor.shards().file_index(index)).size_bytes();
      Check(tensor.shards().file_offset(index) < size);
      Check(tessera::ckpt::ShardBytes(tensor, s) <= size - tensor.shards().file_offset(index));
    }
  }
}

}  // namespace

void FuzzOneInput(const std::string& input) {
  std::string bytes = input;
  CheckSealOf(bytes);
  if (input.size() < 16) return;
  const std::string without = bytes.substr(0, 12) + bytes.substr(16);
  tessera::StoreLittleEndian(tessera::Crc32c(without), bytes.data() + 12);
  CheckSealOf(bytes);
}
