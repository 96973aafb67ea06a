#include "tests/device/check/host_operands.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera::testing {
namespace {

// Memory on the device keeps the host's position in pieces of this size, and thereby the alignment
// that kernels see.
constexpr int64_t kAlignment = 256;

// Bytes from the first to the last element.
int64_t SpanBytes(const TensorView& view) {
  int64_t last = 0;
  for (int d = 0; d < view.rank(); ++d) last += (view.dim(d) - 1) * view.stride(d);
  return (last + 1) * ElementSize(view.dtype());
}

// The operands of one operation on the device: constructed before it, destroyed after it.
class OnDevice {
 public:
  OnDevice(Device device, Backend& backend, const std::vector<TensorView*>& views)
      : backend_(backend) {
    for (const TensorView* view : views) {
      if (!HasMemory(*view)) continue;
      char* const begin = view->as<char>();
      regions_.push_back({begin, begin + SpanBytes(*view), Tensor()});
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

class HostOperandBackend final : public Backend {
 public:
  HostOperandBackend(Device device, Backend& backend) : device_(device), backend_(backend) {}

  Device device() const override { return {}; }
  absl::Status Synchronize() override { return backend_.Synchronize(); }

  void Fill(TensorView x, double value) override {
    On({&x}, [&] { backend_.Fill(x, value); });
  }
  void Copy(TensorView from, TensorView to) override {
    On({&from, &to}, [&] { backend_.Copy(from, to); });
  }
  void Add(TensorView a, TensorView b, TensorView out) override {
    On({&a, &b, &out}, [&] { backend_.Add(a, b, out); });
  }
  void Scale(TensorView x, double factor) override {
    On({&x}, [&] { backend_.Scale(x, factor); });
  }
  void MatMul(TensorView a, TensorView b, TensorView c, bool accumulate, TensorView bias) override {
    On({&a, &b, &c, &bias}, [&] { backend_.MatMul(a, b, c, accumulate, bias); });
  }
  void MatMulTree(std::span<const MatMulOperands> products, TensorView c) override {
    std::vector<MatMulOperands> own(products.begin(), products.end());
    std::vector<TensorView*> views = {&c};
    for (MatMulOperands& product : own) views.insert(views.end(), {&product.a, &product.b});
    On(views, [&] { backend_.MatMulTree(own, c); });
  }
  void MatMulGelu(TensorView a, TensorView b, TensorView bias, TensorView pre,
                  TensorView act) override {
    On({&a, &b, &bias, &pre, &act}, [&] { backend_.MatMulGelu(a, b, bias, pre, act); });
  }
  void MatMulGeluBackward(TensorView a, TensorView b, TensorView pre, TensorView d_pre) override {
    On({&a, &b, &pre, &d_pre}, [&] { backend_.MatMulGeluBackward(a, b, pre, d_pre); });
  }
  void AddBias(TensorView x, TensorView bias, TensorView out) override {
    On({&x, &bias, &out}, [&] { backend_.AddBias(x, bias, out); });
  }
  void SumRows(TensorView x, TensorView out, bool accumulate) override {
    On({&x, &out}, [&] { backend_.SumRows(x, out, accumulate); });
  }
  void EmbeddingForward(TensorView table, TensorView ids, int64_t first_id,
                        TensorView out) override {
    On({&table, &ids, &out}, [&] { backend_.EmbeddingForward(table, ids, first_id, out); });
  }
  void EmbeddingBackward(TensorView d_out, TensorView ids, int64_t first_id,
                         TensorView d_table) override {
    On({&d_out, &ids, &d_table},
       [&] { backend_.EmbeddingBackward(d_out, ids, first_id, d_table); });
  }
  void AddPositions(TensorView table, int64_t sequence, TensorView x) override {
    On({&table, &x}, [&] { backend_.AddPositions(table, sequence, x); });
  }
  void AddPositionsBackward(TensorView d_x, int64_t sequence, TensorView d_table,
                            bool accumulate) override {
    On({&d_x, &d_table},
       [&] { backend_.AddPositionsBackward(d_x, sequence, d_table, accumulate); });
  }
  void LayerNormForward(TensorView x, TensorView weight, TensorView bias, double epsilon,
                        TensorView out, TensorView mean, TensorView rstd) override {
    On({&x, &weight, &bias, &out, &mean, &rstd},
       [&] { backend_.LayerNormForward(x, weight, bias, epsilon, out, mean, rstd); });
  }
  void LayerNormBackward(TensorView d_out, TensorView x, TensorView weight, TensorView mean,
                         TensorView rstd, TensorView d_x, bool accumulate_dx, TensorView d_weight,
                         TensorView d_bias, bool accumulate) override {
    On({&d_out, &x, &weight, &mean, &rstd, &d_x, &d_weight, &d_bias}, [&] {
      backend_.LayerNormBackward(d_out, x, weight, mean, rstd, d_x, accumulate_dx, d_weight, d_bias,
                                 accumulate);
    });
  }
  void RmsNormForward(TensorView x, TensorView weight, double epsilon, TensorView out,
                      TensorView rstd) override {
    On({&x, &weight, &out, &rstd}, [&] { backend_.RmsNormForward(x, weight, epsilon, out, rstd); });
  }
  void AddLayerNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                           TensorView bias, double epsilon, TensorView out, TensorView mean,
                           TensorView rstd) override {
    On({&a, &b, &sum, &weight, &bias, &out, &mean, &rstd},
       [&] { backend_.AddLayerNormForward(a, b, sum, weight, bias, epsilon, out, mean, rstd); });
  }
  void AddRmsNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                         double epsilon, TensorView out, TensorView rstd) override {
    On({&a, &b, &sum, &weight, &out, &rstd},
       [&] { backend_.AddRmsNormForward(a, b, sum, weight, epsilon, out, rstd); });
  }
  void RmsNormBackward(TensorView d_out, TensorView x, TensorView weight, TensorView rstd,
                       TensorView d_x, bool accumulate_dx, TensorView d_weight,
                       bool accumulate) override {
    On({&d_out, &x, &weight, &rstd, &d_x, &d_weight}, [&] {
      backend_.RmsNormBackward(d_out, x, weight, rstd, d_x, accumulate_dx, d_weight, accumulate);
    });
  }
  void GeluForward(TensorView x, TensorView out) override {
    On({&x, &out}, [&] { backend_.GeluForward(x, out); });
  }
  void GeluBackward(TensorView d_out, TensorView x, TensorView d_x) override {
    On({&d_out, &x, &d_x}, [&] { backend_.GeluBackward(d_out, x, d_x); });
  }
  void SwiGluForward(TensorView gate_up, TensorView out) override {
    On({&gate_up, &out}, [&] { backend_.SwiGluForward(gate_up, out); });
  }
  void SwiGluBackward(TensorView d_out, TensorView gate_up, TensorView d_gate_up) override {
    On({&d_out, &gate_up, &d_gate_up}, [&] { backend_.SwiGluBackward(d_out, gate_up, d_gate_up); });
  }
  void ApplyDropout(const Dropout& dropout, TensorView x) override {
    On({&x}, [&] { backend_.ApplyDropout(dropout, x); });
  }
  void Rope(TensorView cos, TensorView sin, bool inverse, TensorView x) override {
    On({&cos, &sin, &x}, [&] { backend_.Rope(cos, sin, inverse, x); });
  }
  void AttentionForward(const AttentionOptions& options, TensorView q, TensorView k, TensorView v,
                        TensorView out, TensorView log_sum_exp) override {
    On({&q, &k, &v, &out, &log_sum_exp},
       [&] { backend_.AttentionForward(options, q, k, v, out, log_sum_exp); });
  }
  void AttentionBackward(const AttentionOptions& options, TensorView d_out, TensorView q,
                         TensorView k, TensorView v, TensorView out, TensorView log_sum_exp,
                         TensorView d_q, TensorView d_k, TensorView d_v) override {
    On({&d_out, &q, &k, &v, &out, &log_sum_exp, &d_q, &d_k, &d_v}, [&] {
      backend_.AttentionBackward(options, d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v);
    });
  }
  void CrossEntropyStats(TensorView logits, int64_t valid, TensorView targets, int64_t first_id,
                         TensorView stats) override {
    On({&logits, &targets, &stats},
       [&] { backend_.CrossEntropyStats(logits, valid, targets, first_id, stats); });
  }
  void CrossEntropyLoss(TensorView stats, TensorView targets, TensorView combined,
                        TensorView losses) override {
    On({&stats, &targets, &combined, &losses},
       [&] { backend_.CrossEntropyLoss(stats, targets, combined, losses); });
  }
  void CrossEntropyBackward(TensorView combined, TensorView targets, int64_t valid,
                            int64_t first_id, double grad_scale, TensorView logits) override {
    On({&combined, &targets, &logits}, [&] {
      backend_.CrossEntropyBackward(combined, targets, valid, first_id, grad_scale, logits);
    });
  }
  double SumOfSquares(TensorView x) override {
    double sum = 0;
    On({&x}, [&] { sum = backend_.SumOfSquares(x); });
    return sum;
  }
  double Sum(TensorView x) override {
    double sum = 0;
    On({&x}, [&] { sum = backend_.Sum(x); });
    return sum;
  }
  void SumOfSquaresByBlock(TensorView x, int64_t block, std::span<double> sums) override {
    On({&x}, [&] { backend_.SumOfSquaresByBlock(x, block, sums); });
  }
  void AdamW(const AdamWOptions& options, TensorView grad, TensorView master, TensorView m,
             TensorView v, TensorView param) override {
    On({&grad, &master, &m, &v, &param},
       [&] { backend_.AdamW(options, grad, master, m, v, param); });
  }
  void AdamWAll(const AdamWOptions& options, std::span<const AdamWOperands> parts) override {
    std::vector<AdamWOperands> own(parts.begin(), parts.end());
    std::vector<TensorView*> views;
    for (AdamWOperands& part : own) {
      views.insert(views.end(), {&part.grad, &part.master, &part.m, &part.v, &part.param});
    }
    On(views, [&] { backend_.AdamWAll(options, own); });
  }

 private:
  template <typename Operation>
  void On(const std::vector<TensorView*>& views, const Operation& operation) {
    const OnDevice operands(device_, backend_, views);
    operation();
  }

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
