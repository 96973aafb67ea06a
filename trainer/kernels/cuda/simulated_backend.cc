#include "trainer/kernels/cuda/simulated_backend.h"

#include <glog/logging.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "trainer/kernels/backend.h"
#include "trainer/kernels/cuda/device_kernels.h"
#include "trainer/kernels/cuda/simt_host.h"
#include "trainer/kernels/reference/reference_backend.h"
#include "trainer/tensor/tensor.h"

namespace tessera::cuda {
namespace {

class SimulatedBackend final : public DeviceKernels {
 public:
  explicit SimulatedBackend(const simt::SimulatorOptions& options)
      : DeviceKernels(/*stream=*/nullptr) {
    simt::SetSimulatorOptions(options);
  }
  ~SimulatedBackend() override { CHECK_EQ(TakeError(), absl::OkStatus()); }

  Device device() const override { return {DeviceType::kCpu, 0}; }
  absl::Status Synchronize() override { return TakeError(); }

  void MatMul(TensorView a, TensorView b, TensorView c, bool accumulate, TensorView bias) override {
    reference_->MatMul(a, b, c, accumulate, bias);
  }
  void MatMulTree(std::span<const MatMulOperands> products, TensorView c) override {
    reference_->MatMulTree(products, c);
  }

 protected:
  // Every operation gets new memory, filled with NaN, so that a read
  // before a write does not pass unseen.
  void* Scratch(int64_t bytes) override {
    constexpr size_t kAlignment = 256;
    const size_t size = static_cast<size_t>(bytes);
    scratch_.reset(
        std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment));
    CHECK(size == 0 || scratch_ != nullptr);
    if (size > 0) std::memset(scratch_.get(), 0xff, size);
    return scratch_.get();
  }
  void CopyToHost(const void* from, int64_t bytes, void* to) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }

 private:
  static absl::Status TakeError() {
    const std::string error = simt::TakeLaunchError();
    return error.empty() ? absl::OkStatus() : absl::InternalError(error);
  }

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
  std::unique_ptr<void, Free> scratch_;
};

}  // namespace

std::unique_ptr<Backend> MakeSimulatedBackend(const simt::SimulatorOptions& options) {
  return std::make_unique<SimulatedBackend>(options);
}

}  // namespace tessera::cuda
