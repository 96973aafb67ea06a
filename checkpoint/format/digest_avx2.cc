#include "checkpoint/format/digest_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera::ckpt::internal {

#if defined(__x86_64__)
namespace {

#define TESSERA_AVX2 __attribute__((target("avx2")))

// Four elements, each widened to 64 bits.
template <size_t kElementBytes>
TESSERA_AVX2 inline __m256i LoadFour(const std::byte* from) {
  if constexpr (kElementBytes == 1) {
    int32_t bytes;
    std::memcpy(&bytes, from, sizeof(bytes));
    return _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(bytes));
  } else if constexpr (kElementBytes == 2) {
    return _mm256_cvtepu16_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  } else if constexpr (kElementBytes == 4) {
    return _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  } else {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
}

// 64-bit product out of 32-bit ones, which are all that AVX2 has.
TESSERA_AVX2 inline __m256i Multiply(__m256i a, __m256i b, __m256i b_high) {
  const __m256i low = _mm256_mul_epu32(a, b);
  const __m256i cross =
      _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), b), _mm256_mul_epu32(a, b_high));
  return _mm256_add_epi64(low, _mm256_slli_epi64(cross, 32));
}

TESSERA_AVX2 inline uint64_t Sum(__m256i v) {
  alignas(32) uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), v);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

TESSERA_AVX2 inline __m256i Broadcast(uint64_t value) {
  return _mm256_set1_epi64x(static_cast<int64_t>(value));
}

template <typename Word>
TESSERA_AVX2 LogicalDigest DigestVectorRun(uint64_t first_index, const void* data, size_t count) {
  const auto* at = static_cast<const std::byte*>(data);
  const __m256i mix1 = Broadcast(kDigestMix1), mix1_high = Broadcast(kDigestMix1 >> 32);
  const __m256i mix2 = Broadcast(kDigestMix2), mix2_high = Broadcast(kDigestMix2 >> 32);
  const __m256i step = Broadcast(kDigestIndexFactor * 4);
  alignas(32) uint64_t terms[4];
  for (uint64_t i = 0; i < 4; ++i) terms[i] = DigestIndexTerm(first_index + i);
  __m256i index_term = _mm256_load_si256(reinterpret_cast<const __m256i*>(terms));
  __m256i lo = _mm256_setzero_si256();
  __m256i hi = _mm256_setzero_si256();
  const size_t vectors = count / 4;
  for (size_t i = 0; i < vectors; ++i, at += 4 * sizeof(Word)) {
    _mm_prefetch(reinterpret_cast<const char*>(at) + kDigestPrefetchBytes, _MM_HINT_T0);
    __m256i z = _mm256_xor_si256(index_term, LoadFour<sizeof(Word)>(at));
    index_term = _mm256_add_epi64(index_term, step);
    z = _mm256_xor_si256(z, _mm256_srli_epi64(z, 33));
    z = Multiply(z, mix1, mix1_high);
    z = _mm256_xor_si256(z, _mm256_srli_epi64(z, 33));
    z = Multiply(z, mix2, mix2_high);
    z = _mm256_xor_si256(z, _mm256_srli_epi64(z, 33));
    lo = _mm256_add_epi64(lo, z);
    hi = _mm256_add_epi64(hi, _mm256_mul_epu32(z, _mm256_srli_epi64(z, 32)));
  }
  LogicalDigest digest{Sum(lo), Sum(hi)};
  digest += DigestScalarRun<Word>(first_index + vectors * 4, at, count - vectors * 4);
  return digest;
}

LogicalDigest Run(uint64_t first_index, const void* data, size_t count, size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return DigestVectorRun<uint8_t>(first_index, data, count);
    case 2:
      return DigestVectorRun<uint16_t>(first_index, data, count);
    case 4:
      return DigestVectorRun<uint32_t>(first_index, data, count);
    default:
      return DigestVectorRun<uint64_t>(first_index, data, count);
  }
}

}  // namespace

DigestFunction DigestRunAvx2() { return __builtin_cpu_supports("avx2") ? Run : nullptr; }

#else

DigestFunction DigestRunAvx2() { return nullptr; }

#endif  // defined(__x86_64__)

}  // namespace tessera::ckpt::internal
