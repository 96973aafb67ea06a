#ifndef TESSERA_TRAINER_DATA_TOKEN_CHECKSUMS_H_
#define TESSERA_TRAINER_DATA_TOKEN_CHECKSUMS_H_

// Checksums of a token file, kept in a small file beside it: train_000.bin.crc32c for
// train_000.bin. With them a damaged page is noticed when it is read, and a fingerprint of all the
// contents costs no more than reading the small file.
//
// Format, version 1. Numbers are little-endian and unsigned except modified_ns. Chunk i of n is the
// bytes [i * chunk_bytes, min((i + 1) * chunk_bytes, size_bytes)) of the token file, header
// included.
//
//   offset     bytes  field
//   0          8      magic: "TOKSUMS\n"
//   8          4      version: 1
//   12         4      chunk_bytes: 65536
//   16         8      size_bytes of the token file
//   24         8      modified_ns: 0 where the writer of the tokens computed the checksums,
//                     which are then valid wherever both files are copied. Otherwise they were
//                     computed from an existing file whose time of modification (nanoseconds
//                     since 1970) this is: a file with another size or time is another file, and
//                     its checksums are computed again.
//   32         4 * n  CRC-32C of each chunk
//   32 + 4 * n 4      CRC-32C of the bytes before
//
// Another version is refused. The chunk size belongs to the version, so that a fingerprint is a
// function of the contents alone.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace tessera {

// Size of a chunk: small enough that reading one sample costs little more than without checksums,
// large enough that the checksums of the largest token file (8 GiB) take half a MiB.
inline constexpr int64_t kChecksumChunkBytes = 64 << 10;

struct TokenChecksums {
  int64_t size_bytes = 0;
  int64_t modified_ns = 0;
  std::vector<uint32_t> chunk_crc32c;

  // Returns a hash of the token file's size and all checksums; never 0.
  uint64_t Fingerprint() const;
};

std::string ChecksumPath(const std::string& token_path);
bool IsChecksumPath(std::string_view path);

std::string EncodeTokenChecksums(const TokenChecksums& checksums);
// Decodes a checksum file. DataLoss names `path`, the offset, the expected and the found value.
absl::StatusOr<TokenChecksums> DecodeTokenChecksums(const std::string& path,
                                                    std::string_view bytes);

// Returns the checksums of the token file at `token_path`, which is open as `file`; nullopt if it
// has no checksums, or if they belong to an earlier file of that name (see modified_ns). DataLoss
// if the checksums are damaged, or if the writer's checksums are for a file of another size.
absl::StatusOr<std::optional<TokenChecksums>> ReadTokenChecksums(const std::string& token_path,
                                                                 const FileDescriptor& file);
absl::Status WriteTokenChecksums(const std::string& token_path, const TokenChecksums& checksums);
// Removes checksums, durably, so that no crash leaves them beside a file that has others.
absl::Status RemoveTokenChecksums(const std::string& token_path);

// Computes checksums from the whole `file`, and records its modification time in modified_ns.
absl::StatusOr<TokenChecksums> MakeTokenChecksums(const std::string& token_path,
                                                  const FileDescriptor& file);

// Computes the checksums of a token file while it is written from front to back, its header last.
class TokenChecksumBuilder {
 public:
  void Append(std::span<const std::byte> bytes);
  // Returns the checksums. `header` replaces the first bytes, which were a placeholder. Call once,
  // last. Precondition: header.size() <= kChecksumChunkBytes, and at least as many bytes were
  // appended.
  TokenChecksums Finish(std::span<const std::byte> header);

 private:
  TokenChecksums checksums_;
  std::vector<std::byte> first_chunk_;
  int64_t chunk_bytes_ = 0;  // of the current chunk
  uint32_t crc32c_ = 0;      // of the current chunk
};

// Hashes bytes in order, as little-endian words: the same on every machine. Distinguishes contents,
// but does not resist an adversary.
class ContentHash {
 public:
  void Add(uint64_t value);
  // Adds bytes. The hash does not depend on how they are split over successive calls.
  void Add(std::span<const uint8_t> bytes);
  uint64_t Finish();

 private:
  uint64_t hash_ = 0;
  uint64_t pending_ = 0;
  int pending_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

// A fingerprint of token data. Data with different fingerprints differ. Equal complete fingerprints
// mean equal data; with equal sampled ones (TokenFile::SampledFingerprint) the data may differ
// between the samples.
struct DataFingerprint {
  uint64_t sampled = 0;
  uint64_t complete = 0;  // 0: unknown, because a shard has no checksums
};

// Returns whether the data may be the same: compares the complete fingerprints if both have one,
// otherwise the sampled ones.
inline bool MayBeSameData(const DataFingerprint& a, const DataFingerprint& b) {
  if (a.complete != 0 && b.complete != 0) return a.complete == b.complete;
  return a.sampled == b.sampled;
}

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_TOKEN_CHECKSUMS_H_
