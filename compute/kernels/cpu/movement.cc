// Fill, Copy, Add, Scale.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/movement.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/dispatch.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/elementwise-inl.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

template <typename T>
void ScaleRange(float factor, int64_t count, T* x) {
  ForLanes(count,
           [&](int64_t i, auto load, auto store) HWY_ATTR { store(load(x + i) * factor, x + i); });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

// Calls body(T{}) with the C++ type of any dtype.
template <typename Body>
void WithAnyType(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(BFloat16{});
    case DType::kF64:
      return body(double{});
    case DType::kI32:
      return body(int32_t{});
  }
}

// Two views of one shape, with dims that are dense in both merged: fewer, longer inner runs.
struct MergedDims {
  std::vector<int64_t> extents, from_strides, to_strides;
};

MergedDims Merge(const TensorView& from, const TensorView& to) {
  MergedDims merged;
  for (int d = 0; d < from.rank(); ++d) {
    if (from.dim(d) == 1) continue;
    if (!merged.extents.empty() && merged.from_strides.back() == from.dim(d) * from.stride(d) &&
        merged.to_strides.back() == to.dim(d) * to.stride(d)) {
      merged.extents.back() *= from.dim(d);
      merged.from_strides.back() = from.stride(d);
      merged.to_strides.back() = to.stride(d);
      continue;
    }
    merged.extents.push_back(from.dim(d));
    merged.from_strides.push_back(from.stride(d));
    merged.to_strides.push_back(to.stride(d));
  }
  if (merged.extents.empty()) {
    merged.extents.push_back(1);
    merged.from_strides.push_back(1);
    merged.to_strides.push_back(1);
  }
  return merged;
}

// Rounds once: a value closer to a tie of bf16 than fp32 can resolve must not become the tie.
BFloat16 RoundToBFloat16(double value) {
  const float nearest = static_cast<float>(value);
  const uint32_t word = std::bit_cast<uint32_t>(nearest);
  if ((word & 0xffff) != 0x8000 || nearest == value) return BFloat16(nearest);
  // One step of fp32 towards the value. For a finite non-zero number, larger bits are farther from
  // zero.
  const bool outward = std::abs(value) > std::abs(static_cast<double>(nearest));
  return BFloat16(std::bit_cast<float>(outward ? word + 1 : word - 1));
}

template <typename From, typename To>
To ConvertElement(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else if constexpr (std::is_same_v<To, BFloat16> && std::is_same_v<From, double>) {
    return RoundToBFloat16(value);
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <typename From, typename To>
void CopyRun(const From* from, int64_t from_stride, To* to, int64_t to_stride, int64_t count) {
  constexpr bool kSame = std::is_same_v<From, To>;
  constexpr bool kVector = sizeof(From) + sizeof(To) == 6 && !kSame;  // fp32 <-> bf16
  if (from_stride == 1 && to_stride == 1) {
    if constexpr (kSame) {
      std::memcpy(to, from, count * sizeof(From));
      return;
    } else if constexpr (kVector) {
      TESSERA_CHOOSE(ConvertRange<From, To>)(from, count, to);
      return;
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    to[i * to_stride] = ConvertElement<From, To>(from[i * from_stride]);
  }
}

template <typename From, typename To>
void CopyMerged(ThreadPool& pool, const From* from, To* to, const MergedDims& dims) {
  const int inner = static_cast<int>(dims.extents.size()) - 1;
  int64_t outer_count = 1;
  for (int d = 0; d < inner; ++d) outer_count *= dims.extents[d];
  ForSegments(pool, outer_count, dims.extents[inner],
              [&](int64_t outer, int64_t begin, int64_t end, int) {
                int64_t from_offset = begin * dims.from_strides[inner];
                int64_t to_offset = begin * dims.to_strides[inner];
                for (int d = inner - 1; d >= 0; --d) {
                  const int64_t index = outer % dims.extents[d];
                  outer /= dims.extents[d];
                  from_offset += index * dims.from_strides[d];
                  to_offset += index * dims.to_strides[d];
                }
                CopyRun(from + from_offset, dims.from_strides[inner], to + to_offset,
                        dims.to_strides[inner], end - begin);
              });
}

}  // namespace

void CpuBackend::Fill(TensorView x, double value) {
  WithAnyType(x.dtype(), [&]<typename T>(T) {
    const T element = ConvertElement<double, T>(value);
    if (x.contiguous()) {
      ForSegments(pool_, 1, x.elements(), [&](int64_t, int64_t begin, int64_t end, int) {
        std::fill(x.as<T>() + begin, x.as<T>() + end, element);
      });
      return;
    }
    // A view of one element with strides of zero broadcasts it.
    T source = element;
    const TensorView from(&source, x.dtype(), x.shape(), std::vector<int64_t>(x.rank(), 0));
    CopyMerged(pool_, &source, x.as<T>(), Merge(from, x));
  });
}

void CpuBackend::Copy(TensorView from, TensorView to) {
  CHECK(from.shape() == to.shape()) << ToString(from.shape()) << " to " << ToString(to.shape());
  if (from.elements() == 0) return;
  const MergedDims dims = Merge(from, to);
  WithAnyType(from.dtype(), [&]<typename From>(From) {
    WithAnyType(to.dtype(), [&]<typename To>(To) {
      if constexpr (std::is_same_v<From, int32_t> == std::is_same_v<To, int32_t>) {
        CopyMerged(pool_, from.as<From>(), to.as<To>(), dims);
      } else {
        LOG(FATAL) << "no copy from " << DTypeName(from.dtype()) << " to " << DTypeName(to.dtype());
      }
    });
  });
}

void CpuBackend::Add(TensorView a, TensorView b, TensorView out) {
  CHECK(a.contiguous() && b.contiguous() && out.contiguous());
  CHECK(a.shape() == b.shape() && a.shape() == out.shape())
      << ToString(a.shape()) << " + " << ToString(b.shape()) << " = " << ToString(out.shape());
  WithType(a.dtype(), [&]<typename A>(A) {
    WithType(b.dtype(), [&]<typename B>(B) {
      WithType(out.dtype(), [&]<typename Out>(Out) {
        const auto add_range = TESSERA_CHOOSE(AddRange<A, B, Out>);
        ForSegments(pool_, 1, a.elements(), [&](int64_t, int64_t begin, int64_t end, int) {
          add_range(a.as<A>() + begin, b.as<B>() + begin, end - begin, out.as<Out>() + begin);
        });
      });
    });
  });
}

void CpuBackend::Scale(TensorView x, double factor) {
  CHECK(x.contiguous());
  const float scale = static_cast<float>(factor);
  WithType(x.dtype(), [&]<typename T>(T) {
    const auto scale_range = TESSERA_CHOOSE(ScaleRange<T>);
    ForSegments(pool_, 1, x.elements(), [&](int64_t, int64_t begin, int64_t end, int) {
      scale_range(scale, end - begin, x.as<T>() + begin);
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
