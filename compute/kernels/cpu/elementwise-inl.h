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

}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_COMPUTE_KERNELS_CPU_ELEMENTWISE_INL_H_
