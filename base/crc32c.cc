// Also for processors with VPCLMULQDQ, for which Highway compiles on demand.
#define HWY_WANT_AVX3_DL

#include "base/crc32c.h"

#include <array>
#include <cstring>

// Per-target code comes first: the code after it is compiled once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/crc32c.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "base/dispatch.h"

#ifndef TESSERA_BASE_CRC32C_CC_
#define TESSERA_BASE_CRC32C_CC_

namespace tessera {
namespace {

using internal::kCastagnoli;
using internal::kZip;
using internal::ZerosOperator;

// Returns the tables of slicing-by-8 (Kounavis and Berry, 2005): table[k][b] is the checksum state
// of byte b followed by k zero bytes.
template <uint32_t kPolynomial>
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

template <uint32_t kPolynomial>
constexpr std::array<std::array<uint32_t, 256>, 8> kSlicesOf = MakeSlices<kPolynomial>();

// Advances a checksum's state (the complement of the checksum) over `size` bytes.
template <uint32_t kPolynomial>
uint32_t AdvanceByTables(uint32_t state, const std::byte* at, size_t size) {
  constexpr auto& kSlices = kSlicesOf<kPolynomial>;
  for (; size >= 8; size -= 8, at += 8) {
    uint8_t b[8];
    std::memcpy(b, at, sizeof(b));
    state = kSlices[7][(state & 0xFF) ^ b[0]] ^ kSlices[6][((state >> 8) & 0xFF) ^ b[1]] ^
            kSlices[5][((state >> 16) & 0xFF) ^ b[2]] ^ kSlices[4][(state >> 24) ^ b[3]] ^
            kSlices[3][b[4]] ^ kSlices[2][b[5]] ^ kSlices[1][b[6]] ^ kSlices[0][b[7]];
  }
  for (; size > 0; --size, ++at) {
    state = (state >> 8) ^ kSlices[0][(state & 0xFF) ^ static_cast<uint8_t>(*at)];
  }
  return state;
}

}  // namespace
}  // namespace tessera

#endif  // TESSERA_BASE_CRC32C_CC_

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {

#if HWY_TARGET <= HWY_SSE4

// Gopal and others, "Fast CRC computation for generic polynomials using PCLMULQDQ" (Intel, 2009):
// the data's remainder modulo the polynomial stays the same when 16 bytes are replaced by their
// product with x^(8 n), added to the 16 bytes that lie n bytes behind.

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX3_DL
constexpr hn::ScalableTag<uint64_t> kWords;  // VPCLMULQDQ
#else
// Processors multiply 16 bytes at a time; Highway makes wider products of those.
constexpr hn::FixedTag<uint64_t, 2> kWords;
#endif
using Words = hn::Vec<decltype(kWords)>;
constexpr size_t kLanes = hn::MaxLanes(kWords);
constexpr size_t kVectorBytes = sizeof(uint64_t) * kLanes;
constexpr size_t kPrefetchBytes = 4096;
constexpr size_t kCacheLineBytes = 64;
constexpr size_t kStepBytes = 4 * kVectorBytes;  // four chains hide the latency

// Returns the factor that moves a word by `bytes` bytes. Products of reflected polynomials are one
// bit too low, hence the shift.
template <uint32_t kPolynomial>
constexpr uint64_t MoveFactor(size_t bytes) {
  return uint64_t{ZerosOperator<kPolynomial>(bytes)} << 1;
}

// Moves each 16 bytes of x by kBytes.
template <uint32_t kPolynomial, size_t kBytes>
HWY_INLINE Words Move(Words x) {
  constexpr uint64_t kLower = MoveFactor<kPolynomial>(kBytes + 4);
  constexpr uint64_t kUpper = MoveFactor<kPolynomial>(kBytes - 4);
  const Words factors = hn::OddEven(hn::Set(kWords, kUpper), hn::Set(kWords, kLower));
  return hn::Xor(hn::CLMulLower(x, factors), hn::CLMulUpper(x, factors));
}

HWY_INLINE Words LoadVector(const std::byte* from) {
  return hn::LoadU(kWords, reinterpret_cast<const uint64_t*>(from));
}

// Advances a checksum's state (the complement of the checksum) over `size` bytes.
template <uint32_t kPolynomial>
uint32_t Advance(uint32_t state, const std::byte* at, size_t size) {
  if (size < kStepBytes) return AdvanceByTables<kPolynomial>(state, at, size);
  const uint64_t first[kLanes] = {state};
  Words a = hn::Xor(LoadVector(at), hn::LoadU(kWords, first));
  Words b = LoadVector(at + kVectorBytes);
  Words c = LoadVector(at + 2 * kVectorBytes);
  Words d = LoadVector(at + 3 * kVectorBytes);
  for (at += kStepBytes, size -= kStepBytes; size >= kStepBytes;
       at += kStepBytes, size -= kStepBytes) {
    HWY_UNROLL(64)
    for (size_t line = 0; line < kStepBytes; line += kCacheLineBytes) {
      hwy::Prefetch(at + kPrefetchBytes + line);
    }
    a = hn::Xor(Move<kPolynomial, kStepBytes>(a), LoadVector(at));
    b = hn::Xor(Move<kPolynomial, kStepBytes>(b), LoadVector(at + kVectorBytes));
    c = hn::Xor(Move<kPolynomial, kStepBytes>(c), LoadVector(at + 2 * kVectorBytes));
    d = hn::Xor(Move<kPolynomial, kStepBytes>(d), LoadVector(at + 3 * kVectorBytes));
  }
  b = hn::Xor(Move<kPolynomial, kVectorBytes>(a), b);
  c = hn::Xor(Move<kPolynomial, kVectorBytes>(b), c);
  d = hn::Xor(Move<kPolynomial, kVectorBytes>(c), d);
  for (; size >= kVectorBytes; at += kVectorBytes, size -= kVectorBytes) {
    d = hn::Xor(Move<kPolynomial, kVectorBytes>(d), LoadVector(at));
  }
  // The data so far has the same remainder as this single vector.
  std::byte last[kVectorBytes];
  hn::StoreU(d, kWords, reinterpret_cast<uint64_t*>(last));
  return AdvanceByTables<kPolynomial>(AdvanceByTables<kPolynomial>(0, last, kVectorBytes), at,
                                      size);
}

#else

template <uint32_t kPolynomial>
uint32_t Advance(uint32_t state, const std::byte* at, size_t size) {
  return AdvanceByTables<kPolynomial>(state, at, size);
}

#endif  // HWY_TARGET <= HWY_SSE4

uint32_t AdvanceCastagnoli(uint32_t state, const std::byte* at, size_t size) {
  return Advance<kCastagnoli>(state, at, size);
}
uint32_t AdvanceZip(uint32_t state, const std::byte* at, size_t size) {
  return Advance<kZip>(state, at, size);
}

}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

