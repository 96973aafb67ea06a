// Copies, sums of arrays and of rows.

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
#include "compute/kernels/cpu/vector-inl.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

// Implement Fill, Copy, Add, Scale.

template <typename T>
void ScaleRange(float factor, int64_t count, T* x) {
  ForLanes(count,
           [&](int64_t i, auto load, auto store) HWY_ATTR { store(load(x + i) * factor, x + i); });
}

// Rows are summed in runs, and then the runs are added: the rounding error grows with the run, not
// with the number of rows.
constexpr int64_t kRunRows = 64;

template <typename T>
void SumStrip(const T* x, int64_t rows, int64_t stride, int64_t width, bool accumulate,
              float* out) {
  float total[kStripColumns] = {};
  for (int64_t first = 0; first < rows; first += kRunRows) {
    float run[kStripColumns] = {};
    const int64_t last = std::min(rows, first + kRunRows);
    for (int64_t row = first; row < last; ++row) {
      const T* data = x + row * stride;
      ForLanes(width, [&](int64_t i, auto load, auto)
                          HWY_ATTR { Store(Load(run + i) + load(data + i), run + i); });
    }
    for (int64_t i = 0; i < kStripColumns; i += kLanes) {
      Store(Load(total + i) + Load(run + i), total + i);
    }
  }
  for (int64_t i = 0; i < width; ++i) out[i] = accumulate ? out[i] + total[i] : total[i];
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
    default:
      LOG(FATAL) << "no memory of " << DTypeName(dtype) << " is moved";
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

void CpuBackend::Run(const ops::Fill& op) {
  WithAnyType(op.x.dtype(), [&]<typename T>(T) {
    const T element = ConvertElement<double, T>(op.value);
    if (op.x.contiguous()) {
      ForSegments(pool_, 1, op.x.elements(), [&](int64_t, int64_t begin, int64_t end, int) {
        std::fill(op.x.as<T>() + begin, op.x.as<T>() + end, element);
      });
      return;
    }
    // A view of one element with strides of zero broadcasts it.
    T source = element;
    const TensorView from(&source, op.x.dtype(), op.x.shape(),
                          std::vector<int64_t>(op.x.rank(), 0));
    CopyMerged(pool_, &source, op.x.as<T>(), Merge(from, op.x));
  });
}

void CpuBackend::Run(const ops::Copy& op) {
  if (op.from.elements() == 0) return;
  const MergedDims dims = Merge(op.from, op.to);
  WithAnyType(op.from.dtype(), [&]<typename From>(From) {
    WithAnyType(op.to.dtype(), [&]<typename To>(To) {
      if constexpr (std::is_same_v<From, int32_t> == std::is_same_v<To, int32_t>) {
        CopyMerged(pool_, op.from.as<From>(), op.to.as<To>(), dims);
      } else {
        LOG(FATAL) << "no copy op.from " << DTypeName(op.from.dtype()) << " op.to "
                   << DTypeName(op.to.dtype());
      }
    });
  });
}

void CpuBackend::Run(const ops::Add& op) {
  WithType(op.a.dtype(), [&]<typename A>(A) {
    WithType(op.b.dtype(), [&]<typename B>(B) {
      WithType(op.out.dtype(), [&]<typename Out>(Out) {
        const auto add_range = TESSERA_CHOOSE(AddRange<A, B, Out>);
        ForSegments(pool_, 1, op.a.elements(), [&](int64_t, int64_t begin, int64_t end, int) {
          add_range(op.a.as<A>() + begin, op.b.as<B>() + begin, end - begin,
                    op.out.as<Out>() + begin);
        });
      });
    });
  });
}

void CpuBackend::Run(const ops::Scale& op) {
  const float scale = static_cast<float>(op.factor);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const auto scale_range = TESSERA_CHOOSE(ScaleRange<T>);
    ForSegments(pool_, 1, op.x.elements(), [&](int64_t, int64_t begin, int64_t end, int) {
      scale_range(scale, end - begin, op.x.as<T>() + begin);
    });
  });
}

void CpuBackend::Run(const ops::AddBias& op) {
  if (op.bias.empty()) {
    if (op.x.data() != op.out.data()) Copy({op.x, op.out});
    return;
  }
  WithType(op.out.dtype(), [&]<typename T>(T) {
    const Rows<float> from = AsRows<float>(op.x);
    const Rows<T> to = AsRows<T>(op.out);
    const auto add_range = TESSERA_CHOOSE(AddRange<float, T, T>);
    ForSegments(pool_, from.rows, from.columns, [&](int64_t row, int64_t begin, int64_t end, int) {
      add_range(from.row(row) + begin, op.bias.as<T>() + begin, end - begin, to.row(row) + begin);
    });
  });
}

void CpuBackend::Run(const ops::SumRows& op) {
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> rows = AsRows<T>(op.x);
    const auto sum_strip = TESSERA_CHOOSE(SumStrip<T>);
    ForRanges(pool_, rows.columns, kStripColumns, [&](int64_t begin, int64_t end, int) {
      sum_strip(rows.data + begin, rows.rows, rows.stride, end - begin, op.accumulate,
                op.out.as<float>() + begin);
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
