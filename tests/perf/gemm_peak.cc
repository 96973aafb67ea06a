#include "tests/perf/gemm_peak.h"

#include <atomic>
#include <cstdint>
#include <dnnl.hpp>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compute/kernels/cpu/dnnl_gemm.h"
#include "compute/kernels/cpu/gemm/gemm.h"
#include "tensor/tensor.h"
#include "tests/perf/harness.h"

// From libgomp, with which the system's oneDNN is built.
extern "C" void omp_set_num_threads(int threads);

namespace tessera {
namespace {

using dnnl::memory;

struct Product {
  int64_t m, n, k;
  bool packed;  // weights in oneDNN's preferred layout; otherwise as for y = x W^T
  bool a_transposed = false, b_transposed = true;

  double operations() const { return 2.0 * static_cast<double>(m * n * k); }
};

// A product with its own operands. Its oneDNN memory is released with it.
class Runner {
 public:
  Runner(const Product& product, DType dtype)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const memory::data_type type =
        dtype == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
    const auto plain = memory::format_tag::ab, transposed = memory::format_tag::ba;
    const memory::desc a({product.m, product.k}, type, product.a_transposed ? transposed : plain);
    const memory::desc b({product.k, product.n}, type,
                         product.packed         ? memory::format_tag::any
                         : product.b_transposed ? transposed
                                                : plain);
    const memory::desc c({product.m, product.n},
                         product.a_transposed ? memory::data_type::f32 : type, plain);
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

// Our product with its own operands.
class OwnRunner {
 public:
  OwnRunner(const Product& product, DType dtype)
      : gemm_({.m = product.m,
               .n = product.n,
               .k = product.k,
               .lda = product.a_transposed ? product.m : product.k,
               .ldb = product.b_transposed ? product.k : product.n,
               .ldc = product.n,
               .a_transposed = product.a_transposed,
               .b_transposed = product.b_transposed,
               .input = dtype,
               .output = product.a_transposed ? DType::kF32 : dtype},
              /*exact=*/false),
        a_(dtype, {product.m, product.k}),
        b_(dtype, {product.k, product.n}),
        c_(DType::kF32, {product.m, product.n}),
        scratch_(DType::kF32, {gemm_.scratch_bytes() / 4}) {
    for (const Tensor* x : {&a_, &b_}) {
      char* const bytes = x->view().as<char>();
      std::fill(bytes, bytes + x->view().elements() * ElementSize(dtype), 0x3c);
    }
  }

  void Run() {
    gemm_.Run(a_.view().as<char>(), b_.view().as<char>(), c_.view().as<char>(), nullptr,
              scratch_.view().as<char>());
  }

 private:
  const ChainGemm gemm_;
  const Tensor a_, b_, c_, scratch_;
};

// Returns oneDNN's time over ours, one thread each, in turn.
double GemmRatio(const Product& product, DType dtype) {
  const bool bf16 = dtype == DType::kBF16 && DnnlHasBf16();
  OwnRunner own(product, dtype);
  Runner dnnl(product, bf16 ? dtype : DType::kF32);
  const int repeats = std::clamp(static_cast<int>(1e9 / product.operations()), 1, 100);
  const auto seconds = [&](auto& runner) {
    const double start = ProcessorSeconds();
    for (int i = 0; i < repeats; ++i) runner.Run();
    return ProcessorSeconds() - start;
  };
  Pairs times;
  for (int round = -1; round < 5; ++round) {
    const double own_seconds = seconds(own), dnnl_seconds = seconds(dnnl);
    if (round >= 0) times.Add(dnnl_seconds, own_seconds);  // -1: warm-up
  }
  return times.Ratio();
}

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
  for (const Product& product : std::vector<Product>{
           {512, 768, 768, false}, {1024, 1024, 1024, false}, {2048, 2048, 1024, false}}) {
    best = std::max(best, RateOfProductsSideBySide(product, threads, [&](const Product& shape) {
                      return OwnRunner(shape, dtype);
                    }));
  }
  return best;
}

void PrintGemmRatios(DType dtype) {
  LimitDnnlIsa();
  omp_set_num_threads(1);
  const std::string prefix = absl::StrCat("gemm.", dtype == DType::kF32 ? "fp32" : "bf16", ".");
  double sum = 0;
  const auto print = [&](const std::string& shape, const Product& product) {
    const double ratio = GemmRatio(product, dtype);
    PrintFigure(absl::StrCat(prefix, shape, ".ratio"), ratio);
    sum += ratio;
  };
  for (const int64_t n : {1024, 4096}) print(absl::StrCat("cube", n), {n, n, n, false});
  constexpr int64_t kC = 768, kLayers[][2] = {
                                  {kC, 3 * kC}, {kC, kC}, {kC, 4 * kC}, {4 * kC, kC}, {kC, 50304}};
  for (const int64_t rows : {256, 1024}) {
    sum = 0;
    for (const auto& [in, out] : kLayers) {
      const std::string shape = absl::StrCat(rows, "x", in, "x", out);
      print("forward." + shape, {rows, out, in, false});
      print("dx." + shape, {rows, in, out, false, false, false});
      print("dw." + shape, {out, in, rows, false, true, false});
    }
    PrintFigure(absl::StrCat(prefix, rows == 256 ? "step_4x64" : "step_1x1024", ".ratio"),
                sum / static_cast<double>(3 * std::size(kLayers)));
  }
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
