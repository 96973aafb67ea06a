#include "trainer/kernels/cpu/dropout_mask.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "trainer/kernels/cpu/vector.h"
#include "trainer/random/philox.h"

namespace tessera {
namespace {

using U64x8 = uint64_t __attribute__((vector_size(64)));

// Elements of sixteen Philox blocks.
constexpr int kBatch = 4 * kLanes;

struct Product {
  U32x16 high;
  U32x16 low;
};

TESSERA_INLINE Product Multiply(U32x16 a, uint32_t factor) {
  const U64x8 wide = BitCast<U64x8>(a);
  const U64x8 even = (wide & 0xffffffffull) * factor;
  const U64x8 odd = (wide >> 32) * factor;
  return {BitCast<U32x16>((even >> 32) | (odd & 0xffffffff00000000ull)),
          BitCast<U32x16>((even & 0xffffffffull) | (odd << 32))};
}

struct Words {
  U32x16 w[4];  // word j of sixteen blocks
};

// Philox4x32 of trainer/random/philox.h, one block a lane.
TESSERA_INLINE Words Philox(Words counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const Product p0 = Multiply(counter.w[0], 0xD2511F53);
    const Product p1 = Multiply(counter.w[2], 0xCD9E8D57);
    counter.w[0] = p1.high ^ counter.w[1] ^ key0;
    counter.w[1] = p1.low;
    counter.w[2] = p0.high ^ counter.w[3] ^ key1;
    counter.w[3] = p0.low;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

}  // namespace

DropoutMask::DropoutMask(const RandomStream& stream, int64_t sample, double probability) {
  CHECK(probability >= 0 && probability < 1) << probability;
  // As RandomBlock() makes its key and counter.
  const uint64_t key = MixCoordinates(stream.seed, static_cast<uint32_t>(stream.use));
  const uint64_t mixed = MixCoordinates(stream.stream, static_cast<uint64_t>(sample));
  key0_ = static_cast<uint32_t>(key);
  key1_ = static_cast<uint32_t>(key >> 32);
  stream_low_ = static_cast<uint32_t>(mixed);
  stream_high_ = static_cast<uint32_t>(mixed >> 32);
  threshold_ = static_cast<uint32_t>(std::ceil(probability * 0x1p24));
  factor_ = static_cast<float>(1.0 / (1.0 - probability));
}

void DropoutMask::Factors(uint64_t first, int64_t count, float* out) const {
  constexpr U32x16 kLaneIndex = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  int64_t skip = static_cast<int64_t>(first % 4);
  uint64_t block = first / 4;
  while (count > 0) {
    const uint32_t low = static_cast<uint32_t>(block);
    const U32x16 counter_low = kLaneIndex + low;
    // A lane whose low word wrapped around carries into the high word.
    const U32x16 carry = BitCast<U32x16>(counter_low < low) & 1;
    Words counter = {{counter_low, carry + static_cast<uint32_t>(block >> 32),
                      U32x16{} + stream_low_, U32x16{} + stream_high_}};
    const Words words = Philox(counter, key0_, key1_);
    float factors[kBatch];
    F32x16 kept[4];
    for (int j = 0; j < 4; ++j) {
      kept[j] = Select(BitCast<I32x16>((words.w[j] >> 8) >= threshold_), Splat(factor_), F32x16{});
    }
    // From word by word to block by block.
    const F32x16 a = __builtin_shufflevector(kept[0], kept[1], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                             21, 6, 22, 7, 23);
    const F32x16 b = __builtin_shufflevector(kept[0], kept[1], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                             13, 29, 14, 30, 15, 31);
    const F32x16 c = __builtin_shufflevector(kept[2], kept[3], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                             21, 6, 22, 7, 23);
    const F32x16 d = __builtin_shufflevector(kept[2], kept[3], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                             13, 29, 14, 30, 15, 31);
    const auto pairs = [](F32x16 x, F32x16 y, float* to) __attribute__((always_inline)) {
      Store(__builtin_shufflevector(x, y, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23),
            to);
      Store(__builtin_shufflevector(x, y, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30,
                                    31),
            to + kLanes);
    };
    pairs(a, c, factors);
    pairs(b, d, factors + 2 * kLanes);
    const int64_t ready = std::min<int64_t>(count, kBatch - skip);
    std::memcpy(out, factors + skip, ready * sizeof(float));
    out += ready;
    count -= ready;
    block += kLanes;
    skip = 0;
  }
}

}  // namespace tessera
