// The loops of the digest over contiguous elements, for every instruction set.

#include "checkpoint/format/digest.h"

#include <cstring>

#include "base/crc32c.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "checkpoint/format/digest.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "base/dispatch.h"
#include "checkpoint/format/digest_internal.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::ckpt::internal::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<uint64_t> kWords;
constexpr hn::ScalableTag<uint32_t> kHalves;
using Words = hn::Vec<decltype(kWords)>;

// Returns the products of the lower halves of the words.
HWY_INLINE Words MultiplyLow(Words a, Words b) {
  return hn::MulEven(hn::BitCast(kHalves, a), hn::BitCast(kHalves, b));
}

// A multiplication by a constant. AVX-512 has 64-bit products; elsewhere they consist of 32-bit
// ones.
struct Factor {
  explicit Factor(uint64_t value)
      : whole(hn::Set(kWords, value)), high(hn::Set(kWords, value >> 32)) {}

  HWY_INLINE Words operator()(Words a) const {
#if HWY_TARGET <= HWY_AVX3
    return hn::Mul(a, whole);
#else
    const Words cross = hn::Add(MultiplyLow(hn::ShiftRight<32>(a), whole), MultiplyLow(a, high));
    return hn::Add(MultiplyLow(a, whole), hn::ShiftLeft<32>(cross));
#endif
  }

  Words whole;
  Words high;
};

// Loads one vector of elements, each widened to 64 bits.
template <typename Word>
HWY_INLINE Words LoadWidened(const std::byte* from) {
  const hn::Rebind<Word, decltype(kWords)> tag;
  const auto elements = hn::LoadU(tag, reinterpret_cast<const Word*>(from));
  if constexpr (sizeof(Word) == 8) {
    return elements;
  } else if constexpr (sizeof(Word) == 4) {
    return hn::PromoteTo(kWords, elements);
  } else {
    return hn::PromoteTo(kWords, hn::PromoteTo(hn::Rebind<uint32_t, decltype(kWords)>(), elements));
  }
}

// The sums so far; lane i holds those of every N-th element from the i-th on.
struct Sums {
  Words lo;
  Words hi;
};

struct Mixer {
  Factor mix1{kDigestMix1};
  Factor mix2{kDigestMix2};

  HWY_INLINE void Add(Words index_terms, Words elements, Sums& sums) const {
    Words z = hn::Xor(index_terms, elements);
    z = mix1(hn::Xor(z, hn::ShiftRight<33>(z)));
    z = mix2(hn::Xor(z, hn::ShiftRight<33>(z)));
    z = hn::Xor(z, hn::ShiftRight<33>(z));
    sums.lo = hn::Add(sums.lo, z);
    sums.hi = hn::Add(sums.hi, MultiplyLow(z, hn::ShiftRight<32>(z)));
  }
};

HWY_INLINE void StreamLine(const std::byte* from, std::byte* to) {
  const hn::ScalableTag<uint8_t> bytes;
  for (size_t i = 0; i < kLineBytes; i += hn::Lanes(bytes)) {
    hn::Stream(hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(from + i)), bytes,
               reinterpret_cast<uint8_t*>(to + i));
  }
}

// Digests `count` elements from `at`, and calls on_line(line, its address) for each line of them.
template <typename Word, typename OnLine>
HWY_INLINE LogicalDigest DigestWords(uint64_t first_index, const std::byte* at, size_t count,
                                     OnLine&& on_line) {
  constexpr size_t kLineElements = kLineBytes / sizeof(Word);
  const size_t lanes = hn::Lanes(kWords);
  const Mixer mixer;
  const Words step = hn::Set(kWords, kDigestIndexFactor * lanes);
  Words index_terms = hn::Add(hn::Set(kWords, DigestIndexTerm(first_index)),
                              Factor(kDigestIndexFactor)(hn::Iota(kWords, 0)));
  Sums sums = {hn::Zero(kWords), hn::Zero(kWords)};
  const size_t lines = count / kLineElements;
  for (size_t line = 0; line < lines; ++line, at += kLineBytes) {
    on_line(line, at);
    HWY_UNROLL(64)
    for (size_t i = 0; i < kLineElements; i += lanes) {
      mixer.Add(index_terms, LoadWidened<Word>(at + i * sizeof(Word)), sums);
      index_terms = hn::Add(index_terms, step);
    }
  }
  size_t rest = count - lines * kLineElements;
  for (; rest >= lanes; rest -= lanes, at += lanes * sizeof(Word)) {
    mixer.Add(index_terms, LoadWidened<Word>(at), sums);
    index_terms = hn::Add(index_terms, step);
  }
  LogicalDigest digest{hn::GetLane(hn::SumOfLanes(kWords, sums.lo)),
                       hn::GetLane(hn::SumOfLanes(kWords, sums.hi))};
  digest += DigestScalarRun<Word>(first_index + (count - rest), at, rest);
  return digest;
}

