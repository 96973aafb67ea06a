// Copies, sums of arrays and of rows.

#include <glog/logging.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "compute/kernels/cuda/column_sums.h"
#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/bfloat16.h"
#include "compute/tensor/tensor.h"
#include "layout/dtype.h"

namespace tessera::cuda {

// Fill, Copy, Add and Scale.
namespace {

constexpr int kMaxRank = 6;

// Round to nearest even in one step: double to fp32 by rounding to odd (truncation, with what was
// lost recorded in the last bit), which leaves the second rounding right.
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

// Two operands of one shape with any strides.
struct Strided {
  int rank = 0;
  int64_t extents[kMaxRank];
  int64_t from_strides[kMaxRank];
  int64_t to_strides[kMaxRank];
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
    CHECK_LT(merged.rank, kMaxRank) << ShapeToString(from.shape());
    merged.extents[merged.rank] = from.dim(d);
    merged.from_strides[merged.rank] = from.stride(d);
    merged.to_strides[merged.rank] = to.stride(d);
    ++merged.rank;
  }
  return merged;
}

template <typename From, typename To>
struct CopyStridedBody {
  const From* from;
  To* to;
  Strided dims;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t /*row*/, int64_t index) const {
    int64_t from_offset = 0, to_offset = 0;
    for (int d = dims.rank - 1; d >= 0; --d) {
      const int64_t outer = index / dims.extents[d], at = index - outer * dims.extents[d];
      from_offset += at * dims.from_strides[d];
      to_offset += at * dims.to_strides[d];
      index = outer;
    }
    to[to_offset] = ConvertElement<From, To>(from[from_offset]);
  }
};

template <typename From, typename To>
struct CopyRowsBody {
  Rows<From> from;
  Rows<To> to;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    float values[kCount];
    simt::LoadPack(from.data + row * from.stride + column, values);
    simt::StorePack(values, to.data + row * to.stride + column);
  }
};

// The merged dims as rows dense in both operands; or no rows.
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
void LaunchCopy(simt::Stream stream, TensorView from, TensorView to) {
  const Strided dims = Merge(from, to);
  if constexpr (sizeof(From) <= 4 && sizeof(To) <= 4 && !std::is_same_v<From, int32_t>) {
    const CopyRowsBody<From, To> rows = AsRowsBody(dims, from.as<From>(), to.as<To>());
    if (rows.from.rows > 0 && AllowsPacks(rows.from) && AllowsPacks(rows.to)) {
      return LaunchForEach(stream, rows.from.rows, rows.from.columns, /*packs=*/true, rows);
    }
  }
  LaunchForEach(stream, 1, from.elements(), /*packs=*/false,
                CopyStridedBody<From, To>{from.as<From>(), to.as<To>(), dims});
}

template <typename T>
struct FillBody {
  T* x;
  T value;
  Strided dims;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t /*row*/, int64_t index) const {
    int64_t offset = 0;
    for (int d = dims.rank - 1; d >= 0; --d) {
      const int64_t outer = index / dims.extents[d];
      offset += (index - outer * dims.extents[d]) * dims.to_strides[d];
      index = outer;
    }
    x[offset] = value;
  }
};

template <typename A, typename B, typename Out>
struct AddBody {
  Rows<A> a;
  Rows<B> b;
  Rows<Out> out;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    float left[kCount], right[kCount];
    simt::LoadPack(a.data + row * a.stride + column, left);
    simt::LoadPack(b.data + row * b.stride + column, right);
    for (int i = 0; i < kCount; ++i) left[i] += right[i];
    simt::StorePack(left, out.data + row * out.stride + column);
  }
};

template <typename T>
struct ScaleBody {
  Rows<T> x;
  float factor;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    T* const at = x.data + row * x.stride + column;
    float values[kCount];
    simt::LoadPack(at, values);
    for (float& value : values) value *= factor;
    simt::StorePack(values, at);
  }
};

// A contiguous tensor as one row.
template <typename T>
Rows<T> AsOneRow(const TensorView& x) {
  return {x.as<T>(), 1, x.elements(), x.elements()};
}

}  // namespace

void DeviceKernels::Run(const ops::Fill& op) {
  const Operation here("Fill", op.x);
  WithAnyType(op.x.dtype(), [&]<typename T>(T) {
    LaunchForEach(
        stream(), 1, op.x.elements(), /*packs=*/false,
        FillBody<T>{op.x.as<T>(), ConvertElement<double, T>(op.value), Merge(op.x, op.x)});
  });
}

