#include <cstdint>

#include "compute/kernels/cpu/gemm_libraries.h"
#include "compute/tensor/bfloat16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/widen.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "base/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void Widen(const BFloat16* from, int64_t from_stride, int64_t rows, int64_t columns, float* to) {
  const hn::ScalableTag<uint32_t> words;
  const hn::Rebind<uint16_t, decltype(words)> halves;
  const int64_t lanes = hn::Lanes(words);
  for (int64_t row = 0; row < rows; ++row, from += from_stride, to += columns) {
    const uint16_t* const bits = reinterpret_cast<const uint16_t*>(from);
    uint32_t* const out = reinterpret_cast<uint32_t*>(to);
    int64_t i = 0;
    for (; i + lanes <= columns; i += lanes) {
      hn::StoreU(hn::ShiftLeft<16>(hn::PromoteTo(words, hn::LoadU(halves, bits + i))), words,
                 out + i);
    }
    for (; i < columns; ++i) out[i] = uint32_t{bits[i]} << 16;
  }
}

void Round(const float* from, int64_t rows, int64_t columns, BFloat16* to, int64_t to_stride) {
  const hn::ScalableTag<float> floats;
  const hn::RebindToUnsigned<decltype(floats)> words;
  const hn::RebindToSigned<decltype(floats)> integers;
  const hn::Rebind<uint16_t, decltype(floats)> halves;
  const int64_t lanes = hn::Lanes(floats);
  for (int64_t row = 0; row < rows; ++row, from += columns, to += to_stride) {
    int64_t i = 0;
    for (; i + lanes <= columns; i += lanes) {
      const auto x = hn::LoadU(floats, from + i);
      const auto word = hn::BitCast(words, x);
      const auto odd = hn::And(hn::ShiftRight<16>(word), hn::Set(words, 1));
      const auto rounded = hn::Add(word, hn::Add(odd, hn::Set(words, 0x7fff)));
      const auto quiet = hn::Or(word, hn::Set(words, 0x400000));
      const auto chosen = hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(x)), quiet, rounded);
      const auto high = hn::BitCast(integers, hn::ShiftRight<16>(chosen));
      hn::StoreU(hn::DemoteTo(halves, high), halves, reinterpret_cast<uint16_t*>(to + i));
    }
    for (; i < columns; ++i) to[i] = BFloat16(from[i]);
  }
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

HWY_EXPORT(Widen);
HWY_EXPORT(Round);

}  // namespace

void WidenRows(const BFloat16* from, int64_t from_stride, int64_t rows, int64_t columns,
               float* to) {
  TESSERA_DISPATCH(Widen)(from, from_stride, rows, columns, to);
}

void RoundRows(const float* from, int64_t rows, int64_t columns, BFloat16* to, int64_t to_stride) {
  TESSERA_DISPATCH(Round)(from, rows, columns, to, to_stride);
}

}  // namespace tessera
#endif  // HWY_ONCE
