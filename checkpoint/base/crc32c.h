#ifndef TESSERA_CHECKPOINT_BASE_CRC32C_H_
#define TESSERA_CHECKPOINT_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tessera::ckpt {

// CRC-32C (Castagnoli; RFC 3720, appendix B.4): reflected polynomial 0x82F63B78, initial value and
// final xor 0xFFFFFFFF. The processor's instruction is used where there is one, a table elsewhere.
// Threads: safe.
uint32_t Crc32c(std::span<const std::byte> data);
uint32_t Crc32c(std::string_view data);

// Checksum of A followed by `data`, given `crc`, the checksum of A. The checksum of nothing is 0.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> data);

// Checksum of A followed by B, from those of A and B and B's length. Cost: O(log length).
uint32_t ConcatCrc32c(uint32_t crc_a, uint32_t crc_b, uint64_t length_b_bytes);

namespace internal {
// Exposed so that a test compares the two.
uint32_t ExtendCrc32cPortable(uint32_t crc, std::span<const std::byte> data);
bool HasHardwareCrc32c();
}  // namespace internal

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_BASE_CRC32C_H_