void DeviceKernels::Run(const ops::Copy& op) {
  const Operation here("Copy", op.from, op.to);
  if (op.from.elements() == 0) return;
  WithAnyType(op.from.dtype(), [&]<typename From>(From) {
    WithAnyType(op.to.dtype(), [&]<typename To>(To) {
      if constexpr (std::is_same_v<From, int32_t> == std::is_same_v<To, int32_t>) {
        LaunchCopy<From, To>(stream(), op.from, op.to);
      } else {
        LOG(FATAL) << "no copy op.from " << DTypeName(op.from.dtype()) << " op.to "
                   << DTypeName(op.to.dtype());
      }
    });
  });
}

void DeviceKernels::Run(const ops::Add& op) {
  const Operation here("Add", op.a, op.b, op.out);
  WithType(op.a.dtype(), [&]<typename A>(A) {
    WithType(op.b.dtype(), [&]<typename B>(B) {
      WithType(op.out.dtype(), [&]<typename Out>(Out) {
        const AddBody<A, B, Out> body = {AsOneRow<A>(op.a), AsOneRow<B>(op.b),
                                         AsOneRow<Out>(op.out)};
        LaunchForEach(stream(), 1, op.a.elements(),
                      AllowsPacks(body.a) && AllowsPacks(body.b) && AllowsPacks(body.out), body);
      });
    });
  });
}

void DeviceKernels::Run(const ops::Scale& op) {
  const Operation here("Scale", op.x);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const ScaleBody<T> body = {AsOneRow<T>(op.x), static_cast<float>(op.factor)};
    LaunchForEach(stream(), 1, op.x.elements(), AllowsPacks(body.x), body);
  });
}

// out = x + bias, by row: the last step of a sum of products over shards.
namespace {

template <typename X, typename T, typename Out>
struct AddBiasBody {
  Rows<X> x;
  const T* bias;
  Rows<Out> out;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    float values[kCount], addends[kCount];
    simt::LoadPack(x.data + row * x.stride + column, values);
    simt::LoadPack(bias + column, addends);
    for (int i = 0; i < kCount; ++i) values[i] += addends[i];
    simt::StorePack(values, out.data + row * out.stride + column);
  }
};

template <typename X, typename T, typename Out>
void LaunchAddBias(simt::Stream stream, const TensorView& x, const TensorView& bias,
                   const TensorView& out) {
  const AddBiasBody<X, T, Out> body = {AsRows<X>(x), bias.as<T>(), AsRows<Out>(out)};
  LaunchForEach(stream, body.x.rows, body.x.columns,
                AllowsPacks(body.x) && AllowsPacks(body.bias) && AllowsPacks(body.out), body);
}

}  // namespace

void DeviceKernels::AddBiasTo(const TensorView& bias, const TensorView& x) {
  const Operation here("AddBiasTo", bias, x);
  WithType(x.dtype(), [&]<typename X>(X) {
    WithType(bias.dtype(), [&]<typename T>(T) { LaunchAddBias<X, T, X>(stream(), x, bias, x); });
  });
}

void DeviceKernels::Run(const ops::AddBias& op) {
  const Operation here("AddBias", op.x, op.bias, op.out);
  if (op.bias.empty()) {
    if (op.x.data() != op.out.data()) Copy({op.x, op.out});
    return;
  }
  WithType(op.out.dtype(),
           [&]<typename T>(T) { LaunchAddBias<float, T, T>(stream(), op.x, op.bias, op.out); });
}

namespace {

template <typename T>
struct SumRowsBody {
  Rows<T> x;

  TESSERA_DEVICE void Add(int64_t row, int64_t column, float (&sums)[1]) const {
    sums[0] += simt::ToFloat(x.data[row * x.stride + column]);
  }
};

}  // namespace

void DeviceKernels::Run(const ops::SumRows& op) {
  const Operation here("SumRows", op.x, op.out);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const SumRowsBody<T> body = {AsRows<T>(op.x)};
    const int64_t rows = body.x.rows, columns = body.x.columns;
    void* const partials = Scratch(ColumnSumsScratchBytes<1>(rows, columns));
    if (partials == nullptr) return;
    LaunchColumnSums<1>(stream(), body, rows, columns, op.accumulate, partials,
                        {{op.out.as<float>()}});
  });
}

}  // namespace tessera::cuda
