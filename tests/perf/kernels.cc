// The rates of the operations of a GPT-2 124M step, as shares of what this machine can do
// (gemm_peak.h), measured in the same run. Prints lines `figure <name> <value> <unit>`.
//
//   gemm.<dtype>.<shape>.ratio
//       rate of our products, of oneDNN's (gemm_peak.h)
//   kernel.<op>.<dtype>.<shape>.peak_ratio
//       rate of matrix products and attention, of the best oneDNN rate
//   kernel.<op>.<dtype>.<shape>.bandwidth_ratio
//       of the rest: rate of the bytes that the operation must move, of the memory's
//   kernel.adamw_check.<dtype>.<shape>.fused_ratio
//       processor time of one thread that updates and, while the cache has a block, computes a
//       save's checksums and digests of it, of the time of one that does so afterwards

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/format/digest.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"
#include "tests/perf/gemm_peak.h"
#include "tests/perf/harness.h"

ABSL_FLAG(bool, gemm_ratios, true, "Compare our products with oneDNN's.");
ABSL_FLAG(bool, operations, true, "Measure the operations of a step.");
ABSL_FLAG(bool, checked_update, true, "Measure an update with a save's checks.");

namespace tessera {
namespace {

// GPT-2 124M. C channels, F hidden, V padded vocabulary, H heads, D head size.
constexpr int64_t kChannels = 768, kHidden = 3072, kVocabulary = 50304, kHeads = 12, kHeadSize = 64;
constexpr DType kF32 = DType::kF32;

constexpr double kLeastSeconds = 0.15;  // of one measurement

class KernelBenchmark {
 public:
  KernelBenchmark(Backend& backend, DType dtype, double gemm_peak, double bandwidth)
      : backend_(backend),
        dtype_(dtype),
        name_(dtype == kF32 ? "fp32" : "bf16"),
        gemm_peak_(gemm_peak),
        bandwidth_(bandwidth) {}

  void Run() {
    for (int64_t rows : {256, 1024}) {
      Products(rows);
      RowOperations(rows);
    }
    Attention(4, 64);
    Attention(1, 1024);
    Optimizer();
  }

  void CheckedUpdate() {
    constexpr int64_t kCount = 8 << 20, kBlock = 16 << 10;  // a block of all fits the second level
    const std::unique_ptr<Backend> alone = MakeCpuBackend(1);
    const Tensor grad = Make(kF32, {kCount}), master = Make(kF32, {kCount});
    const Tensor m = Make(kF32, {kCount}), v = Make(kF32, {kCount}), param = Make(dtype_, {kCount});
    const bool rounded = dtype_ != kF32;
    const auto part = [](const Tensor& tensor, int64_t begin, int64_t end) {
      return tensor.view().Slice(0, begin, end);
    };
    const auto update = [&](int64_t begin, int64_t end) {
      alone->AdamW({{.learning_rate = 1e-4, .weight_decay = 0.1},
                    part(grad, begin, end),
                    rounded ? part(master, begin, end) : TensorView(),
                    part(m, begin, end),
                    part(v, begin, end),
                    part(param, begin, end)});
    };
    uint32_t crc32c = 0;
    ckpt::LogicalDigest digest;
    const auto check = [&](int64_t begin, int64_t end) {
      for (const Tensor* tensor : {&m, &v, &param, &master}) {
        if (tensor == &master && !rounded) continue;
        const TensorView memory = part(*tensor, begin, end);
        digest += ckpt::ChecksumRun(begin, memory.data(), end - begin, ElementSize(memory.dtype()),
                                    crc32c);
      }
    };
    const auto seconds = [&](int64_t step, bool fused) {
      const double start = ProcessorSeconds();
      for (int64_t at = 0; at < kCount; at += step) {
        update(at, at + step);
        if (fused) check(at, at + step);
      }
      if (!fused) check(0, kCount);
      return ProcessorSeconds() - start;
    };
    Pairs times;
    for (int i = 0; i < 9; ++i) times.Add(seconds(kBlock, true), seconds(kCount, false));
    Print("adamw_check", std::to_string(kCount), "fused_ratio", times.Ratio());
  }

 private:
  Tensor Make(DType dtype, Shape shape) {
    Tensor x(dtype, std::move(shape));
    backend_.Fill({x, 0.01});
    return x;
  }

  void Print(const std::string& operation, const std::string& shape, const char* kind,
             double value) {
    PrintFigure(absl::StrCat("kernel.", operation, ".", name_, ".", shape, ".", kind), value);
  }
  void PrintPeak(const std::string& operation, const std::string& shape, double operations,
                 const std::function<void()>& work) {
    Print(operation, shape, "peak_ratio",
          operations / MedianSeconds(work, kLeastSeconds) / gemm_peak_);
  }
  void PrintBandwidth(const std::string& operation, const std::string& shape, double bytes,
                      const std::function<void()>& work) {
    Print(operation, shape, "bandwidth_ratio",
          bytes / MedianSeconds(work, kLeastSeconds) / bandwidth_);
  }

