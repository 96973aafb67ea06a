#include "models/layers/parameter.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <thread>
#include <utility>

#include "base/processors.h"
#include "base/threads.h"
#include "compute/random/philox.h"
#include "glog/logging.h"
#include "tensor/bfloat16.h"
#include "tensor/flat_parameter.h"
#include "tensor/memory.h"

namespace tessera {
namespace {

// A dense run of a piece: elements that are contiguous both in the buffer and in the logical
// tensor.
struct Run {
  int64_t local = 0;    // flat element of the parameter's buffer
  int64_t logical = 0;  // flat element of the logical tensor
  int64_t length = 0;
};

int64_t FlatIndex(const std::vector<int64_t>& index, const Shape& shape) {
  int64_t flat = 0;
  for (size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + index[d];
  return flat;
}

// Calls `visit` for each row (run of the last dim) in [begin_row, end_row) of the piece.
void ForEachRun(const Parameter& parameter, const ParameterPiece& piece, int64_t begin_row,
                int64_t end_row, const std::function<void(const Run&)>& visit) {
  const size_t dims = piece.shape.size();
  for (int64_t row = begin_row; row < end_row; ++row) {
    std::vector<int64_t> local = piece.local_offset;
    std::vector<int64_t> global = piece.global_offset;
    int64_t rest = row;
    for (size_t d = dims - 1; d-- > 0;) {
      local[d] += rest % piece.shape[d];
      global[d] += rest % piece.shape[d];
      rest /= piece.shape[d];
    }
    visit({FlatIndex(local, parameter.shape), FlatIndex(global, piece.global_shape),
           piece.shape[dims - 1]});
  }
}

int64_t RowCount(const ParameterPiece& piece) {
  return piece.shape.back() == 0 ? 0 : ElementCount(piece.shape) / piece.shape.back();
}

void Store(const TensorView& to, int64_t first, std::span<const float> values) {
  const size_t n = values.size();
  switch (to.dtype()) {
    case DType::kF32:
      std::copy(values.begin(), values.end(), to.as<float>() + first);
      return;
    case DType::kF64:
      std::copy(values.begin(), values.end(), to.as<double>() + first);
      return;
    case DType::kBF16:
      for (size_t i = 0; i < n; ++i) to.as<BFloat16>()[first + i] = BFloat16(values[i]);
      return;
    default:
      LOG(FATAL) << "weights of type " << DTypeName(to.dtype());
  }
}

// Returns the part of a flat buffer that holds a tensor of this shape.
TensorView PartOf(const TensorView& flat, int64_t offset, const Shape& shape) {
  return flat.Slice(0, offset, offset + ElementCount(shape)).Reshape(shape);
}

// Rows are independent: any split among threads gives the same values.
void ParallelRows(int64_t rows, int64_t row_elements,
                  const std::function<void(int64_t, int64_t)>& work) {
  constexpr int64_t kElementsPerThread = 1 << 18;
  const int64_t wanted = rows * row_elements / kElementsPerThread;
  const int64_t threads = std::clamp<int64_t>(
      wanted, 1, std::min<int64_t>(UsableProcessors(), std::max<int64_t>(rows, 1)));
  const auto part = [&](int64_t t) { work(rows * t / threads, rows * (t + 1) / threads); };
  std::vector<std::thread> pool =
      StartThreads(static_cast<int>(threads) - 1, [&](int other) { part(other + 1); });
  part(0);
  for (int64_t t = static_cast<int64_t>(pool.size()) + 1; t < threads; ++t) part(t);
  for (std::thread& thread : pool) thread.join();
}

void InitializePiece(const Parameter& parameter, const ParameterPiece& piece, uint64_t seed,
                     const TensorView& to) {
  const RandomStream stream{seed, RandomUse::kInit, HashName(piece.name)};
  const float deviation = static_cast<float>(parameter.init.standard_deviation);
  ParallelRows(RowCount(piece), piece.shape.back(), [&](int64_t begin, int64_t end) {
    std::vector<float> values(piece.shape.back(), 1.0f);
    ForEachRun(parameter, piece, begin, end, [&](const Run& run) {
      if (parameter.init.kind == Initialization::kNormal) {
        FillRandomNormal(stream, run.logical, values);
        for (float& value : values) value *= deviation;
      }
      Store(to, run.local, values);
    });
  });
}

}  // namespace

Parameter& ParameterSet::Add(Parameter parameter) {
  CHECK(values_.view().empty()) << "parameter added after Allocate()";
  CHECK(!parameter.pieces.empty());
  parameter.key = parameter.pieces[0].name;
  if (parameter.shard >= 0) parameter.key += "/v" + std::to_string(parameter.shard);
  parameter.flat_offset = flat_elements_;
  flat_elements_ += AlignedElements(parameter.elements());
  owned_.push_back(std::make_unique<Parameter>(std::move(parameter)));
  order_.push_back(owned_.back().get());
  return *owned_.back();
}

void ParameterSet::Allocate(DType compute_dtype, Device device, bool with_gradients) {
  grad_dtype_ = compute_dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  {
    MemoryScope scope(MemoryCategory::kWeights);
    values_ = Tensor(compute_dtype, {flat_elements_}, device);
  }
  gradient_elements_ = flat_elements_;
  for (Parameter* parameter : order_) {
    parameter->value = PartOf(values_, parameter->flat_offset, parameter->shape);
    if (!parameter->has_second_grad) continue;
    parameter->second_grad_offset = gradient_elements_;
    gradient_elements_ += AlignedElements(parameter->elements());
  }
  if (!with_gradients) return;
  {
    MemoryScope scope(MemoryCategory::kGradients);
    grads_ = Tensor(grad_dtype_, {gradient_elements_}, device);
  }
  BindGradients(0, gradient_elements_, grads_);
}

void ParameterSet::BindGradients(int64_t begin, int64_t end, const TensorView& memory) {
  CHECK(memory.empty() || (memory.elements() == end - begin && memory.dtype() == grad_dtype_))
      << "memory for gradients [" << begin << ", " << end << ")";
  const auto bind = [&](int64_t offset, const Parameter& parameter, TensorView& grad) {
    const int64_t last = offset + parameter.elements();
    if (last <= begin || offset >= end) return;
    CHECK(begin <= offset && last <= end)
        << parameter.key << " is cut by gradients [" << begin << ", " << end << ")";
    grad = memory.empty() ? TensorView() : PartOf(memory, offset - begin, parameter.shape);
  };
  for (Parameter* parameter : order_) {
    bind(parameter->flat_offset, *parameter, parameter->grad);
    if (parameter->has_second_grad) {
      bind(parameter->second_grad_offset, *parameter, parameter->second_grad);
    }
  }
}

void ParameterSet::Initialize(uint64_t seed) {
  CHECK(values_.device().type == DeviceType::kCpu) << "weights are initialised on the host";
  InitializeInto(seed, values_);
}

void ParameterSet::InitializeInto(uint64_t seed, const TensorView& flat) const {
  for (const Parameter* parameter : order_) {
    const TensorView value = PartOf(flat, parameter->flat_offset, parameter->shape);
    if (parameter->init.kind == Initialization::kZeros) {
      std::fill_n(value.as<std::byte>(), value.bytes(), std::byte{0});
      continue;
    }
    for (const ParameterPiece& piece : parameter->pieces) {
      InitializePiece(*parameter, piece, seed, value);
    }
  }
}

int64_t ParameterSet::logical_elements() const {
  int64_t sum = 0;
  for (const Parameter* parameter : order_) {
    for (const ParameterPiece& piece : parameter->pieces) sum += ElementCount(piece.shape);
  }
  return sum;
}

}  // namespace tessera
