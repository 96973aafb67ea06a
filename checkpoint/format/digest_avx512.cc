#include "checkpoint/format/digest_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera::ckpt::internal {

#if defined(__x86_64__)
namespace {

#define TESSERA_AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl")))

// Eight elements, each widened to 64 bits.
template <size_t kElementBytes>
TESSERA_AVX512 inline __m512i LoadEight(const std::byte* from) {
  if constexpr (kElementBytes == 1) {
    return _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  } else if constexpr (kElementBytes == 2) {
    return _mm512_cvtepu16_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  } else if constexpr (kElementBytes == 4) {
    return _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  } else {
    return _mm512_loadu_si512(from);
  }
}

// Eight elements, past the cache.
template <size_t kElementBytes>
TESSERA_AVX512 inline void StreamEight(const std::byte* from, std::byte* to) {
  if constexpr (kElementBytes == 1) {
    long long eight;
    std::memcpy(&eight, from, sizeof(eight));
    _mm_stream_si64(reinterpret_cast<long long*>(to), eight);
  } else if constexpr (kElementBytes == 2) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  } else if constexpr (kElementBytes == 4) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  } else {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
}

template <typename Word, bool kCopy>
TESSERA_AVX512 LogicalDigest DigestVectorRun(uint64_t first_index, const void* data, std::byte* to,
                                             size_t count) {
  const auto* at = static_cast<const std::byte*>(data);
  const __m512i lane = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
  const __m512i mix1 = _mm512_set1_epi64(static_cast<int64_t>(kDigestMix1));
  const __m512i mix2 = _mm512_set1_epi64(static_cast<int64_t>(kDigestMix2));
  const __m512i step = _mm512_set1_epi64(static_cast<int64_t>(kDigestIndexFactor * 8));
  __m512i index_term = _mm512_add_epi64(
      _mm512_set1_epi64(static_cast<int64_t>(DigestIndexTerm(first_index))),
      _mm512_mullo_epi64(lane, _mm512_set1_epi64(static_cast<int64_t>(kDigestIndexFactor))));
  __m512i lo = _mm512_setzero_si512();
  __m512i hi = _mm512_setzero_si512();
  const size_t vectors = count / 8;
  for (size_t i = 0; i < vectors; ++i, at += 8 * sizeof(Word)) {
    _mm_prefetch(reinterpret_cast<const char*>(at) + kDigestPrefetchBytes, _MM_HINT_T0);
    if constexpr (kCopy) StreamEight<sizeof(Word)>(at, to + i * 8 * sizeof(Word));
    __m512i z = _mm512_xor_si512(index_term, LoadEight<sizeof(Word)>(at));
    index_term = _mm512_add_epi64(index_term, step);
    z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 33));
    z = _mm512_mullo_epi64(z, mix1);
    z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 33));
    z = _mm512_mullo_epi64(z, mix2);
    z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 33));
    lo = _mm512_add_epi64(lo, z);
    hi = _mm512_add_epi64(hi, _mm512_mul_epu32(z, _mm512_srli_epi64(z, 32)));
  }
  LogicalDigest digest{static_cast<uint64_t>(_mm512_reduce_add_epi64(lo)),
                       static_cast<uint64_t>(_mm512_reduce_add_epi64(hi))};
  const size_t rest = count - vectors * 8;
  digest += DigestScalarRun<Word>(first_index + vectors * 8, at, rest);
  if constexpr (kCopy) {
    std::memcpy(to + vectors * 8 * sizeof(Word), at, rest * sizeof(Word));
    _mm_sfence();
  }
  return digest;
}

template <bool kCopy>
LogicalDigest Run(uint64_t first_index, const void* data, std::byte* to, size_t count,
                  size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return DigestVectorRun<uint8_t, kCopy>(first_index, data, to, count);
    case 2:
      return DigestVectorRun<uint16_t, kCopy>(first_index, data, to, count);
    case 4:
      return DigestVectorRun<uint32_t, kCopy>(first_index, data, to, count);
    default:
      return DigestVectorRun<uint64_t, kCopy>(first_index, data, to, count);
  }
}

LogicalDigest Digest(uint64_t first_index, const void* data, size_t count, size_t element_bytes) {
  return Run<false>(first_index, data, nullptr, count, element_bytes);
}

LogicalDigest CopyAndDigest(uint64_t first_index, const void* data, void* to, size_t count,
                            size_t element_bytes) {
  return Run<true>(first_index, data, static_cast<std::byte*>(to), count, element_bytes);
}

bool Supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

DigestFunction DigestRunAvx512() { return Supported() ? Digest : nullptr; }
CopyAndDigestFunction CopyAndDigestRunAvx512() { return Supported() ? CopyAndDigest : nullptr; }

#else

DigestFunction DigestRunAvx512() { return nullptr; }
CopyAndDigestFunction CopyAndDigestRunAvx512() { return nullptr; }

#endif  // defined(__x86_64__)

}  // namespace tessera::ckpt::internal
