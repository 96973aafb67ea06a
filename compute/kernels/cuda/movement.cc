// Copies, sums of arrays and of rows.

#include <glog/logging.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/row_kernels.h"
#include "compute/kernels/cuda/simt.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

// Fill, Copy, Add and Scale.
namespace {

constexpr int kMaxDims = 6;
constexpr int64_t kMaxElements = int64_t{1} << 31;

// Rounds to nearest even as if in one step: rounds double to fp32 to odd (truncates, and records
// any loss in the last bit), which makes the second rounding correct.
TESSERA_HOST_DEVICE BFloat16 RoundToBFloat16(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || value != value) return BFloat16(nearest);
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (fabs(static_cast<double>(nearest)) > fabs(value)) --bits;
  return BFloat16(std::bit_cast<float>(bits | 1));
}

template <typename From, typename To>
TESSERA_HOST_DEVICE To ConvertElement(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    if constexpr (std::is_same_v<From, double>) return RoundToBFloat16(value);
    return BFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

// Two operands of one shape with any strides. With more than one dim, at most kMaxElements.
struct Strided {
  int rank = 0;
  int64_t extents[kMaxDims];
  int64_t from_strides[kMaxDims] = {};
  int64_t to_strides[kMaxDims] = {};
  simt::Divisor by_extent[kMaxDims];

  // Finds both offsets of element `index`, counted with the last dim fastest.
  TESSERA_DEVICE void Find(int64_t index, int64_t* from_offset, int64_t* to_offset) const {
    *from_offset = *to_offset = 0;
    uint32_t left = static_cast<uint32_t>(index);  // but for rank 1, whose index may be larger
    for (int d = rank - 1; d > 0; --d) {
      const int64_t at = by_extent[d].Remainder(left);
      *from_offset += at * from_strides[d];
      *to_offset += at * to_strides[d];
      left = by_extent[d].Quotient(left);
    }
    const int64_t at = rank > 1 ? left : index;
    *from_offset += at * from_strides[0];
    *to_offset += at * to_strides[0];
  }
};

// Dims of one element are left out; a dim that continues the one before it is merged with it.
Strided Merge(const TensorView& from, const TensorView& to) {
  Strided merged;
  for (int d = 0; d < from.rank(); ++d) {
    if (from.dim(d) == 1) continue;
    const int last = merged.rank - 1;
    if (last >= 0 && merged.from_strides[last] == from.dim(d) * from.stride(d) &&
        merged.to_strides[last] == to.dim(d) * to.stride(d)) {
      merged.extents[last] *= from.dim(d);
      merged.from_strides[last] = from.stride(d);
      merged.to_strides[last] = to.stride(d);
      continue;
    }
    CHECK_LT(merged.rank, kMaxDims) << ShapeToString(from.shape());
    merged.extents[merged.rank] = from.dim(d);
    merged.from_strides[merged.rank] = from.stride(d);
    merged.to_strides[merged.rank] = to.stride(d);
    ++merged.rank;
  }
  for (int d = 1; d < merged.rank; ++d) merged.by_extent[d] = simt::Divisor(merged.extents[d]);
  return merged;
}

// Calls run(dim, begin, end) for the halves of a tensor with too many elements for such `dims`;
// false for other tensors.
template <typename Run>
bool InHalves(const TensorView& x, const Strided& dims, const Run& run) {
  if (dims.rank <= 1 || x.elements() <= kMaxElements) return false;
  int d = 0;
  while (x.dim(d) == 1) ++d;
  run(d, 0, x.dim(d) / 2);
  run(d, x.dim(d) / 2, x.dim(d));
  return true;
}

template <typename From, typename To>
struct CopyStridedBody {
  const From* from;
  To* to;
  Strided dims;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t /*row*/, int64_t index) const {
    int64_t from_offset, to_offset;
    dims.Find(index, &from_offset, &to_offset);
    to[to_offset] = ConvertElement<From, To>(from[from_offset]);
  }
};

template <typename From, typename To>
struct CopyRowsBody {
  Rows<From> from;
  Rows<To> to;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    const auto& source = *reinterpret_cast<const simt::Pack<From, kCount>*>(from.At(row, column));
    simt::Pack<To, kCount> pack;
    for (int i = 0; i < kCount; ++i) {
      pack.elements[i] = ConvertElement<From, To>(source.elements[i]);
    }
    *reinterpret_cast<simt::Pack<To, kCount>*>(to.At(row, column)) = pack;
  }
};

// Returns the merged dims as rows dense in both operands; or no rows.
template <typename From, typename To>
CopyRowsBody<From, To> AsRowsBody(const Strided& dims, From* from, To* to) {
  if (dims.rank == 1 && dims.from_strides[0] == 1 && dims.to_strides[0] == 1) {
    const int64_t count = dims.extents[0];
    return {{from, 1, count, count}, {to, 1, count, count}};
  }
  if (dims.rank == 2 && dims.from_strides[1] == 1 && dims.to_strides[1] == 1) {
    return {{from, dims.extents[0], dims.extents[1], dims.from_strides[0]},
            {to, dims.extents[0], dims.extents[1], dims.to_strides[0]}};
  }
  return {};
}

template <typename Body>
void WithAnyType(DType dtype, Body&& body) {
  if (dtype == DType::kF64) return body(double{});
  if (dtype == DType::kI32) return body(int32_t{});
  WithType(dtype, body);
}