template <typename Word>
LogicalDigest DigestOnly(uint64_t first_index, const std::byte* data, size_t count) {
  return DigestWords<Word>(first_index, data, count, [](size_t, const std::byte* line) {
    hwy::Prefetch(line + kDigestPrefetchBytes);
  });
}

// `to` is aligned to a line.
template <typename Word>
LogicalDigest CopyWords(uint64_t first_index, const std::byte* data, std::byte* to, size_t count) {
  const LogicalDigest digest =
      DigestWords<Word>(first_index, data, count, [to](size_t line, const std::byte* from) {
        hwy::Prefetch(from + kDigestPrefetchBytes);
        StreamLine(from, to + line * kLineBytes);
      });
  const size_t size_bytes = count * sizeof(Word);
  const size_t copied_bytes = size_bytes / kLineBytes * kLineBytes;
  std::memcpy(to + copied_bytes, data + copied_bytes, size_bytes - copied_bytes);
  hwy::FlushStream();
  return digest;
}

// Elements that are digested and checksummed together, the second time from the first-level cache.
constexpr size_t kStripBytes = 8192;

#if HWY_TARGET <= HWY_SSE4 && HWY_ARCH_X86_64

// Returns the checksum's state (a checksum's complement) after kStripBytes / 2 zero bytes. The
// instruction multiplies 8 bytes by x^32; products of reflected polynomials are one bit too low.
HWY_INLINE uint32_t MoveOverHalf(uint32_t state) {
  using tessera::internal::kCastagnoli;
  constexpr uint64_t kFactor = tessera::internal::MultiplyModP<kCastagnoli>(
      tessera::internal::ZerosOperator<kCastagnoli>(kStripBytes / 2 - 5), uint32_t{1} << (31 - 7));
  const hn::FixedTag<uint64_t, 2> two;
  const auto product = hn::CLMulLower(hn::Set(two, uint64_t{state}), hn::Set(two, kFactor));
  return static_cast<uint32_t>(_mm_crc32_u64(0, hn::GetLane(product)));
}

HWY_INLINE uint64_t AddWord(uint64_t state, const std::byte* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return _mm_crc32_u64(state, word);
}

// The CRC instruction runs beside the vector units. Its latency is three cycles, less than the
// digest of as many bytes takes: two chains suffice, one for each half of a strip.
template <typename Word>
LogicalDigest ChecksumStrip(uint64_t first_index, const std::byte* data, uint32_t& crc32c) {
  constexpr size_t kHalf = kStripBytes / 2;
  uint64_t front = ~crc32c, back = 0;
  const LogicalDigest digest = DigestWords<Word>(
      first_index, data, kStripBytes / sizeof(Word), [&](size_t line, const std::byte* from) {
        hwy::Prefetch(from + kStripBytes);
        const std::byte* const at = data + line * (kLineBytes / 2);
        HWY_UNROLL(64)
        for (size_t i = 0; i < kLineBytes / 2; i += sizeof(uint64_t)) {
          front = AddWord(front, at + i);
          back = AddWord(back, at + kHalf + i);
        }
      });
  crc32c = ~(MoveOverHalf(static_cast<uint32_t>(front)) ^ static_cast<uint32_t>(back));
  return digest;
}

#else

