#include "checkpoint/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tessera::ckpt {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected: bit 31 is x^0

// a * b modulo the polynomial, both reflected.
constexpr uint32_t MultiplyModP(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b & 1) ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// x^(8 * bytes) modulo the polynomial: multiplying a checksum by it appends that many zero bytes.
constexpr uint32_t ZerosOperator(uint64_t bytes) {
  uint32_t result = uint32_t{1} << 31;       // 1
  uint32_t power = uint32_t{1} << (31 - 8);  // x^8
  for (; bytes != 0; bytes >>= 1) {
    if (bytes & 1) result = MultiplyModP(power, result);
    power = MultiplyModP(power, power);
  }
  return result;
}

// Slicing-by-8 (Kounavis and Berry, 2005): table[k][b] is the checksum state of byte b followed by
// k zero bytes.
constexpr std::array<std::array<uint32_t, 256>, 8> MakeSlices() {
  std::array<std::array<uint32_t, 256>, 8> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) ? (crc >> 1) ^ kPolynomial : crc >> 1;
    table[0][byte] = crc;
  }
  for (int k = 1; k < 8; ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = table[k - 1][byte];
      table[k][byte] = (crc >> 8) ^ table[0][crc & 0xFF];
    }
  }
  return table;
}

constexpr std::array<std::array<uint32_t, 256>, 8> kSlices = MakeSlices();

#if defined(__x86_64__)

// Multiplication by a fixed ZerosOperator in four look-ups.
class ShiftTable {
 public:
  explicit ShiftTable(uint64_t bytes) {
    const uint32_t shift = ZerosOperator(bytes);
    for (int k = 0; k < 4; ++k) {
      for (uint32_t byte = 0; byte < 256; ++byte) {
        table_[k][byte] = MultiplyModP(shift, byte << (8 * k));
      }
    }
  }
  uint32_t operator()(uint32_t crc) const {
    return table_[0][crc & 0xFF] ^ table_[1][(crc >> 8) & 0xFF] ^ table_[2][(crc >> 16) & 0xFF] ^
           table_[3][crc >> 24];
  }

 private:
  std::array<std::array<uint32_t, 256>, 4> table_;
};

inline uint64_t LoadWord(const std::byte* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// The instruction has a latency of three cycles and a throughput of one: three neighbouring blocks
// in flight keep it busy.
template <size_t kBlockBytes>
__attribute__((target("sse4.2"))) uint32_t ThreeBlocks(uint32_t crc, const std::byte*& data,
                                                       size_t& size) {
  static_assert(kBlockBytes % 8 == 0);
  static const ShiftTable& shift = *new ShiftTable(kBlockBytes);
  while (size >= 3 * kBlockBytes) {
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < kBlockBytes; i += 8) {
      a = _mm_crc32_u64(a, LoadWord(data + i));
      b = _mm_crc32_u64(b, LoadWord(data + kBlockBytes + i));
      c = _mm_crc32_u64(c, LoadWord(data + 2 * kBlockBytes + i));
    }
    crc = shift(shift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^
          static_cast<uint32_t>(c);
    data += 3 * kBlockBytes;
    size -= 3 * kBlockBytes;
  }
  return crc;
}

__attribute__((target("sse4.2"))) uint32_t ExtendHardware(uint32_t crc, const std::byte* data,
                                                          size_t size) {
  crc = ~crc;
  crc = ThreeBlocks<4096>(crc, data, size);
  crc = ThreeBlocks<256>(crc, data, size);
  for (; size >= 8; size -= 8, data += 8) {
    crc = static_cast<uint32_t>(_mm_crc32_u64(crc, LoadWord(data)));
  }
  for (; size > 0; --size, ++data) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*data));
  return ~crc;
}

#endif  // defined(__x86_64__)

}  // namespace

namespace internal {

bool HasHardwareCrc32c() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
#else
  return false;
#endif
}

uint32_t ExtendCrc32cPortable(uint32_t crc, std::span<const std::byte> data) {
  const std::byte* at = data.data();
  size_t size = data.size();
  crc = ~crc;
  for (; size >= 8; size -= 8, at += 8) {
    uint8_t b[8];
    std::memcpy(b, at, sizeof(b));
    crc = kSlices[7][(crc & 0xFF) ^ b[0]] ^ kSlices[6][((crc >> 8) & 0xFF) ^ b[1]] ^
          kSlices[5][((crc >> 16) & 0xFF) ^ b[2]] ^ kSlices[4][(crc >> 24) ^ b[3]] ^
          kSlices[3][b[4]] ^ kSlices[2][b[5]] ^ kSlices[1][b[6]] ^ kSlices[0][b[7]];
  }
  for (; size > 0; --size, ++at) {
    crc = (crc >> 8) ^ kSlices[0][(crc & 0xFF) ^ static_cast<uint8_t>(*at)];
  }
  return ~crc;
}

}  // namespace internal

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> data) {
#if defined(__x86_64__)
  if (internal::HasHardwareCrc32c()) return ExtendHardware(crc, data.data(), data.size());
#endif
  return internal::ExtendCrc32cPortable(crc, data);
}

uint32_t Crc32c(std::span<const std::byte> data) { return ExtendCrc32c(0, data); }

uint32_t Crc32c(std::string_view data) {
  return ExtendCrc32c(0, std::as_bytes(std::span(data.data(), data.size())));
}

uint32_t ConcatCrc32c(uint32_t crc_a, uint32_t crc_b, uint64_t length_b_bytes) {
  return MultiplyModP(ZerosOperator(length_b_bytes), crc_a) ^ crc_b;
}

}  // namespace tessera::ckpt