template <typename From, typename To>
void LaunchCopy(simt::Stream stream, TensorView from, TensorView to, const Strided& dims) {
  if constexpr (sizeof(From) <= 4 && sizeof(To) <= 4 && !std::is_same_v<From, int32_t>) {
    const CopyRowsBody<From, To> rows = AsRowsBody(dims, from.as<From>(), to.as<To>());
    if (rows.from.rows > 0) {
      return LaunchForEach(stream, rows.from.rows, rows.from.columns, rows, rows.from, rows.to);
    }
  }
  LaunchForEach(stream, 1, from.elements(),
                CopyStridedBody<From, To>{from.as<From>(), to.as<To>(), dims});
}

template <typename T>
struct FillBody {
  T* x;
  T value;
  Strided dims;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t /*row*/, int64_t index) const {
    int64_t offset, same;
    dims.Find(index, &offset, &same);
    x[offset] = value;
  }
};

struct Plus {
  TESSERA_DEVICE void operator()(float& a, float b) const { a += b; }
};

struct Scaled {
  float factor;
  TESSERA_DEVICE void operator()(float& x) const { x *= factor; }
};

}  // namespace

void DeviceKernels::Run(const ops::Fill& op) {
  const Operation here(*this, "Fill", op.x);
  const Strided dims = Merge(op.x, op.x);
  if (InHalves(op.x, dims, [&](int d, int64_t begin, int64_t end) {
        Fill({op.x.Slice(d, begin, end), op.value});
      })) {
    return;
  }
  WithAnyType(op.x.dtype(), [&]<typename T>(T) {
    LaunchForEach(stream(), 1, op.x.elements(),
                  FillBody<T>{op.x.as<T>(), ConvertElement<double, T>(op.value), dims});
  });
}

void DeviceKernels::Run(const ops::Copy& op) {
  const Operation here(*this, "Copy", op.from, op.to);
  if (op.from.elements() == 0) return;
  const Strided dims = Merge(op.from, op.to);
  if (InHalves(op.from, dims, [&](int d, int64_t begin, int64_t end) {
        Copy({op.from.Slice(d, begin, end), op.to.Slice(d, begin, end)});
      })) {
    return;
  }
  WithAnyType(op.from.dtype(), [&]<typename From>(From) {
    WithAnyType(op.to.dtype(), [&]<typename To>(To) {
      if constexpr (std::is_same_v<From, int32_t> == std::is_same_v<To, int32_t>) {
        LaunchCopy<From, To>(stream(), op.from, op.to, dims);
      } else {
        LOG(FATAL) << "no copy op.from " << DTypeName(op.from.dtype()) << " op.to "
                   << DTypeName(op.to.dtype());
      }
    });
  });
}

void DeviceKernels::Run(const ops::Add& op) {
  const Operation here(*this, "Add", op.a, op.b, op.out);
  WithType(op.a.dtype(), [&]<typename A>(A) {
    WithType(op.b.dtype(), [&]<typename B>(B) {
      WithType(op.out.dtype(), [&]<typename Out>(Out) {
        LaunchMap(stream(), Plus(), std::tuple(AsOneRow<A>(op.a), AsOneRow<B>(op.b)),
                  std::tuple(AsOneRow<Out>(op.out)));
      });
    });
  });
}

void DeviceKernels::Run(const ops::Scale& op) {
  const Operation here(*this, "Scale", op.x);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const std::tuple x(AsOneRow<T>(op.x));
    LaunchMap(stream(), Scaled{static_cast<float>(op.factor)}, x, x);
  });
}

// The bias is the last step of a sum of products over shards.
void DeviceKernels::AddBiasTo(const TensorView& bias, const TensorView& x) {
  const Operation here(*this, "AddBiasTo", bias, x);
  WithType(x.dtype(), [&]<typename X>(X) {
    WithType(bias.dtype(), [&]<typename T>(T) {
      const Rows<X> rows = AsRows<X>(x);
      LaunchMap(stream(), Plus(), std::tuple(rows, AsOneRow<T>(bias, rows.rows)), std::tuple(rows));
    });
  });
}

void DeviceKernels::Run(const ops::AddBias& op) {
  const Operation here(*this, "AddBias", op.x, op.bias, op.out);
  if (op.bias.empty()) {
    if (op.x.data() != op.out.data()) Copy({op.x, op.out});
    return;
  }
  WithType(op.out.dtype(), [&]<typename T>(T) {
    const Rows<float> x = AsRows<float>(op.x);
    LaunchMap(stream(), Plus(), std::tuple(x, AsOneRow<T>(op.bias, x.rows)),
              std::tuple(AsRows<T>(op.out)));
  });
}

void DeviceKernels::Run(const ops::SumRows& op) {
  const Operation here(*this, "SumRows", op.x, op.out);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> x = AsRows<T>(op.x);
    float* const partials = Scratch<float>(RowRuns(x.rows).Partials(x.columns));
    if (partials == nullptr) return;
    WithBool(AllowsPacks<kPackOf<T>>(x), [&]<bool kPacks>(std::bool_constant<kPacks>) {
      LaunchSumRows<kPacks ? kPackOf<T> : 1>(stream(), LoadedRows<T>{x}, x.rows, x.columns,
                                             partials, op.accumulate, op.out.as<float>());
    });
  });
}

}  // namespace tessera::cuda
