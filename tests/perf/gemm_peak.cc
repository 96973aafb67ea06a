#include "tests/perf/gemm_peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <dnnl.hpp>
#include <functional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

// From libgomp, with which the system's oneDNN is built.
extern "C" void omp_set_num_threads(int threads);

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using dnnl::memory;

constexpr int kRepetitions = 7;

double MedianSeconds(const std::function<void()>& work) {
  work();  // warm
  std::vector<double> seconds;
  for (int i = 0; i < kRepetitions; ++i) {
    const Clock::time_point start = Clock::now();
    work();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRepetitions / 2, seconds.end());
  return seconds[kRepetitions / 2];
}

struct Product {
  int64_t m, n, k;
  bool packed;  // weights in the layout that oneDNN likes best; else as y = x W^T finds them

  double operations() const { return 2.0 * static_cast<double>(m * n * k); }
};

// A product with operands of its own. Memory of oneDNN's engine is released with it.
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
      // Small numbers, not zeros: nothing may take a short cut. 0x3c3c is 0.0115 in either dtype.
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

// oneDNN divides one product among its own threads. On a thread of its own: the setting belongs to
// the calling thread.
double RateOfSharedProduct(const Product& product, DType dtype, int threads) {
  double rate = 0;
  std::thread([&] {
    omp_set_num_threads(threads);
    Runner runner(product, dtype);
    rate = product.operations() / MedianSeconds([&] { runner.Run(); });
  }).join();
  return rate;
}

// Every thread has a product of its own; the rate of all, while all are at work.
double RateOfProductsSideBySide(const Product& product, DType dtype, int threads) {
  std::atomic<int> waiting{threads};
  std::vector<double> rates(threads);
  std::vector<std::thread> team;
  for (int i = 0; i < threads; ++i) {
    team.emplace_back([&, i] {
      omp_set_num_threads(1);
      Runner runner(product, dtype);
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

// Each thread passes over its part of two arrays; returns the bytes per second of the median pass.
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
  double best = 0;
  try {
    for (const Product& product : std::vector<Product>{{1024, 1024, 1024, false},
                                                       {1024, 1024, 1024, true},
                                                       {2048, 2048, 1024, true},
                                                       {2048, 2048, 2048, false}}) {
      best = std::max(best, RateOfSharedProduct(product, dtype, threads));
    }
    for (const Product& product : std::vector<Product>{
             {512, 768, 768, false}, {512, 768, 768, true}, {1024, 1024, 1024, true}}) {
      best = std::max(best, RateOfProductsSideBySide(product, dtype, threads));
    }
  } catch (const dnnl::error&) {
    return 0;
  }
  return best;
}

double BestMemoryRate(int threads) {
  constexpr int64_t kElements = int64_t{128} << 20;
  const Tensor a(DType::kF32, {kElements}), b(DType::kF32, {kElements});
  // Pages never written to are all one page of zeros, which a cache holds.
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
