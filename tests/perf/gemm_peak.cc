#include "tests/perf/gemm_peak.h"

#include <dlfcn.h>
#include <glog/logging.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <dnnl.hpp>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/cpu_level.h"
#include "compute/kernels/cpu/gemm_libraries.h"
#include "compute/tensor/tensor.h"
#include "layout/dtype.h"
#include "tests/perf/harness.h"

// From libgomp, with which the system's oneDNN is built.
extern "C" void omp_set_num_threads(int threads);

namespace tessera {
namespace {

using dnnl::memory;

struct Product {
  int64_t m, n, k;
  bool packed;  // weights in oneDNN's preferred layout; otherwise as for y = x W^T

  double operations() const { return 2.0 * static_cast<double>(m * n * k); }
};

// A product with its own operands. Its oneDNN memory is released with it.
class Runner {
 public:
  Runner(const Product& product, DType dtype)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const memory::data_type type =
        dtype == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
    const memory::desc a({product.m, product.k}, type, memory::format_tag::ab);
    const memory::desc b({product.k, product.n}, type,
                         product.packed ? memory::format_tag::any : memory::format_tag::ba);
    const memory::desc c({product.m, product.n}, type, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc primitive(dnnl::matmul::desc(a, b, c), engine_);
    matmul_ = dnnl::matmul(primitive);
    for (const auto& [index, desc] : {std::pair(DNNL_ARG_SRC, primitive.src_desc()),
                                      std::pair(DNNL_ARG_WEIGHTS, primitive.weights_desc()),
                                      std::pair(DNNL_ARG_DST, primitive.dst_desc())}) {
      memory operand(desc, engine_);
      char* bytes = static_cast<char*>(operand.get_data_handle());
      // Small numbers instead of zeros, so that no shortcut applies. 0x3c3c is 0.0115 in either
      // dtype.
      std::fill(bytes, bytes + desc.get_size(), 0x3c);
      arguments_.emplace(index, operand);
    }
  }

  void Run() {
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  std::unordered_map<int, memory> arguments_;
};

// oneDNN divides one product among its own threads. Runs on a new thread, because the setting
// belongs to the calling thread.
double RateOfSharedProduct(const Product& product, DType dtype, int threads) {
  double rate = 0;
  std::thread([&] {
    omp_set_num_threads(threads);
    Runner runner(product, dtype);
    rate = product.operations() / MedianSeconds([&] { runner.Run(); });
  }).join();
  return rate;
}

// Every thread runs a product of its own; the total rate while all are running.
template <typename MakeRunner>
double RateOfProductsSideBySide(const Product& product, int threads,
                                const MakeRunner& make_runner) {
  std::atomic<int> waiting{threads};
  std::vector<double> rates(threads);
  std::vector<std::thread> team;
  for (int i = 0; i < threads; ++i) {
    team.emplace_back([&, i] {
      omp_set_num_threads(1);
      auto runner = make_runner(product);
      runner.Run();
      for (--waiting; waiting > 0;) std::this_thread::yield();
      rates[i] = product.operations() / MedianSeconds([&] { runner.Run(); });
    });
  }
  for (std::thread& thread : team) thread.join();
  double total = 0;
  for (double rate : rates) total += rate;
  return total;
}

// OpenBLAS as a separately loaded library, with kernels of the allowed level. The level is set when
// it is loaded, so it is not linked.
class OpenBlas {
 public:
  static const OpenBlas& Get() {
    static const OpenBlas library;
    return library;
  }

  // y = x W^T with the shape of Product.
  void Multiply(const Product& product, const float* a, const float* b, float* c) const {
    constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
    const int m = static_cast<int>(product.m), n = static_cast<int>(product.n);
    const int k = static_cast<int>(product.k);
    sgemm_(kRowMajor, kPlain, kTransposed, m, n, k, 1.0f, a, k, b, k, 0.0f, c, n);
  }

 private:
  using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k,
                         float alpha, const float* a, int lda, const float* b, int ldb, float beta,
                         float* c, int ldc);

