#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"
#include "tests/device/check/device_checks.h"

namespace tessera::testing {
namespace {

// Memory on the device keeps the host's position in pieces of this size, and thereby the alignment
// that kernels see.
constexpr int64_t kAlignment = 256;

// The operands of one operation on the device: constructed before it, destroyed after it.
class OnDevice {
 public:
  OnDevice(Device device, Backend& backend, const std::vector<TensorView*>& views)
      : backend_(backend) {
    for (const TensorView* view : views) {
      if (!HasMemory(*view)) continue;
      char* const begin = view->as<char>();
      regions_.push_back({begin, begin + view->span_bytes(), Tensor()});
    }
    MergeRegions();
    for (Region& region : regions_) {
      const int64_t lead = reinterpret_cast<intptr_t>(region.begin) % kAlignment;
      region.memory = Tensor(DType::kBF16, {(lead + region.bytes()) / 2}, device);
      region.on_device = region.memory.view().as<char>() + lead;
      backend_.Upload(region.begin, region.Bytes());
    }
    for (TensorView* view : views) {
      if (!HasMemory(*view)) continue;
      const Region& region = RegionOf(*view);
      *view = TensorView(region.on_device + (view->as<char>() - region.begin), view->dtype(),
                         view->shape(), view->strides());
    }
  }

  ~OnDevice() {
    for (const Region& region : regions_) backend_.Download(region.Bytes(), region.begin);
  }

  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  // Host memory [begin, end) and its copy. All element sizes are even.
  struct Region {
    char* begin;
    char* end;
    Tensor memory;
    char* on_device = nullptr;

    int64_t bytes() const { return end - begin; }
    TensorView Bytes() const { return {on_device, DType::kBF16, {bytes() / 2}}; }
  };

  static bool HasMemory(const TensorView& view) { return !view.empty() && view.elements() > 0; }

  void MergeRegions() {
    std::ranges::sort(regions_, {}, &Region::begin);
    std::vector<Region> merged;
    for (Region& region : regions_) {
      if (!merged.empty() && region.begin < merged.back().end) {
        merged.back().end = std::max(merged.back().end, region.end);
      } else {
        merged.push_back(std::move(region));
      }
    }
    regions_ = std::move(merged);
  }

  const Region& RegionOf(const TensorView& view) const {
    const auto after = std::ranges::upper_bound(regions_, view.as<char>(), {}, &Region::begin);
    return *std::prev(after);
  }

  Backend& backend_;
  std::vector<Region> regions_;
};

// Stands for a field of any type.
struct AnyField {
  template <typename Field>
  operator Field() const;  // NOLINT(google-explicit-constructor)
};

template <typename Op, typename... Fields>
constexpr int CountFields() {
  if constexpr (requires { Op{Fields()..., AnyField()}; }) {
    return CountFields<Op, Fields..., AnyField>();
  } else {
    return sizeof...(Fields);
  }
}

// Calls visit(field) for every field of an operation.
template <typename Op, typename Visit>
constexpr void ForEachField(Op& op, const Visit& visit) {
  const auto all = [&](auto&... fields) { (visit(fields), ...); };
  constexpr int kFields = CountFields<Op>();
  static_assert(kFields <= 10);
  if constexpr (kFields == 1) {
    auto& [a] = op;
    all(a);
  } else if constexpr (kFields == 2) {
    auto& [a, b] = op;
    all(a, b);
  } else if constexpr (kFields == 3) {
    auto& [a, b, c] = op;
    all(a, b, c);
  } else if constexpr (kFields == 4) {
    auto& [a, b, c, d] = op;
    all(a, b, c, d);
  } else if constexpr (kFields == 5) {
    auto& [a, b, c, d, e] = op;
    all(a, b, c, d, e);
  } else if constexpr (kFields == 6) {
    auto& [a, b, c, d, e, f] = op;
    all(a, b, c, d, e, f);
  } else if constexpr (kFields == 7) {
    auto& [a, b, c, d, e, f, g] = op;
    all(a, b, c, d, e, f, g);
  } else if constexpr (kFields == 8) {
    auto& [a, b, c, d, e, f, g, h] = op;
    all(a, b, c, d, e, f, g, h);
  } else if constexpr (kFields == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = op;
    all(a, b, c, d, e, f, g, h, i);
  } else {
    auto& [a, b, c, d, e, f, g, h, i, j] = op;
    all(a, b, c, d, e, f, g, h, i, j);
  }
}

// Returns whether values of a type refer to no memory: numbers, enums and structs of these. Every
// other type must be moved to the device.
template <typename Field>
consteval bool IsSetting() {
  if constexpr (std::is_arithmetic_v<Field> || std::is_enum_v<Field>) {
    return true;
  } else if constexpr (std::is_aggregate_v<Field>) {
    bool all = true;
    Field fields{};
    ForEachField(fields, [&]<typename Part>(Part&) { all = all && IsSetting<Part>(); });
    return all;
  } else {
    return false;
  }
}
static_assert(IsSetting<double>() && IsSetting<Dropout>() && IsSetting<AdamWOptions>());
static_assert(!IsSetting<MatMulOperands>() && !IsSetting<std::span<const TensorView>>() &&
              !IsSetting<const float*>());

// An operation whose operands are to be moved.
template <typename Op>
class Movable {
 public:
  explicit Movable(const Op& op) : op_(op) {
    ForEachField(op_, [this](auto& field) { this->Collect(field); });
  }
  Movable(const Movable&) = delete;
  Movable& operator=(const Movable&) = delete;