  // y[R,O] = x[R,I] W[O,I]^T and its two gradients.
  void Products(int64_t rows) {
    const std::pair<int64_t, int64_t> layers[] = {{kChannels, 3 * kChannels},
                                                  {kChannels, kChannels},
                                                  {kChannels, kHidden},
                                                  {kHidden, kChannels},
                                                  {kChannels, kVocabulary}};
    for (const auto& [in, out] : layers) {
      const std::string shape =
          std::to_string(rows) + "x" + std::to_string(in) + "x" + std::to_string(out);
      const double operations = 2.0 * static_cast<double>(rows * in * out);
      const Tensor x = Make(dtype_, {rows, in}), w = Make(dtype_, {out, in});
      const Tensor y = Make(dtype_, {rows, out}), bias = Make(dtype_, {out});
      const Tensor d_w = Make(kF32, {out, in});
      const bool head = out == kVocabulary;
      PrintPeak("linear_forward", shape, operations, [&] {
        backend_.MatMul({x, w.view().Transpose(0, 1), y, false, head ? TensorView() : bias.view()});
      });
      PrintPeak("linear_dx", shape, operations, [&] { backend_.MatMul({y, w, x, false}); });
      PrintPeak("linear_dw", shape, operations, [&] {
        backend_.MatMul({y.view().Transpose(0, 1), x, d_w, true});
      });
      if (head) Loss(rows, y);
      // The sums over shards: of the output where the layer is split along its input, otherwise of
      // d_x.
      for (int64_t shards : {2, 4}) {
        if (out == kChannels) {
          ShardSum("linear_forward", shape, shards, {rows, in, out}, /*b_transposed=*/true);
        } else {
          ShardSum("linear_dx", shape, shards, {rows, out, in}, /*b_transposed=*/false);
        }
      }
    }
  }

  struct Extents {
    int64_t m, k, n;
  };

  // c[M,N] (fp32) = a sum of products over K / shards each.
  void ShardSum(const std::string& operation, const std::string& shape, int64_t shards,
                const Extents& e, bool b_transposed) {
    const int64_t k = e.k / shards;
    std::vector<Tensor> memory;
    std::vector<MatMulOperands> products;
    for (int64_t i = 0; i < shards; ++i) {
      memory.push_back(Make(dtype_, {e.m, k}));
      const TensorView a = memory.back();
      memory.push_back(Make(dtype_, b_transposed ? Shape{e.n, k} : Shape{k, e.n}));
      const TensorView b = memory.back();
      products.push_back({a, b_transposed ? b.Transpose(0, 1) : b});
    }
    const Tensor c(kF32, {e.m, e.n});
    PrintPeak(operation + "_of_" + std::to_string(shards) + "_shards", shape,
              2.0 * static_cast<double>(e.m * e.k * e.n), [&] {
                backend_.MatMulTree({products, c});
              });
  }

  void Loss(int64_t rows, const Tensor& logits) {
    const Tensor targets(DType::kI32, {rows}), stats(kF32, {rows, 3});
    const std::string shape = std::to_string(rows) + "x" + std::to_string(kVocabulary);
    const double bytes = static_cast<double>(logits.view().bytes());
    PrintBandwidth("cross_entropy_stats", shape, bytes, [&] {
      backend_.CrossEntropyStats({logits, 50257, targets, 0, stats});
    });
    backend_.Fill({stats, 1});
    PrintBandwidth("cross_entropy_backward", shape, 2 * bytes, [&] {
      backend_.CrossEntropyBackward({stats, targets, 50257, 0, 1e-3, logits});
    });
  }

