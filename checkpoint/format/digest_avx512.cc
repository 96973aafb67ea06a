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

template <typename Word>
TESSERA_AVX512 LogicalDigest DigestVectorRun(uint64_t first_index, const void* data, size_t count) {
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
  digest += DigestScalarRun<Word>(first_index + vectors * 8, at, count - vectors * 8);
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

DigestFunction DigestRunAvx512() {
  const bool supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return supported ? Run : nullptr;
}

#else

DigestFunction DigestRunAvx512() { return nullptr; }

#endif  // defined(__x86_64__)

}  // namespace tessera::ckpt::internal
