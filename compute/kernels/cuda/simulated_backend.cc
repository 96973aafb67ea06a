#include "compute/kernels/cuda/simulated_backend.h"

#include <glog/logging.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/cublaslt_products.h"
#include "compute/kernels/cuda/device_backend.h"
#include "compute/kernels/cuda/products.h"
#include "compute/kernels/cuda/simt_host.h"
#include "compute/kernels/cuda/testing/fake_cublaslt.h"
#include "compute/tensor/device.h"
#include "compute/tensor/fake_device_runtime.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  CHECK(value.ok()) << value.status();
  return *std::move(value);
}

// Owns the device that the backend works on, which thereby outlives the backend's memory.
class ProductsOfOwnDevice final : public Products {
 public:
  ProductsOfOwnDevice()
      : context_(std::make_unique<FakeDeviceRuntime>(FakeDeviceOptions{
            .memory_bytes = std::numeric_limits<int64_t>::max(), .at_once = true})),
        compute_(OrDie(Stream::Create(context_))),
        products_(OrDie(MakeCublasLtProducts(
            std::make_shared<FakeCublasLt>(static_cast<FakeDeviceRuntime&>(context_.runtime())),
            compute_, {.workspace_bytes = 1 << 16}))) {}
  ~ProductsOfOwnDevice() override {
    // The thread may have made another backend since.
    CHECK_EQ(context_.runtime().Select(), absl::OkStatus());
    CHECK_EQ(compute_.Synchronize(), absl::OkStatus());
  }

  Stream& compute() { return compute_; }
  bool MatMul(const TensorView& a, const TensorView& b, const TensorView& c, bool accumulate,
              const TensorView& bias) override {
    return products_->MatMul(a, b, c, accumulate, bias);
  }
  bool MatMulGelu(GeluUse use, const TensorView& a, const TensorView& b, const TensorView& bias,
                  const TensorView& aux, const TensorView& c) override {
    return products_->MatMulGelu(use, a, b, bias, aux, c);
  }

 private:
  DeviceContext context_;
  Stream compute_;
  const std::unique_ptr<Products> products_;
};

}  // namespace

std::unique_ptr<Backend> MakeSimulatedBackend(const simt::SimulatorOptions& options,
                                              bool exact_products) {
  simt::SetSimulatorOptions(options);
  auto products = std::make_unique<ProductsOfOwnDevice>();
  Stream& compute = products->compute();
  return MakeDeviceBackend({DeviceType::kCpu, 0}, compute, std::move(products), exact_products);
}

}  // namespace tessera::cuda
