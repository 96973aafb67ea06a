#ifndef TESSERA_CONVERT_CORE_SEAL_H_
#define TESSERA_CONVERT_CORE_SEAL_H_

// The codec of seals. A seal proves that a checkpoint of another framework has not changed since it
// was sealed: it has checksums of every file, and the logical digests that a manifest would have.
// Pure: no I/O.
//
//   offset  0  "TSEAL\r\n\x1a"
//   offset  8  version, 32 bits, little-endian
//   offset 12  CRC-32C of all other bytes of the file, 32 bits, little-endian
//   offset 16  a Seal message
// Every version has this magic and checksum: readers can tell a newer seal from a damaged one.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/seal.pb.h"

namespace tessera::ckpt::convert {

// The name of a folder's seal. The seal of a file m.gguf is m.gguf.tessera.seal, beside it.
inline constexpr char kSealFileName[] = "tessera.seal";
inline constexpr uint32_t kSealVersion = 1;
inline constexpr uint64_t kMaxSealBytes = uint64_t{1} << 30;
inline constexpr uint32_t kSealChunkBytes = 1 << 20;
inline constexpr size_t kSha256Bytes = 32;

// Encodes a seal; equal messages yield equal bytes. InvalidArgument for what DecodeSeal() refuses.
absl::StatusOr<std::string> EncodeSeal(const Seal& seal);

// Decodes a seal. DataLoss for damaged or invalid bytes: any change of a byte and any truncation is
// detected before the message is parsed. Unimplemented for another version.
absl::StatusOr<Seal> DecodeSeal(std::string_view bytes);

// Returns a manifest of the sealed files, for a Scanner. Its tensors name bytes only: each stands
// for some of the sealed tensors, and its shards are the ranges of their bytes.
Manifest ToScannedManifest(const Seal& seal);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_SEAL_H_