// One byte of zeros through the CRC register: r' = (r >> 8) ^ table[r & 0xff]; and the inverse,
// which is unique because the upper bytes of the table are all different.
struct CrcStep {
  std::array<uint32_t, 256> table;
  std::array<uint8_t, 256> by_upper_byte;

  CrcStep() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t r = i;
      for (int bit = 0; bit < 8; ++bit) r = (r >> 1) ^ ((r & 1) != 0 ? internal::kCastagnoli : 0);
      table[i] = r;
      by_upper_byte[r >> 24] = static_cast<uint8_t>(i);
    }
  }

  uint32_t Back(uint32_t r) const {
    const uint32_t i = by_upper_byte[r >> 24];
    return (r ^ table[i]) << 8 | i;
  }
};

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> data) {
  return ~TESSERA_CHOOSE(AdvanceCastagnoli)(~crc, data.data(), data.size());
}

uint32_t ExtendZipCrc32(uint32_t crc, std::span<const std::byte> data) {
  return ~TESSERA_CHOOSE(AdvanceZip)(~crc, data.data(), data.size());
}

uint32_t CombineCrc32c(uint32_t crc_a, uint32_t crc_b, uint64_t b_bytes) {
  return internal::MultiplyModP<internal::kCastagnoli>(
             internal::ZerosOperator<internal::kCastagnoli>(b_bytes), crc_a) ^
         crc_b;
}

uint32_t Crc32c(std::span<const std::byte> data) { return ExtendCrc32c(0, data); }

uint32_t Crc32c(std::string_view data) {
  return ExtendCrc32c(0, std::as_bytes(std::span(data.data(), data.size())));
}

std::optional<uint64_t> LocateSingleByteError(uint32_t expected, uint32_t found,
                                              uint64_t length_bytes) {
  static const CrcStep step;
  // The register is linear: the difference of the two checksums is what the changed bits alone
  // would leave in it. Undoing the bytes after the change must give a register with only the lowest
  // byte set: the change itself.
  uint32_t difference = expected ^ found;
  std::optional<uint64_t> place;
  for (uint64_t i = length_bytes; i-- > 0;) {
    difference = step.Back(difference);
    if (difference == 0 || difference > 0xff) continue;
    if (place) return std::nullopt;
    place = i;
  }
  return place;
}

}  // namespace tessera
#endif  // HWY_ONCE
