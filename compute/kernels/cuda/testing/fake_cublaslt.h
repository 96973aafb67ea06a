#ifndef TESSERA_COMPUTE_KERNELS_CUDA_TESTING_FAKE_CUBLASLT_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_TESTING_FAKE_CUBLASLT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "compute/kernels/cuda/cublaslt_api.h"
#include "tensor/testing/fake_device_runtime.h"

namespace tessera::cuda {

struct FakeCublasLtOptions {
  // Whether AlgoGetHeuristic() proposes no algorithm, or only those that depend on time.
  bool no_algorithm = false;
  bool only_unordered = false;
  bool no_gelu = false;         // nor for products with GELU
  bool no_bias = false;         // nor for those that add a bias
  bool no_sums = false;         // nor for those that sum a factor
  bool no_gelu_search = false;  // the search itself fails for products with GELU
  size_t version = 130002;
  // Whether Matmul() fails.
  bool fails = false;
  // Number of algorithms that are usable: 1 to 8.
  int proposals = 2;
  // The time of a product by a usable algorithm, from 0 on, and the bytes of C; null: none.
  std::function<double(int proposal, int64_t c_bytes)> seconds = nullptr;
};

// cuBLASLt on the streams of a fake device: the same descriptors, in host memory. A product reads
// its operands when the device comes to it. Sums are fp32, in the order of the inner dim.
//
// Refuses what the library's documentation forbids: shapes that do not match, leading dims that are
// too small, a bias, sums or an operand of GELU with a missing or misaligned address, an algorithm
// that was proposed for other shapes. Also refuses what the library leaves undefined: operands that
// are less aligned than the preference said. The first algorithm proposed is not supported; the
// second, if the preference allows it, adds in no fixed order, and its results are wrong. Each of
// the others begins its sums one term later than the one before, so that they differ in bits.
class FakeCublasLt final : public CublasLtApi {
 public:
  explicit FakeCublasLt(FakeDeviceRuntime& device, const FakeCublasLtOptions& options = {});
  // Every descriptor must have been destroyed.
  ~FakeCublasLt();

  // Number of searches for an algorithm, and of products that were queued.
  int64_t searches() const { return searches_; }
  int64_t products() const { return products_; }
  // Number of products whose last step is GELU or its derivative.
  int64_t gelu_products() const { return gelu_products_; }
  // Workspace of the algorithm of the last product.
  int64_t last_workspace_bytes() const { return last_workspace_bytes_; }
  // Number of products that sum one of their factors.
  int64_t sums_products() const { return sums_products_; }
  // The time of all products that have run: FakeCublasLtOptions::seconds.
  double seconds() const { return seconds_; }

 private:
#define TESSERA_DECLARE_FUNCTION(Result, Name, Parameters) Result Run##Name Parameters;
  TESSERA_CUBLASLT_FUNCTIONS(TESSERA_DECLARE_FUNCTION)
#undef TESSERA_DECLARE_FUNCTION

  FakeDeviceRuntime& device_;
  const FakeCublasLtOptions options_;
  int64_t live_objects_ = 0;
  int64_t searches_ = 0;
  int64_t products_ = 0;
  int64_t gelu_products_ = 0;
  int64_t sums_products_ = 0;
  int64_t last_workspace_bytes_ = 0;
  std::atomic<double> seconds_ = 0;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_TESTING_FAKE_CUBLASLT_H_
