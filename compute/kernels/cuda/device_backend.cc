// Matrix products, memory and errors of the backend; its other operations are kernels.

#include "compute/kernels/cuda/device_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/kernel_stream.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/tree_reduce.h"
#include "layout/dtype.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kScratchAlignment = 256;

int64_t RoundedUp(int64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

bool IsAligned(const TensorView& x, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(x.data()) % static_cast<uintptr_t>(bytes) == 0;
}

// An operand of a product; with an empty view, the product does not have this operand.
struct Operand {
  TensorView view;
  bool read = true;
  bool written = false;
  int64_t alignment = 0;  // 0: that of its strides
  TensorView original = {};

  int64_t least_alignment() const {
    return alignment > 0 ? alignment : LayoutOf(view).alignment_bytes;
  }
};

// Must be a base that is constructed before DeviceKernels, which takes the stream of kernels.
struct KernelStreamHolder {
  explicit KernelStreamHolder(const Stream& compute) : kernels(compute) {}
  KernelStream kernels;
};

class DeviceBackend final : private KernelStreamHolder, public DeviceKernels {
 public:
  DeviceBackend(Device device, Stream& compute, std::unique_ptr<Products> products,
                DeviceNumerics numerics, const ProductChoices& choices)
      : KernelStreamHolder(compute),
        DeviceKernels(kernels.get(),
                      {.at_once = choices.attention_at_once,
                       .warpgroups = choices.attention_by_warpgroups,
                       .gradients_by_warpgroups = choices.attention_gradients_by_warpgroups}),
        device_(device),
        compute_(compute),
        products_(std::move(products)),
        numerics_(numerics) {}

  void OnBegin(const char* name) override { compute_.context().SetOperation(name); }
  void OnEnd(const std::function<std::string()>& operation) override {
    if (!compute_.context().waits_for_operations()) return;
    kernels.KeepErrors();
    if (const absl::Status drained = compute_.Drain(); !drained.ok()) {
      compute_.context().KeepError(operation(), drained);
    }
  }

  Device device() const override { return device_; }
  absl::Status Synchronize() override {
    kernels.KeepErrors();
    const absl::Status status = compute_.Synchronize();
    if (copies_ != nullptr) copies_->Deliver();
    return status;
  }

  void Upload(const void* host, TensorView to) override {
    if (HostCopies* const copies = Copies(); copies != nullptr) {
      compute_.context().KeepError("a copy to the device",
                                   copies->ToDevice(host, to.bytes(), to.data()));
    }
  }
  void Download(TensorView from, void* host) override {
    kernels.KeepErrors();
    CopyToHost(from.data(), from.bytes(), host);
  }

 protected:
  using DeviceKernels::Run;
  void Run(const ops::MatMul& op) override;
  void Run(const ops::MatMulTree& op) override;
  void Run(const ops::MatMulGelu& op) override;
  bool Run(const ops::MatMulGeluBackward& op) override;
  void Run(const ops::MatMulSums& op) override;
#define TESSERA_RUN_EXACT(Result, Name)                                                 \
  Result Run(const ops::Name& op) override {                                            \
    return numerics_ == DeviceNumerics::kExact ? RunExact(op) : DeviceKernels::Run(op); \
  }
  TESSERA_EXACT_OPERATIONS(TESSERA_RUN_EXACT)
#undef TESSERA_RUN_EXACT

  // A read before a write is seen on the simulated device.
  void* Scratch(int64_t bytes) override {
    void* const memory = Grow(bytes, &scratch_, "workspace");
    if (memory != nullptr) kernels.Poison(memory, bytes);
    return memory;
  }
  void CopyToHost(const void* from, int64_t bytes, void* to) override {
    if (HostCopies* const copies = Copies(); copies != nullptr) {
      compute_.context().KeepError("a copy to the host", copies->ToHost(from, bytes, to));
    }
  }
  void CopyToHostLater(const void* from, int64_t bytes, std::shared_ptr<void> to) override {
    if (HostCopies* const copies = Copies(); copies != nullptr) {
      compute_.context().KeepError("a copy to the host",
                                   copies->ToHostLater(from, bytes, std::move(to)));
    }
  }

 private:
  // Null where there is no memory left; so is the following. The operation is then skipped, and
  // Synchronize() returns the error.
  void* Grow(int64_t bytes, std::optional<DeviceBuffer>* buffer, const char* purpose);
  HostCopies* Copies();
  // Calls `product` after the operands at less aligned addresses than their strides have been
  // replaced by copies.
  template <typename Product>
  void WithAligned(std::span<Operand> operands, const Product& product);
  bool FusesGelu(GeluUse use, const TensorView& a, const TensorView& b, const TensorView& bias,
                 const TensorView& aux, const TensorView& c);
  bool FusesSums(const ops::MatMulSums& op);
  void ReduceSums(std::span<const TensorView> sums, const TensorView& c);
  bool IsExact(const TensorView& operand) const {
    return numerics_ != DeviceNumerics::kFast && operand.dtype() == DType::kF32;
  }

  const Device device_;
  Stream& compute_;
  const std::unique_ptr<Products> products_;
  const DeviceNumerics numerics_;
  std::optional<DeviceBuffer> scratch_;
  std::optional<DeviceBuffer> aligned_;  // copies of operands
  std::optional<DeviceBuffer> sums_;     // of MatMulTree()
  std::unique_ptr<HostCopies> copies_;
};

// Frees the old memory in the order of the stream: work that is queued already may still use it.
void* DeviceBackend::Grow(int64_t bytes, std::optional<DeviceBuffer>* buffer, const char* purpose) {
  if (!buffer->has_value() || (*buffer)->bytes() < bytes) {
    const int64_t before = buffer->has_value() ? (*buffer)->bytes() : 0;
    buffer->reset();
    absl::StatusOr<DeviceBuffer> grown = DeviceBuffer::Allocate(
        compute_, RoundedUp(std::max({bytes, before + before / 2, int64_t{1}})), purpose);
    if (!grown.ok()) {
      compute_.context().KeepError("", grown.status());
      return nullptr;
    }
    buffer->emplace(*std::move(grown));
  }
  return (*buffer)->data();
}

HostCopies* DeviceBackend::Copies() {
  if (copies_ == nullptr) {
    absl::StatusOr<std::unique_ptr<HostCopies>> copies = HostCopies::Create(compute_);
    compute_.context().KeepError("host memory of copies", copies.status());
    if (copies.ok()) copies_ = *std::move(copies);
  }
  return copies_.get();
}

// Aligns all operands, so that a product's algorithm, and with it the bits, do not depend on
// addresses.
template <typename Product>
void DeviceBackend::WithAligned(std::span<Operand> operands, const Product& product) {
  int64_t bytes = 0;
  for (Operand& operand : operands) {
    if (operand.view.empty() || IsAligned(operand.view, operand.least_alignment())) continue;
    operand.original = operand.view;
    bytes += RoundedUp(operand.view.span_bytes());
  }
  char* next = bytes == 0 ? nullptr : static_cast<char*>(Grow(bytes, &aligned_, "workspace"));
  if (bytes > 0 && next == nullptr) return;
  for (Operand& operand : operands) {
    const TensorView& x = operand.original;
    if (x.empty()) continue;
    operand.view = TensorView(next, x.dtype(), x.shape(), x.strides());
    if (operand.read) Copy({x, operand.view});
    next += RoundedUp(x.span_bytes());
  }
  product();
  for (const Operand& operand : operands) {
    if (operand.written && !operand.original.empty()) Copy({operand.view, operand.original});
  }
}

void DeviceBackend::Run(const ops::MatMul& op) {
  if (op.c.elements() == 0) return;
  const Operation here(*this, "MatMul", op.a, op.b, op.c);
  if (IsExact(op.a) && op.a.dim(1) > 0) return RunInChains(op);
  bool product_adds_bias = !op.bias.empty() && op.a.dim(1) > 0 && op.bias.dtype() == op.c.dtype();
  if (op.a.dim(1) == 0) {
    if (!op.accumulate) Fill({op.c, 0});
  } else {
    Operand used[] = {
        {op.a},
        {op.b},
        {.view = op.c, .read = op.accumulate, .written = true},
        {.view = product_adds_bias ? op.bias : TensorView(), .alignment = kProductAlignmentBytes}};
    WithAligned(used, [&] {
      product_adds_bias &=
          products_->MatMul(used[0].view, used[1].view, used[2].view, op.accumulate, used[3].view);
    });
  }
  if (!op.bias.empty() && !product_adds_bias) AddBiasTo(op.bias, op.c);
}

// Returns true for bf16 only: in fp32, the error of the library's tanh, whose accuracy is not
// specified, would be visible. cuBLASLt's epilogue that also sums the gradient of the bias
// (DGELU_BGRAD) is not used, because it rounds that gradient to bf16.
bool DeviceBackend::FusesGelu(GeluUse use, const TensorView& a, const TensorView& b,
                              const TensorView& bias, const TensorView& aux, const TensorView& c) {
  const bool bf16 = a.dtype() == DType::kBF16 && c.dtype() == DType::kBF16;
  const int64_t alignment = LayoutOf(c).alignment_bytes;
  if (!bf16 || c.elements() == 0 || a.dim(1) == 0 || alignment != kProductAlignmentBytes) {
    return false;
  }
  const bool forward = use == GeluUse::kForward;
  Operand used[] = {{a},
                    {b},
                    {.view = bias, .alignment = kProductAlignmentBytes},
                    {.view = aux, .read = !forward, .written = forward},
                    {.view = c, .read = false, .written = true}};
  bool fused = false;
  WithAligned(used, [&] {
    fused = products_->MatMulGelu(use, used[0].view, used[1].view, used[2].view, used[3].view,
                                  used[4].view);
  });
  return fused;
}

void DeviceBackend::Run(const ops::MatMulGelu& op) {
  const Operation here(*this, "MatMulGelu", op.a, op.b, op.act);
  if (FusesGelu(GeluUse::kForward, op.a, op.b, op.bias, op.pre, op.act)) return;
  DeviceKernels::Run(op);
}

bool DeviceBackend::Run(const ops::MatMulGeluBackward& op) {
  const Operation here(*this, "MatMulGeluBackward", op.a, op.b, op.d_pre);
  if (FusesGelu(GeluUse::kBackward, op.a, op.b, {}, op.pre, op.d_pre)) return false;
  if (op.d_bias.empty() || numerics_ == DeviceNumerics::kExact) return DeviceKernels::Run(op);
  MatMul({op.a, op.b, op.d_pre, /*accumulate=*/false});
  GeluBackwardAndSum(op.pre, op.d_pre, op.d_bias, op.accumulate);
  return true;
}

// The library overwrites sums: those that are accumulated are added from scratch memory.
bool DeviceBackend::FusesSums(const ops::MatMulSums& op) {
  if (op.a.dtype() != DType::kBF16 || op.c.elements() == 0 || op.a.dim(1) == 0) return false;
  TensorView sums = op.sums;
  if (op.accumulate) {
    void* const memory = Scratch(op.sums.bytes());
    if (memory == nullptr) return true;
    sums = TensorView(memory, DType::kF32, op.sums.shape());
  }
  Operand used[] = {
      {op.a},
      {op.b},
      {.view = op.c, .read = op.accumulate, .written = true},
      {.view = sums, .read = false, .written = true, .alignment = kProductAlignmentBytes}};
  bool fused = false;
  WithAligned(used, [&] {
    fused = products_->MatMulSums(used[0].view, used[1].view, used[2].view, op.accumulate,
                                  op.sums_b, used[3].view);
  });
  if (fused && op.accumulate) Add({op.sums, sums, op.sums});
  return fused;
}

void DeviceBackend::Run(const ops::MatMulSums& op) {
  const Operation here(*this, "MatMulSums", op.a, op.b, op.c, op.sums);
  if (!FusesSums(op)) DeviceKernels::Run(op);
}

// T(0, n) adds adjacent products first. The second one of each pair is added to the first by the
// product itself, unless it would continue the first one's chains.
void DeviceBackend::Run(const ops::MatMulTree& op) {
  const Operation here(*this, "MatMulTree", op.products[0].a, op.products[0].b, op.c);
  const size_t together = IsExact(op.products[0].a) ? 1 : 2;
  const auto pairs = static_cast<int64_t>((op.products.size() + together - 1) / together);
  std::vector<TensorView> sums = {op.c};
  if (pairs > 1) {
    const int64_t bytes = RoundedUp(op.c.bytes());
    const bool in_place = op.c.contiguous();
    char* memory =
        static_cast<char*>(Grow((pairs - (in_place ? 1 : 0)) * bytes, &sums_, "sums of products"));
    if (memory == nullptr) return;
    if (!in_place) sums.clear();
    while (static_cast<int64_t>(sums.size()) < pairs) {
      sums.emplace_back(memory, DType::kF32, op.c.shape());
      memory += bytes;
    }
  }
  for (size_t i = 0; i < op.products.size(); ++i) {
    MatMul({op.products[i].a, op.products[i].b, sums[i / together],
            /*accumulate=*/i % together != 0});
  }
  if (pairs > 1) ReduceSums(sums, op.c);
}

void DeviceBackend::ReduceSums(std::span<const TensorView> sums, const TensorView& c) {
  std::vector<const float*> inputs;
  for (const TensorView& sum : sums) inputs.push_back(sum.as<float>());
  const TensorView& first = sums.front();
  TreeReduce<float>(kernels.get(), TreeOp::kSum, inputs, first.elements(), first.as<float>());
  if (first.data() != c.data()) Copy({first, c});
}

}  // namespace

std::unique_ptr<Backend> MakeDeviceBackend(Device device, Stream& compute,
                                           std::unique_ptr<Products> products,
                                           DeviceNumerics numerics, const ProductChoices& choices) {
  return std::make_unique<DeviceBackend>(device, compute, std::move(products), numerics, choices);
}

}  // namespace tessera::cuda
