// Loops over two or three arrays, shared by several operations.

#if defined(TESSERA_COMPUTE_KERNELS_CPU_ELEMENTWISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_COMPUTE_KERNELS_CPU_ELEMENTWISE_INL_H_
#undef TESSERA_COMPUTE_KERNELS_CPU_ELEMENTWISE_INL_H_
#else
#define TESSERA_COMPUTE_KERNELS_CPU_ELEMENTWISE_INL_H_
#endif

#include <cstdint>

#include "compute/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {

// out = a + b; out may be a or b.
template <typename A, typename B, typename Out>
void AddRange(const A* a, const B* b, int64_t count, Out* out) {
  ForLanes(count, [&](int64_t i, auto load, auto store)
                      HWY_ATTR { store(load(a + i) + load(b + i), out + i); });
}

template <typename From, typename To>
void ConvertRange(const From* from, int64_t count, To* to) {
  ForLanes(count,
           [&](int64_t i, auto load, auto store) HWY_ATTR { store(load(from + i), to + i); });
}

// Stores dense rows of D elements, each multiplied by `factor` and, if given, by a factor per row.
// Zeros become positive, since the sign of an empty sum depends on the products that were left out.
template <typename T>
void StoreHeadRows(const float* from, const float* row_factors, float factor, int64_t rows,
                   int64_t head_size, T* to, int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    const float times = row_factors == nullptr ? factor : factor * row_factors[row];
    const float* source = from + row * head_size;
    T* target = to + row * to_stride;
    ForLanes(head_size, [&](int64_t i, auto load, auto store)
                            HWY_ATTR { store(load(source + i) * times + 0.0f, target + i); });
  }
}

}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_COMPUTE_KERNELS_CPU_ELEMENTWISE_INL_H_
