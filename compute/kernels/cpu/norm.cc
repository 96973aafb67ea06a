#include "compute/kernels/cpu/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/norm.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <cstdint>

#include "base/dispatch.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/thread_pool.h"
#include "compute/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

void CombineRange(const float* sums, int64_t blocks, int64_t stride, int64_t count, bool accumulate,
                  float* out) {
  ForLanes(count, [&](int64_t i, auto load, auto store) HWY_ATTR {
    F32x16 total = {};
    for (int64_t block = 0; block < blocks; ++block) total += load(sums + block * stride + i);
    store(accumulate ? load(out + i) + total : total, out + i);
  });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

void NormPartials::Combine(ThreadPool& pool, const float* sums, int64_t quantity, float* out,
                           bool accumulate) const {
  const auto combine_range = TESSERA_CHOOSE(CombineRange);
  ForRanges(pool, columns_, 16 * kStripColumns, [&](int64_t begin, int64_t end, int) {
    combine_range(sums + quantity * columns_ + begin, blocks(), quantities_ * columns_, end - begin,
                  accumulate, out + begin);
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