  OpenBlas() {
    const CpuLevel level = EffectiveCpuLevel();
    setenv("OPENBLAS_CORETYPE",
           level == CpuLevel::kAvx512 ? "SkylakeX"
           : level == CpuLevel::kAvx2 ? "Haswell"
                                      : "Nehalem",
           1);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);  // per caller
    constexpr char kFile[] = "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0";
    void* const library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr) << dlerror();
    sgemm_ = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
    CHECK(sgemm_ != nullptr) << dlerror();
  }

  Sgemm sgemm_;
};

// An OpenBLAS product with its own operands.
class OpenBlasRunner {
 public:
  explicit OpenBlasRunner(const Product& product)
      : product_(product),
        a_(product.m * product.k, 0.01f),
        b_(product.n * product.k, 0.01f),
        c_(product.m * product.n) {}

  void Run() { OpenBlas::Get().Multiply(product_, a_.data(), b_.data(), c_.data()); }

 private:
  const Product product_;
  std::vector<float> a_, b_, c_;
};

// Each thread traverses its part of two arrays; returns the bytes per second of the median pass.
template <typename Pass>
double PassRate(int threads, int64_t bytes, const Pass& pass) {
  const double seconds = MedianSeconds([&] {
    std::vector<std::thread> team;
    for (int i = 0; i < threads; ++i) team.emplace_back([&, i] { pass(i); });
    for (std::thread& thread : team) thread.join();
  });
  return static_cast<double>(bytes) / seconds;
}

}  // namespace

double BestGemmRate(DType dtype, int threads) {
  LimitDnnlIsa();
  if (dtype == DType::kBF16 && !DnnlHasBf16()) dtype = DType::kF32;
  double best = 0;
  for (const Product& product : std::vector<Product>{{1024, 1024, 1024, false},
                                                     {1024, 1024, 1024, true},
                                                     {2048, 2048, 1024, true},
                                                     {2048, 2048, 2048, false}}) {
    best = std::max(best, RateOfSharedProduct(product, dtype, threads));
  }
  for (const Product& product : std::vector<Product>{
           {512, 768, 768, false}, {512, 768, 768, true}, {1024, 1024, 1024, true}}) {
    best = std::max(best, RateOfProductsSideBySide(product, threads, [&](const Product& shape) {
                      return Runner(shape, dtype);
                    }));
  }
  if (dtype == DType::kBF16) return best;
  for (const Product& product : std::vector<Product>{
           {512, 768, 768, false}, {1024, 1024, 1024, false}, {2048, 2048, 1024, false}}) {
    best = std::max(best, RateOfProductsSideBySide(product, threads, [](const Product& shape) {
                      return OpenBlasRunner(shape);
                    }));
  }
  return best;
}

double BestMemoryRate(int threads) {
  constexpr int64_t kElements = int64_t{128} << 20;
  const Tensor a(DType::kF32, {kElements}), b(DType::kF32, {kElements});
  // Pages that were never written all map to one page of zeros, which stays in the cache.
  for (const Tensor* x : {&a, &b}) std::fill_n(x->view().as<float>(), kElements, 1.0f);
  const int64_t part = kElements / threads;
  std::vector<float> sums(threads * 16);
  const double read = PassRate(threads, 2 * part * threads * 4, [&](int thread) {
    const float* x = a.view().as<float>() + thread * part;
    const float* y = b.view().as<float>() + thread * part;
    constexpr int kStreams = 64;
    float sum[kStreams] = {};
    for (int64_t i = 0; i + kStreams <= part; i += kStreams) {
      for (int s = 0; s < kStreams; ++s) sum[s] += x[i + s] + y[i + s];
    }
    for (float value : sum) sums[thread * 16] += value;
  });
  const double update = PassRate(threads, 3 * part * threads * 4, [&](int thread) {
    float* x = a.view().as<float>() + thread * part;
    const float* y = b.view().as<float>() + thread * part;
    for (int64_t i = 0; i < part; ++i) x[i] = 0.5f * x[i] + y[i];
  });
  return std::max(read, update);
}

}  // namespace tessera
