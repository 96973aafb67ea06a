#ifndef TESSERA_BASE_DISPATCH_H_
#define TESSERA_BASE_DISPATCH_H_

// Calls vector code that Highway compiled for several instruction sets: TESSERA_CHOOSE(Loop<T>) is
// a pointer to the function for this processor and TESSERA_CPU. It costs some nanoseconds: dispatch
// blocks of work. The caller includes <hwy/highway.h>, which must be included again for each
// target.

#include <hwy/targets.h>

#include <cstdint>

#include "base/cpu_level.h"

// Where HWY_ONCE is defined, HWY_NAMESPACE names the baseline, which every processor supports.
#define TESSERA_CHOOSE(...)                                                  \
  ([]() {                                                                    \
    switch (::tessera::ChosenTarget<HWY_TARGETS>()) {                        \
      TESSERA_IF_AVX3_DL(case HWY_AVX3_DL : return &N_AVX3_DL::__VA_ARGS__;) \
      TESSERA_IF_AVX3(case HWY_AVX3 : return &N_AVX3::__VA_ARGS__;)          \
      TESSERA_IF_AVX2(case HWY_AVX2 : return &N_AVX2::__VA_ARGS__;)          \
      TESSERA_IF_SSE4(case HWY_SSE4 : return &N_SSE4::__VA_ARGS__;)          \
      TESSERA_IF_SSSE3(case HWY_SSSE3 : return &N_SSSE3::__VA_ARGS__;)       \
      default:                                                               \
        return &HWY_NAMESPACE::__VA_ARGS__;                                  \
    }                                                                        \
  }())

#if HWY_TARGETS & ~HWY_STATIC_TARGET & HWY_AVX3_DL
#define TESSERA_IF_AVX3_DL(...) __VA_ARGS__
#else
#define TESSERA_IF_AVX3_DL(...)
#endif
#if HWY_TARGETS & ~HWY_STATIC_TARGET & HWY_AVX3
#define TESSERA_IF_AVX3(...) __VA_ARGS__
#else
#define TESSERA_IF_AVX3(...)
#endif
#if HWY_TARGETS & ~HWY_STATIC_TARGET & HWY_AVX2
#define TESSERA_IF_AVX2(...) __VA_ARGS__
#else
#define TESSERA_IF_AVX2(...)
#endif
#if HWY_TARGETS & ~HWY_STATIC_TARGET & HWY_SSE4
#define TESSERA_IF_SSE4(...) __VA_ARGS__
#else
#define TESSERA_IF_SSE4(...)
#endif
#if HWY_TARGETS & ~HWY_STATIC_TARGET & HWY_SSSE3
#define TESSERA_IF_SSSE3(...) __VA_ARGS__
#else
#define TESSERA_IF_SSSE3(...)
#endif

namespace tessera {

// Returns the one of `targets` on which vector code runs; 0 if none of them is usable. Newer
// targets have lower bits.
template <int64_t targets>
int64_t ChosenTarget() {
  const int64_t usable = UsableTargets() & targets;
  return usable & -usable;
}

}  // namespace tessera

#endif  // TESSERA_BASE_DISPATCH_H_