template <typename Word>
LogicalDigest ChecksumStrip(uint64_t first_index, const std::byte* data, uint32_t& crc32c) {
  crc32c = ExtendCrc32c(crc32c, {data, kStripBytes});
  return DigestOnly<Word>(first_index, data, kStripBytes / sizeof(Word));
}

#endif

template <typename Word>
LogicalDigest ChecksumWords(uint64_t first_index, const std::byte* at, size_t count,
                            uint32_t& crc32c) {
  constexpr size_t kStripElements = kStripBytes / sizeof(Word);
  LogicalDigest digest;
  for (; count >= kStripElements; count -= kStripElements, at += kStripBytes) {
    digest += ChecksumStrip<Word>(first_index, at, crc32c);
    first_index += kStripElements;
  }
  crc32c = ExtendCrc32c(crc32c, {at, count * sizeof(Word)});
  digest += DigestOnly<Word>(first_index, at, count);
  return digest;
}

// Calls fn(Word()) with the unsigned type of that size.
template <typename Function>
HWY_INLINE LogicalDigest WithWord(size_t element_bytes, Function&& fn) {
  switch (element_bytes) {
    case 1:
      return fn(uint8_t());
    case 2:
      return fn(uint16_t());
    case 4:
      return fn(uint32_t());
    default:
      return fn(uint64_t());
  }
}

LogicalDigest Digest(uint64_t first_index, const std::byte* data, size_t count,
                     size_t element_bytes) {
  return WithWord(element_bytes,
                  [&]<typename Word>(Word) { return DigestOnly<Word>(first_index, data, count); });
}

LogicalDigest CopyAndDigest(uint64_t first_index, const std::byte* data, std::byte* to,
                            size_t count, size_t element_bytes) {
  return WithWord(element_bytes, [&]<typename Word>(Word) {
    return CopyWords<Word>(first_index, data, to, count);
  });
}

LogicalDigest Checksum(uint64_t first_index, const std::byte* data, size_t count,
                       size_t element_bytes, uint32_t& crc32c) {
  return WithWord(element_bytes, [&]<typename Word>(Word) {
    return ChecksumWords<Word>(first_index, data, count, crc32c);
  });
}

}  // namespace tessera::ckpt::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::ckpt {

LogicalDigest DigestRun(uint64_t first_index, const void* data, size_t count,
                        size_t element_bytes) {
  using namespace internal;  // NOLINT(google-build-using-namespace): the macro names its namespaces
  return TESSERA_CHOOSE(Digest)(first_index, static_cast<const std::byte*>(data), count,
                                element_bytes);
}

LogicalDigest ChecksumRun(uint64_t first_index, const void* data, size_t count,
                          size_t element_bytes, uint32_t& crc32c) {
  using namespace internal;  // NOLINT(google-build-using-namespace): the macro names its namespaces
  return TESSERA_CHOOSE(Checksum)(first_index, static_cast<const std::byte*>(data), count,
                                  element_bytes, crc32c);
}

LogicalDigest CopyAndDigestRun(uint64_t first_index, const void* data, void* to, size_t count,
                               size_t element_bytes) {
  using namespace internal;  // NOLINT(google-build-using-namespace): the macro names its namespaces
  // For shorter runs, bypassing the cache costs more than it saves.
  constexpr size_t kStreamMinBytes = 2048;
  const size_t head_bytes = -reinterpret_cast<uintptr_t>(to) % kLineBytes;
  const size_t size_bytes = count * element_bytes;
  if (size_bytes < kStreamMinBytes || head_bytes % element_bytes != 0) {
    if (count > 0) std::memcpy(to, data, size_bytes);
    return DigestRun(first_index, to, count, element_bytes);
  }
  const auto* from = static_cast<const std::byte*>(data);
  auto* destination = static_cast<std::byte*>(to);
  std::memcpy(destination, from, head_bytes);
  const size_t head = head_bytes / element_bytes;
  LogicalDigest digest = DigestRun(first_index, from, head, element_bytes);
  digest += TESSERA_CHOOSE(CopyAndDigest)(first_index + head, from + head_bytes,
                                          destination + head_bytes, count - head, element_bytes);
  return digest;
}

}  // namespace tessera::ckpt
#endif  // HWY_ONCE
