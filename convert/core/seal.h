#ifndef TESSERA_CONVERT_CORE_SEAL_H_
#define TESSERA_CONVERT_CORE_SEAL_H_

// The codec of seals. A seal proves that a checkpoint of another framework is what it was when it
// was sealed: it has checksums of every file, and the logical digests that a manifest would have.
// Pure: no I/O.
//
//   offset  0  "TSEAL\r\n\x1a"
//   offset  8  version, 32 bits, little-endian
//   offset 12  CRC-32C of all other bytes of the file, 32 bits, little-endian
//   offset 16  a Seal message
//
// Every version has this magic and this checksum: readers can tell a newer seal from a damaged one.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/seal.pb.h"

namespace tessera::ckpt::convert {

// In a folder; that of the file m.gguf is m.gguf.tessera.seal, beside it.
inline constexpr char kSealFileName[] = "tessera.seal";
inline constexpr uint32_t kSealVersion = 1;
inline constexpr uint64_t kMaxSealBytes = uint64_t{1} << 30;
inline constexpr uint32_t kSealChunkBytes = 1 << 20;
inline constexpr size_t kSha256Bytes = 32;

// The same message yields the same bytes. InvalidArgument for one that DecodeSeal() would refuse.
absl::StatusOr<std::string> EncodeSeal(const Seal& seal);

// DataLoss for damaged or invalid bytes: any change of a byte and any truncation is detected before
// the message is parsed. Unimplemented for another version.
absl::StatusOr<Seal> DecodeSeal(std::string_view bytes);

// Chunks of a file.
uint64_t SealedChunks(const DataFile& file);

// The sealed files as those of a manifest that a Scanner reads. Its tensors name the bytes alone:
// each is some of the sealed tensors and has, as shards, the ranges in which these are.
Manifest ToScannedManifest(const Seal& seal);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_SEAL_H_
