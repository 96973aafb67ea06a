#ifndef TESSERA_COMPUTE_KERNELS_CUDA_OPERATION_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_OPERATION_H_

// Parts of every operation: operands as kernels get them, by value; kernels over the elements of
// matrices; the name of an operation for errors of its launches.

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "compute/kernels/cuda/simt.h"
#include "compute/kernels/cuda/simt_common.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

// Calls body(T{}) with the C++ type of a compute dtype.
template <typename Body>
void WithType(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(BFloat16{});
    default:
      LOG(FATAL) << "the device computes in float32 and bfloat16, not " << DTypeName(dtype);
  }
}

// A matrix [rows, columns], dense in its columns. `stride` is the distance of rows in elements: 0
// where a vector is every row.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;

  TESSERA_DEVICE T* At(int64_t row, int64_t column) const { return data + row * stride + column; }
};

// Treats all dims but the last as rows: a strided matrix, or a contiguous tensor of any rank.
template <typename T>
Rows<T> AsRows(const TensorView& x) {
  CHECK_GE(x.rank(), 1);
  const int64_t columns = x.dim(x.rank() - 1);
  if (x.rank() == 2) {
    CHECK(columns <= 1 || x.stride(1) == 1)
        << "not dense in the last dim: " << ShapeToString(x.shape());
    return {x.as<T>(), x.dim(0), columns, x.stride(0)};
  }
  CHECK(x.contiguous()) << "strided, and not a matrix: " << ShapeToString(x.shape());
  return {x.as<T>(), columns == 0 ? 0 : x.elements() / columns, columns, columns};
}

// Returns a contiguous tensor as one row, or as each of `rows` rows.
template <typename T>
Rows<T> AsOneRow(const TensorView& x, int64_t rows = 1) {
  return {x.as<T>(), rows, x.elements(), rows == 1 ? x.elements() : 0};
}

// Returns half `which` of the columns: the gates of a SwiGLU, or its ups.
template <typename T>
Rows<T> HalfOf(const TensorView& gate_up, int which) {
  const Rows<T> all = AsRows<T>(gate_up);
  return {all.data + which * (all.columns / 2), all.rows, all.columns / 2, all.stride};
}

// Number of elements that a thread loads at once if all operands allow it: 16 bytes of the smallest
// type.
template <typename... T>
inline constexpr int kPackOf = 16 / static_cast<int>(std::min({sizeof(T)...}));

// Returns whether the vectors, or all rows of the operands, can be read in packs of kCount
// elements.
template <int kCount, typename... T>
bool AllowsPacks(const T*... vectors) {
  return (... && (reinterpret_cast<uintptr_t>(vectors) % simt::kPackAlignment<T, kCount> == 0));
}

template <int kCount, typename... T>
bool AllowsPacks(const Rows<T>&... x) {
  return (... && (x.columns % kCount == 0 && x.stride % kCount == 0)) &&
         AllowsPacks<kCount>(x.data...);
}

// Calls body(std::true_type()) or body(std::false_type()).
template <typename Body>
void WithBool(bool value, Body body) {
  if (value) return body(std::true_type());
  body(std::false_type());
}

inline constexpr int kElementwiseThreads = 256;
inline constexpr int64_t kMaxRuns = int64_t{1} << 30;  // of one launch

// Implements LaunchRuns() with one thread per kCount adjacent elements of a row, from a row and a
// run of kCount on.
template <int kCount, typename Body>
TESSERA_KERNEL void ForEach(Body body, int64_t first_row, int64_t first_run, uint32_t runs,
                            simt::Divisor per_row) {
  const uint32_t i =
      static_cast<uint32_t>(simt::BlockX()) * kElementwiseThreads + simt::ThreadIndex();
  if (i >= runs) return;
  const uint32_t row = per_row.Quotient(i);
  body.template Run<kCount>(first_row + row, (first_run + (i - row * per_row.divisor())) * kCount);
}

template <int kCount, typename Body>
void LaunchRuns(simt::Stream stream, int64_t rows, int64_t columns, const Body& body) {
  const int64_t per_row = columns / kCount;
  const int64_t width = std::clamp<int64_t>(per_row, 1, kMaxRuns), height = kMaxRuns / width;
  for (int64_t row = 0; row < rows; row += height) {
    for (int64_t run = 0; run < per_row; run += width) {
      const int64_t own_width = std::min(width, per_row - run);
      const int64_t runs = own_width * std::min(height, rows - row);
      simt::Launch<ForEach<kCount, Body>>({simt::BlocksOf(runs, kElementwiseThreads)},
                                          kElementwiseThreads, 0, stream, body, row, run,
                                          static_cast<uint32_t>(runs), simt::Divisor(own_width));
    }
  }
}

