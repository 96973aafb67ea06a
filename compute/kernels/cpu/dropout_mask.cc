#include "compute/kernels/cpu/dropout_mask.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/dropout_mask.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/dispatch.h"
#include "compute/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

// Elements of sixteen Philox blocks.
constexpr int kBatch = 4 * kLanes;

struct Product {
  WordRegister high;
  WordRegister low;
};

TESSERA_INLINE Product Multiply(WordRegister a, uint32_t factor) {
  const WordTag words;
  const WordRegister factors = hn::Set(words, factor);
  const WordRegister even = hn::BitCast(words, hn::MulEven(a, factors));
  const WordRegister odd = hn::BitCast(words, hn::MulEven(hn::Shuffle2301(a), factors));
  return {hn::OddEven(odd, hn::Shuffle2301(even)), hn::OddEven(hn::Shuffle2301(odd), even)};
}

struct Words {
  WordRegister w[4];  // word j of as many blocks as there are lanes
};

// Computes Philox4x32 of compute/random/philox.h, one block per lane.
TESSERA_INLINE Words Philox(Words counter, uint32_t key0, uint32_t key1) {
  const WordTag words;
#pragma clang loop unroll(full)
  for (int round = 0; round < 10; ++round) {
    const Product p0 = Multiply(counter.w[0], 0xD2511F53);
    const Product p1 = Multiply(counter.w[2], 0xCD9E8D57);
    counter.w[0] = hn::Xor(hn::Xor(p1.high, counter.w[1]), hn::Set(words, key0));
    counter.w[1] = p1.low;
    counter.w[2] = hn::Xor(hn::Xor(p0.high, counter.w[3]), hn::Set(words, key1));
    counter.w[3] = p0.low;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// Computes the factors for one register of blocks, four elements per block.
TESSERA_INLINE void BlockFactors(const DropoutMask::Constants& c, uint64_t block, float* to) {
  const WordTag words;
  const uint32_t low = static_cast<uint32_t>(block);
  const WordRegister counter_low = hn::Add(hn::Iota(words, 0), hn::Set(words, low));
  // A lane whose low word wrapped around carries into the high word.
  const WordRegister carry =
      hn::IfThenElseZero(hn::Lt(counter_low, hn::Set(words, low)), hn::Set(words, 1));
  const WordRegister high = hn::Set(words, static_cast<uint32_t>(block >> 32));
  const Words random = Philox({{counter_low, hn::Add(carry, high), hn::Set(words, c.stream_low),
                                hn::Set(words, c.stream_high)}},
                              c.key0, c.key1);
  FloatRegister kept[4];
  for (int j = 0; j < 4; ++j) {
    const auto dropped = hn::Lt(hn::ShiftRight<8>(random.w[j]), hn::Set(words, c.threshold));
    kept[j] =
        hn::IfThenZeroElse(hn::RebindMask(FloatTag(), dropped), hn::Set(FloatTag(), c.factor));
  }
  // Transposes from word order to block order.
  hn::StoreInterleaved4(kept[0], kept[1], kept[2], kept[3], FloatTag(), to);
}

void Factors(const DropoutMask::Constants& c, uint64_t first, int64_t count, float* out) {
  int64_t skip = static_cast<int64_t>(first % 4);
  for (uint64_t block = first / 4; count > 0; block += kLanes) {
    float batch[kBatch];
    const bool whole = skip == 0 && count >= kBatch;
    float* const to = whole ? out : batch;
    for (int i = 0; i < kLanes; i += kRegisterLanes) BlockFactors(c, block + i, to + 4 * i);
    const int64_t ready = std::min<int64_t>(count, kBatch - skip);
    if (!whole) std::memcpy(out, batch + skip, ready * sizeof(float));
    out += ready;
    count -= ready;
    skip = 0;
  }
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

DropoutMask::DropoutMask(const RandomStream& stream, int64_t sample, double probability) {
  CHECK(probability >= 0 && probability < 1) << probability;
  // Builds key and counter as RandomBlock() does.
  const uint64_t key = MixCoordinates(stream.seed, static_cast<uint32_t>(stream.use));
  const uint64_t mixed = MixCoordinates(stream.stream, static_cast<uint64_t>(sample));
  constants_ = {.key0 = static_cast<uint32_t>(key),
                .key1 = static_cast<uint32_t>(key >> 32),
                .stream_low = static_cast<uint32_t>(mixed),
                .stream_high = static_cast<uint32_t>(mixed >> 32),
                .threshold = static_cast<uint32_t>(std::ceil(probability * 0x1p24)),
                .factor = static_cast<float>(1.0 / (1.0 - probability))};
}

void DropoutMask::Factors(uint64_t first, int64_t count, float* out) const {
  TESSERA_CHOOSE(Factors)(constants_, first, count, out);
}

}  // namespace tessera
#endif  // HWY_ONCE
