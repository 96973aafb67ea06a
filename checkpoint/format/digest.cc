// The digest's loop over contiguous elements, for every instruction set.

#include "checkpoint/format/digest.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

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

// The products of the lower halves of the words.
HWY_INLINE Words MultiplyLow(Words a, Words b) {
  return hn::MulEven(hn::BitCast(kHalves, a), hn::BitCast(kHalves, b));
}

// A multiplication by a constant. AVX-512 has 64-bit products; elsewhere they are composed of
// 32-bit ones.
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

// One vector of elements, each widened to 64 bits.
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

// Digests `count` elements from `at`; with kCopy they are also copied past the cache to `to`, which
// is aligned to a line.
template <typename Word, bool kCopy>
LogicalDigest DigestWords(uint64_t first_index, const std::byte* at, std::byte* to, size_t count) {
  constexpr size_t kLineElements = kLineBytes / sizeof(Word);
  const size_t lanes = hn::Lanes(kWords);
  const Mixer mixer;
  const Words step = hn::Set(kWords, kDigestIndexFactor * lanes);
  Words index_terms = hn::Add(hn::Set(kWords, DigestIndexTerm(first_index)),
                              Factor(kDigestIndexFactor)(hn::Iota(kWords, 0)));
  Sums sums = {hn::Zero(kWords), hn::Zero(kWords)};
  const size_t lines = count / kLineElements;
  for (size_t line = 0; line < lines; ++line, at += kLineBytes) {
    hwy::Prefetch(at + kDigestPrefetchBytes);
    if constexpr (kCopy) StreamLine(at, to + line * kLineBytes);
    HWY_UNROLL()
    for (size_t i = 0; i < kLineElements; i += lanes) {
      mixer.Add(index_terms, LoadWidened<Word>(at + i * sizeof(Word)), sums);
      index_terms = hn::Add(index_terms, step);
    }
  }
  size_t rest = count - lines * kLineElements;
  if constexpr (kCopy) {
    std::memcpy(to + lines * kLineBytes, at, rest * sizeof(Word));
    hwy::FlushStream();
  }
  for (; rest >= lanes; rest -= lanes, at += lanes * sizeof(Word)) {
    mixer.Add(index_terms, LoadWidened<Word>(at), sums);
    index_terms = hn::Add(index_terms, step);
  }
  LogicalDigest digest{hn::GetLane(hn::SumOfLanes(kWords, sums.lo)),
                       hn::GetLane(hn::SumOfLanes(kWords, sums.hi))};
  digest += DigestScalarRun<Word>(first_index + (count - rest), at, rest);
  return digest;
}

template <bool kCopy>
LogicalDigest DigestElements(uint64_t first_index, const std::byte* data, std::byte* to,
                             size_t count, size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return DigestWords<uint8_t, kCopy>(first_index, data, to, count);
    case 2:
      return DigestWords<uint16_t, kCopy>(first_index, data, to, count);
    case 4:
      return DigestWords<uint32_t, kCopy>(first_index, data, to, count);
    default:
      return DigestWords<uint64_t, kCopy>(first_index, data, to, count);
  }
}

LogicalDigest Digest(uint64_t first_index, const std::byte* data, size_t count,
                     size_t element_bytes) {
  return DigestElements<false>(first_index, data, nullptr, count, element_bytes);
}

LogicalDigest CopyAndDigest(uint64_t first_index, const std::byte* data, std::byte* to,
                            size_t count, size_t element_bytes) {
  return DigestElements<true>(first_index, data, to, count, element_bytes);
}

}  // namespace tessera::ckpt::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::ckpt {
namespace internal {
namespace {
HWY_EXPORT(Digest);
HWY_EXPORT(CopyAndDigest);
}  // namespace
}  // namespace internal

LogicalDigest DigestRun(uint64_t first_index, const void* data, size_t count,
                        size_t element_bytes) {
  using namespace internal;  // NOLINT(google-build-using-namespace): the macro names its table
  return TESSERA_DISPATCH(Digest)(first_index, static_cast<const std::byte*>(data), count,
                                  element_bytes);
}

LogicalDigest CopyAndDigestRun(uint64_t first_index, const void* data, void* to, size_t count,
                               size_t element_bytes) {
  using namespace internal;  // NOLINT(google-build-using-namespace): the macro names its table
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
  digest += TESSERA_DISPATCH(CopyAndDigest)(first_index + head, from + head_bytes,
                                            destination + head_bytes, count - head, element_bytes);
  return digest;
}

}  // namespace tessera::ckpt
#endif  // HWY_ONCE