// Calls body.Run<kCount>(row, column) for every run of kCount columns of a matrix. kCount is that
// of packs if there are operands and all of them allow packs, otherwise 1. Results must not depend
// on kCount.
template <typename Body, typename... T>
void LaunchForEach(simt::Stream stream, int64_t rows, int64_t columns, const Body& body,
                   const Rows<T>&... operands) {
  if constexpr (sizeof...(operands) > 0) {
    constexpr int kPack = kPackOf<T...>;
    if (AllowsPacks<kPack>(operands...)) return LaunchRuns<kPack>(stream, rows, columns, body);
  }
  LaunchRuns<1>(stream, rows, columns, body);
}

template <typename F, typename Inputs, typename Outputs>
struct MapBody;
template <typename F, typename... In, typename... Out>
struct MapBody<F, std::tuple<Rows<In>...>, std::tuple<Rows<Out>...>> {
  F f;
  std::tuple<Rows<In>...> inputs;
  std::tuple<Rows<Out>...> outputs;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    float values[sizeof...(In)][kCount];
    [&]<size_t... i>(std::index_sequence<i...>) {
      (simt::LoadPack(std::get<i>(inputs).At(row, column), values[i]), ...);
      for (int j = 0; j < kCount; ++j) f(values[i][j]...);
    }
    (std::index_sequence_for<In...>());
    [&]<size_t... i>(std::index_sequence<i...>) {
      (simt::StorePack(values[i], std::get<i>(outputs).At(row, column)), ...);
    }
    (std::index_sequence_for<Out...>());
  }
};

// Applies f to each element: f gets the value of each input in fp32 and changes its first
// arguments, which become the values of the outputs. Outputs may be inputs.
template <typename F, typename... In, typename... Out>
void LaunchMap(simt::Stream stream, const F& f, const std::tuple<Rows<In>...>& inputs,
               const std::tuple<Rows<Out>...>& outputs) {
  const MapBody<F, std::tuple<Rows<In>...>, std::tuple<Rows<Out>...>> body = {f, inputs, outputs};
  const auto& shape = std::get<0>(outputs);
  std::apply(
      [&](const auto&... x) { LaunchForEach(stream, shape.rows, shape.columns, body, x...); },
      std::tuple_cat(inputs, outputs));
}

// Receives each operation that is queued, except the parts of another one.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  virtual void OnBegin(const char* /*name*/) {}
  // `operation` is its name, with shapes.
  virtual void OnEnd(const std::function<std::string()>& /*operation*/) {}
};

// Names an operation of Backend, with the shapes of its first operands, in errors of the launches
// in its scope. The operands must outlive it.
class Operation final : private simt::LaunchScope {
 public:
  template <typename... Views>
  explicit Operation(OperationObserver& observer, const char* name, const Views&... operands)
      : observer_(observer), name_(name), operands_{&operands...} {
    static_assert(sizeof...(operands) <= kMaxOperands);
    if (!is_nested()) observer_.OnBegin(name_);
  }
  ~Operation() override {
    if (!is_nested()) observer_.OnEnd([this] { return Describe(); });
  }

 private:
  static constexpr int kMaxOperands = 4;

  std::string Describe() const override {
    std::string text = name_;
    const char* before = " of ";
    for (const TensorView* operand : operands_) {
      if (operand == nullptr) break;
      text += before + ShapeToString(operand->shape());
      before = ", ";
    }
    return text;
  }

  std::vector<simt::Extent> Operands() const override {
    std::vector<simt::Extent> extents;
    for (const TensorView* operand : operands_) {
      if (operand == nullptr) break;
      const auto begin = reinterpret_cast<uintptr_t>(operand->data());
      extents.push_back({begin, begin + static_cast<uintptr_t>(operand->span_bytes())});
    }
    return extents;
  }

  OperationObserver& observer_;
  const char* const name_;
  const std::array<const TensorView*, kMaxOperands> operands_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_OPERATION_H_