  const Op& op() const { return op_; }
  const std::vector<TensorView*>& views() const { return views_; }

 private:
  void Collect(TensorView& view) { views_.push_back(&view); }
  void Collect(std::span<const MatMulOperands>& products) {
    products_.assign(products.begin(), products.end());
    products = products_;
    for (MatMulOperands& product : products_) views_.insert(views_.end(), {&product.a, &product.b});
  }
  void Collect(std::span<const AdamWOperands>& parts) {
    parts_.assign(parts.begin(), parts.end());
    parts = parts_;
    for (AdamWOperands& part : parts_) {
      views_.insert(views_.end(), {&part.grad, &part.master, &part.m, &part.v, &part.param});
    }
  }
  void Collect(std::span<const TensorView>& tensors) {
    tensors_.assign(tensors.begin(), tensors.end());
    tensors = tensors_;
    for (TensorView& tensor : tensors_) views_.push_back(&tensor);
  }
  // Results, which every backend writes to the host's memory.
  void Collect(std::span<double>& /*sums*/) {}
  void Collect(std::shared_ptr<double>& /*later*/) {}
  template <typename Setting>
  void Collect(Setting& /*setting*/) {
    static_assert(IsSetting<Setting>(), "an operand that is not moved");
  }

  Op op_;
  std::vector<MatMulOperands> products_;
  std::vector<AdamWOperands> parts_;
  std::vector<TensorView> tensors_;
  std::vector<TensorView*> views_;
};

class HostOperandBackend final : public Backend {
 public:
  HostOperandBackend(Device device, Backend& backend) : device_(device), backend_(backend) {}

  Device device() const override { return {}; }
  absl::Status Synchronize() override { return backend_.Synchronize(); }

 protected:
#define TESSERA_RUN_ON_DEVICE(Result, Name)                    \
  Result Run(const ops::Name& op) override {                   \
    const Movable<ops::Name> moved(op);                        \
    const OnDevice operands(device_, backend_, moved.views()); \
    return backend_.Name(moved.op());                          \
  }
  TESSERA_OPERATIONS(TESSERA_RUN_ON_DEVICE)
#undef TESSERA_RUN_ON_DEVICE

 private:
  const Device device_;
  Backend& backend_;
};

}  // namespace

std::unique_ptr<Backend> MakeHostOperandBackend(Device device, Backend& backend) {
  return std::make_unique<HostOperandBackend>(device, backend);
}

std::unique_ptr<Backend> MakeHostOperandBackend(TrainingDevice& device) {
  return MakeHostOperandBackend(device.device, *device.backend);
}

}  // namespace tessera::testing
