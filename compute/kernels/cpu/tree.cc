#include "compute/kernels/cpu/tree.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/tree.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "base/dispatch.h"
#include "compute/kernels/cpu/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

void AddTerm(const TreeStep& step, const float* term, int64_t term_stride, int64_t rows,
             int64_t columns, const TreeTiles& tiles) {
  const int to_level = step.level();
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = term + row * term_stride;
    float* to = tiles.level(to_level) + row * tiles.stride(to_level);
    if (step.merges == 1) {
      AddRange(to, from, columns, to);
      continue;
    }
    ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
      F32x16 sum = load(from + i);
      for (int level = step.occupied - 1; level >= to_level; --level) {
        sum = load(tiles.level(level) + row * tiles.stride(level) + i) + sum;
      }
      store(sum, to + i);
    });
  }
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

void AddTerm(const TreeStep& step, const float* term, int64_t term_stride, int64_t rows,
             int64_t columns, const TreeTiles& tiles) {
  TESSERA_CHOOSE(AddTerm)(step, term, term_stride, rows, columns, tiles);
}

}  // namespace tessera
#endif  // HWY_ONCE