  void RowOperations(int64_t rows) {
    const Tensor x = Make(dtype_, {rows, kChannels}), y = Make(dtype_, {rows, kChannels});
    const Tensor weight = Make(dtype_, {kChannels}), bias = Make(dtype_, {kChannels});
    const Tensor mean = Make(kF32, {rows}), rstd = Make(kF32, {rows});
    const Tensor d_weight = Make(kF32, {kChannels}), d_bias = Make(kF32, {kChannels});
    const Tensor wide = Make(dtype_, {rows, kHidden}), d_wide = Make(dtype_, {rows, kHidden});
    const Tensor d_wide_bias = Make(kF32, {kHidden});
    const std::string narrow_shape = std::to_string(rows) + "x" + std::to_string(kChannels);
    const std::string wide_shape = std::to_string(rows) + "x" + std::to_string(kHidden);
    const double narrow_bytes = static_cast<double>(x.view().bytes());
    const double wide_bytes = static_cast<double>(wide.view().bytes());
    PrintBandwidth("layer_norm_forward", narrow_shape, 2 * narrow_bytes, [&] {
      backend_.LayerNormForward({x, weight, bias, 1e-5, y, mean, rstd});
    });
    PrintBandwidth("layer_norm_backward", narrow_shape, 4 * narrow_bytes, [&] {
      backend_.LayerNormBackward({y, x, weight, mean, rstd, y, true, d_weight, d_bias, true});
    });
    PrintBandwidth("gelu_forward", wide_shape, 2 * wide_bytes, [&] {
      backend_.GeluForward({wide, d_wide});
    });
    PrintBandwidth("gelu_backward", wide_shape, 3 * wide_bytes, [&] {
      backend_.GeluBackward({d_wide, wide, d_wide});
    });
    PrintBandwidth("sum_rows", wide_shape, wide_bytes, [&] {
      backend_.SumRows({wide, d_wide_bias, true});
    });
    const Tensor sum = Make(kF32, {rows, kChannels});
    PrintBandwidth("add_bias", narrow_shape, static_cast<double>(sum.view().bytes()) + narrow_bytes,
                   [&] {
                     backend_.AddBias({sum, bias, y});
                   });
    const Dropout dropout = {.probability = 0.1, .global_columns = kHidden};
    PrintBandwidth("dropout", wide_shape, 2 * wide_bytes, [&] {
      backend_.ApplyDropout({dropout, wide});
    });
  }

  void Attention(int64_t batch, int64_t sequence) {
    const Tensor qkv = Make(dtype_, {batch, sequence, 3 * kHeads, kHeadSize});
    const Tensor d_qkv = Make(dtype_, {batch, sequence, 3 * kHeads, kHeadSize});
    const Tensor out = Make(dtype_, {batch, sequence, kHeads, kHeadSize});
    const Tensor row_sums = Make(kF32, {batch, kHeads, sequence});
    const auto part = [&](const Tensor& fused, int64_t i) {
      return fused.view().Slice(2, i * kHeads, (i + 1) * kHeads);
    };
    const AttentionOptions options = {.scale = 0.125};
    const std::string shape = std::to_string(batch) + "x" + std::to_string(sequence);
    // Two products over the lower triangle forward, five backward.
    const double triangle = static_cast<double>(batch * sequence * sequence * kChannels);
    PrintPeak("attention_forward", shape, 2 * triangle, [&] {
      backend_.AttentionForward({options, part(qkv, 0), part(qkv, 1), part(qkv, 2), out, row_sums});
    });
    PrintPeak("attention_backward", shape, 5 * triangle, [&] {
      backend_.AttentionBackward({options, out, part(qkv, 0), part(qkv, 1), part(qkv, 2), out,
                                  row_sums, part(d_qkv, 0), part(d_qkv, 1), part(d_qkv, 2)});
    });
  }

  void Optimizer() {
    const int64_t count = kVocabulary * kChannels;
    const Tensor grad = Make(kF32, {count}), master = Make(kF32, {count}), m = Make(kF32, {count});
    const Tensor v = Make(kF32, {count}), param = Make(dtype_, {count});
    const bool rounded = dtype_ != kF32;
    const std::string shape = std::to_string(count);
    const AdamWOptions options = {.learning_rate = 1e-4, .weight_decay = 0.1};
    const double elements = static_cast<double>(count);
    PrintBandwidth("adamw", shape, elements * (7 * 4 + (rounded ? 2 : 0)), [&] {
      backend_.AdamW({options, grad, rounded ? master.view() : TensorView(), m, v, param});
    });
    PrintBandwidth("sum_of_squares", shape, elements * 4, [&] { backend_.SumOfSquares({grad}); });
    PrintBandwidth("sum_of_squares_by_block", shape, elements * 4, [&] {
      double sum = 0;
      backend_.SumsOfSquares({{&grad.view(), 1}, 256, {&sum, 1}});
    });
  }

  Backend& backend_;
  DType dtype_;
  std::string name_;
  double gemm_peak_;
  double bandwidth_;
};

int Main() {
  const int threads = AllProcessors();
  const double bandwidth = BestMemoryRate(threads);
  PrintFigure("machine.memory", bandwidth * 1e-9, "GB/s");
  const std::unique_ptr<Backend> backend = MakeCpuBackend(threads);
  for (DType dtype : {kF32, DType::kBF16}) {
    const double peak = BestGemmRate(dtype, threads);
    PrintFigure(absl::StrCat("machine.gemm_peak.", dtype == kF32 ? "fp32" : "bf16"), peak * 1e-9,
                "GFLOP/s");
    if (peak == 0) continue;
    if (absl::GetFlag(FLAGS_gemm_ratios)) PrintGemmRatios(dtype);
    KernelBenchmark benchmark(*backend, dtype, peak, bandwidth);
    if (absl::GetFlag(FLAGS_operations)) benchmark.Run();
    if (absl::GetFlag(FLAGS_checked_update)) benchmark.CheckedUpdate();
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return tessera::Main();
}
