#include "tests/device/check/operations.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/random_tensors.h"
#include "compute/random/philox.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera::testing {
namespace {

struct Output {
  std::string name;
  Tensor tensor;
};
using Operation = std::function<std::vector<Output>(Backend&)>;

// What every output may differ by.
Tolerance Allowed(DType dtype, double slack) {
  if (dtype == DType::kBF16) return {.relative = 0x1p-7 * slack, .of_maximum = 0x1p-8 * slack};
  return {.relative = 1e-5 * slack, .of_maximum = 1e-5 * slack};
}

// The largest error of a tensor in units of what is allowed.
double ErrorOf(const TensorView& actual, const TensorView& expected, double slack) {
  const Tolerance allowed = Allowed(expected.dtype(), slack);
  if (Compare(actual, expected, allowed).wrong_elements == 0) {
    const Difference found = Compare(actual, expected, {});
    const double most = found.max_expected * (allowed.of_maximum + allowed.relative);
    return most == 0 ? 0 : std::min(1.0, found.max_absolute / most);
  }
  for (double times = 2; times < 1e6; times *= 2) {
    if (Compare(actual, expected, Allowed(expected.dtype(), slack * times)).wrong_elements == 0) {
      return times;
    }
  }
  return HUGE_VAL;
}

class Comparison {
 public:
  Comparison(Backend& device, Backend& cpu) : device_(device), cpu_(cpu) {}

  // Operations between two calls are of one line of the table.
  void Begin(const std::string& name, DType dtype) {
    results_.push_back({.name = name, .dtype = dtype});
  }

  void Run(const Shape& shape, const Operation& operation, double slack = 1) {
    OperationResult& result = results_.back();
    const std::vector<Output> expected = operation(cpu_);
    const std::vector<Output> actual = operation(device_);
    const absl::Status status = device_.Synchronize();
    if (!status.ok() && result.error.empty()) result.error = status.ToString();
    for (size_t i = 0; i < expected.size(); ++i) {
      ++result.tensors;
      const double error = ErrorOf(actual[i].tensor, expected[i].tensor, slack);
      if (error <= result.worst) continue;
      result.worst = error;
      result.worst_tensor = absl::StrCat(expected[i].name, " at ", ToString(shape));
    }
  }

  RandomTensors& random() { return random_; }
  std::vector<OperationResult> Take() { return std::move(results_); }

 private:
  Backend& device_;
  Backend& cpu_;
  RandomTensors random_{20261122};
  std::vector<OperationResult> results_;
};

// The cases of one dtype.
class Cases {
 public:
  Cases(Comparison& comparison, DType dtype, const OperationSizes& sizes)
      : comparison_(comparison), random_(comparison.random()), dtype_(dtype), sizes_(sizes) {}

  void RunAll() {
    Movement();
    Products();
    GeluProducts();
    Rows();
    Embeddings();
    LayerNorm();
    RmsNorm();
    AddNorms();
    Activations();
    DropoutMasks();
    Rope();
    Attention();
    CrossEntropy();
    Sums();
    Optimizer();
  }

 private:
  using Outputs = std::vector<Output>;

  std::vector<Shape> Sizes(std::initializer_list<Shape> odd,
                           std::initializer_list<Shape> typical) const {
    std::vector<Shape> sizes;
    if (sizes_.odd) sizes.insert(sizes.end(), odd.begin(), odd.end());
    if (sizes_.typical) sizes.insert(sizes.end(), typical.begin(), typical.end());
    return sizes;
  }
  void Begin(const char* name) { comparison_.Begin(name, dtype_); }
  Tensor Normal(Shape shape, double mean = 0, double deviation = 1) {
    return random_.Normal(dtype_, std::move(shape), mean, deviation);
  }
  Tensor Normal32(Shape shape) { return random_.Normal(DType::kF32, std::move(shape)); }
  DType other() const { return dtype_ == DType::kF32 ? DType::kBF16 : DType::kF32; }

  static TensorView Add(Outputs& outputs, const char* name, Tensor tensor) {
    outputs.push_back({name, std::move(tensor)});
    return outputs.back().tensor;
  }

  void Movement();
  void Products();
  void ProductsOf(int64_t m, int64_t k, int64_t n);
  void GeluProducts();
  void Rows();
  void Embeddings();
  void LayerNorm();
  void RmsNorm();
  void AddNorms();
  void Activations();
  void DropoutMasks();
  void Rope();
  void Attention();
  void CrossEntropy();
  void Sums();
  void Optimizer();

  Comparison& comparison_;
  RandomTensors& random_;
  const DType dtype_;
  const OperationSizes& sizes_;
};

void Cases::Movement() {
  Begin("Fill, Copy, Add, Scale");
  for (const Shape& shape : Sizes({{1, 1}, {3, 37}, {5, 131}}, {{1024, 768}})) {
    const Tensor a = Normal(shape), b = Normal(shape);
    comparison_.Run(shape, [&](Backend& backend) {
      Outputs outputs;
      backend.Fill({Add(outputs, "filled", Tensor(dtype_, shape)), 0.3});
      backend.Copy({a, Add(outputs, "converted", Tensor(other(), shape))});
      backend.Copy({a.view().Transpose(0, 1),
                    Add(outputs, "transposed", Tensor(dtype_, {shape[1], shape[0]}))});
      backend.Add({a, b, Add(outputs, "sum", Tensor(dtype_, shape))});
      backend.Scale({Add(outputs, "scaled", Cloned(a)), 0.7});
      return outputs;
    });
  }
}

void Cases::ProductsOf(int64_t m, int64_t k, int64_t n) {
  const Tensor a = Normal({m, k}), b = Normal({k, n}), bias = Normal({n});
  const Tensor a_transposed = Normal({k, m}), b_transposed = Normal({n, k}), start = Normal({m, n});
  const Tensor start32 = Normal32({m, n}), second = Normal({m, k});
  comparison_.Run({m, k, n}, [&](Backend& backend) {
    const TensorView a_of_transposed = a_transposed.view().Transpose(0, 1);
    const TensorView b_of_transposed = b_transposed.view().Transpose(0, 1);
    Outputs outputs;
    backend.MatMul({a, b, Add(outputs, "a b", Tensor(dtype_, {m, n})), false});
    backend.MatMul(
        {a, b_of_transposed, Add(outputs, "a b' + bias", Tensor(dtype_, {m, n})), false, bias});
    backend.MatMul({a_of_transposed, b, Add(outputs, "c + a' b", Cloned(start32)), true});
    backend.MatMul({a, b, Add(outputs, "c + a b", Cloned(start)), true});
    const std::vector<MatMulOperands> products = {{a, b}, {second, b}, {a, b}};
    backend.MatMulTree({products, Add(outputs, "tree", Tensor(DType::kF32, {m, n}))});
    return outputs;
  });
}

void Cases::Products() {
  Begin("MatMul, MatMulTree");
  for (const Shape& size : Sizes({{1, 1, 1}, {17, 33, 9}, {16, 64, 48}},
                                 {{1024, 768, 2304}, {1024, 3072, 768}, {768, 1024, 3072}})) {
    ProductsOf(size[0], size[1], size[2]);
  }
}

void Cases::GeluProducts() {
  Begin("MatMul with GELU");
  for (const Shape& size :
       Sizes({{1, 1, 1}, {17, 33, 9}, {16, 64, 48}}, {{1024, 768, 3072}, {512, 1600, 6400}})) {
    const int64_t m = size[0], k = size[1], n = size[2];
    const Tensor a = Normal({m, k}), b = Normal({k, n}, 0, 0.1), bias = Normal({n});
    const Tensor b_transposed = Normal({n, k}, 0, 0.1), pre = Normal({m, n});
    comparison_.Run(
        size,
        [&](Backend& backend) {
          Outputs outputs;
          backend.MatMulGelu({a, b, bias, Add(outputs, "pre", Tensor(dtype_, {m, n})),
                              Add(outputs, "act", Tensor(dtype_, {m, n}))});
          backend.MatMulGeluBackward({a, b_transposed.view().Transpose(0, 1), pre,
                                      Add(outputs, "d_pre", Tensor(dtype_, {m, n}))});
          return outputs;
        },
        /*slack=*/2);
  }
}

void Cases::Rows() {
  Begin("AddBias, SumRows");
  for (const Shape& shape : Sizes({{1, 1}, {7, 133}}, {{1024, 3072}})) {
    const Tensor x = Normal(shape), sums = Normal32({shape[1]}), x32 = Normal32(shape);
    const Tensor bias = Normal({shape[1]});
    comparison_.Run(shape, [&](Backend& backend) {
      Outputs outputs;
      backend.AddBias({x32, bias, Add(outputs, "biased", Tensor(dtype_, shape))});
      backend.SumRows({x, Add(outputs, "sums", Tensor(DType::kF32, {shape[1]})), false});
      backend.SumRows({x, Add(outputs, "accumulated sums", Cloned(sums)), true});
      return outputs;
    });
  }
}

void Cases::Embeddings() {
  Begin("Embedding, positions");
  // Rows, vocabulary, columns; two sequences.
  for (const Shape& size : Sizes({{2, 3, 1}, {22, 9, 133}}, {{2048, 8192, 768}})) {
    const int64_t rows = size[0], vocabulary = size[1], columns = size[2], sequence = rows / 2;
    const Tensor table = Normal({vocabulary, columns}),
                 ids = random_.Ids({rows}, 0, vocabulary + 3);
    const Tensor d_out = Normal({rows, columns}), start = Normal32({vocabulary, columns});
    const Tensor positions = Normal({sequence, columns}), x = Normal({rows, columns});
    comparison_.Run(size, [&](Backend& backend) {
      Outputs outputs;
      backend.EmbeddingForward(
          {table, ids, 2, Add(outputs, "out", Tensor(dtype_, {rows, columns}))});
      backend.EmbeddingBackward({d_out, ids, 2, Add(outputs, "d_table", Cloned(start))});
      backend.AddPositions({positions, sequence, Add(outputs, "positions", Cloned(x))});
      backend.AddPositionsBackward(
          {d_out, sequence, Add(outputs, "d_positions", Tensor(DType::kF32, {sequence, columns})),
           false});
      return outputs;
    });
  }
}

void Cases::LayerNorm() {
  Begin("LayerNorm");
  for (const Shape& shape : Sizes({{1, 3}, {7, 131}}, {{1024, 768}, {512, 1600}})) {
    const Tensor x = Normal(shape, 0.5, 2), weight = Normal({shape[1]}, 1, 0.3);
    const Tensor bias = Normal({shape[1]}), d_out = Normal(shape), residual = Normal(shape);
    comparison_.Run(shape, [&](Backend& backend) {
      Outputs outputs;
      const TensorView out = Add(outputs, "out", Tensor(dtype_, shape));
      const TensorView mean = Add(outputs, "mean", Tensor(DType::kF32, {shape[0]}));
      const TensorView rstd = Add(outputs, "rstd", Tensor(DType::kF32, {shape[0]}));
      const TensorView d_x = Add(outputs, "d_x", Cloned(residual));
      const TensorView d_weight = Add(outputs, "d_weight", Tensor(DType::kF32, {shape[1]}));
      const TensorView d_bias = Add(outputs, "d_bias", Tensor(DType::kF32, {shape[1]}));
      backend.LayerNormForward({x, weight, bias, 1e-5, out, mean, rstd});
      backend.LayerNormBackward({d_out, x, weight, mean, rstd, d_x, true, d_weight, d_bias, false});
      return outputs;
    });
  }
}

void Cases::RmsNorm() {
  Begin("RmsNorm");
  for (const Shape& shape : Sizes({{1, 3}, {7, 131}}, {{256, 4096}})) {
    const Tensor x = Normal(shape, 0.5, 2), weight = Normal({shape[1]}, 1, 0.3);
    const Tensor d_out = Normal(shape), residual = Normal(shape);
    comparison_.Run(shape, [&](Backend& backend) {
      Outputs outputs;
      const TensorView out = Add(outputs, "out", Tensor(dtype_, shape));
      const TensorView rstd = Add(outputs, "rstd", Tensor(DType::kF32, {shape[0]}));
      const TensorView d_x = Add(outputs, "d_x", Cloned(residual));
      const TensorView d_weight = Add(outputs, "d_weight", Tensor(DType::kF32, {shape[1]}));
      backend.RmsNormForward({x, weight, 1e-5, out, rstd});
      backend.RmsNormBackward({d_out, x, weight, rstd, d_x, true, d_weight, false});
      return outputs;
    });
  }
}

void Cases::AddNorms() {
  Begin("sum and norm");
  for (const Shape& shape : Sizes({{1, 3}, {7, 131}}, {{256, 768}, {256, 4096}})) {
    const Tensor a = Normal(shape, 0.5, 2), b = Normal(shape), weight = Normal({shape[1]}, 1, 0.3);
    const Tensor bias = Normal({shape[1]});
    comparison_.Run(shape, [&](Backend& backend) {
      Outputs outputs;
      const TensorView sum = Add(outputs, "sum", Cloned(b));
      const TensorView out = Add(outputs, "LayerNorm", Tensor(dtype_, shape));
      const TensorView mean = Add(outputs, "mean", Tensor(DType::kF32, {shape[0]}));
      const TensorView rstd = Add(outputs, "rstd", Tensor(DType::kF32, {shape[0]}));
      const TensorView sum2 = Add(outputs, "sum", Tensor(dtype_, shape));
      const TensorView out2 = Add(outputs, "RMSNorm", Tensor(dtype_, shape));
      const TensorView rstd2 = Add(outputs, "rstd", Tensor(DType::kF32, {shape[0]}));
      backend.AddLayerNormForward({a, sum, sum, weight, bias, 1e-5, out, mean, rstd});
      backend.AddRmsNormForward({a, b, sum2, weight, 1e-5, out2, rstd2});
      return outputs;
    });
  }
}

void Cases::Activations() {
  Begin("GELU, SwiGLU");
  for (const Shape& shape : Sizes({{1, 1}, {5, 133}}, {{1024, 3072}})) {
    const Tensor x = Normal(shape, 0, 3), d_out = Normal(shape);
    const Shape wide = {shape[0], 2 * shape[1]};
    const Tensor gate_up = Normal(wide, 0, 3);
    comparison_.Run(shape, [&](Backend& backend) {
      Outputs outputs;
      backend.GeluForward({x, Add(outputs, "GELU", Tensor(dtype_, shape))});
      backend.GeluBackward({d_out, x, Add(outputs, "GELU's d_x", Tensor(dtype_, shape))});
      backend.SwiGluForward({gate_up, Add(outputs, "SwiGLU", Tensor(dtype_, shape))});
      backend.SwiGluBackward({d_out, gate_up, Add(outputs, "d_gate_up", Tensor(dtype_, wide))});
      return outputs;
    });
  }
}

void Cases::DropoutMasks() {
  Begin("Dropout");
  for (const Shape& shape : Sizes({{1, 1}, {21, 131}}, {{1024, 768}})) {
    const Tensor x = Normal(shape, 3, 0.5);
    const Dropout dropout = {.probability = 0.3,
                             .stream = {.seed = 3, .use = RandomUse::kDropout, .stream = 17},
                             .first_sample = 5,
                             .rows_per_sample = 7,
                             .row_offset = 3,
                             .global_columns = shape[1] + 1000,
                             .column_offset = 37};
    comparison_.Run(shape, [&](Backend& backend) {
      Outputs outputs;
      backend.ApplyDropout({dropout, Add(outputs, "x", Cloned(x))});
      return outputs;
    });
  }
}

void Cases::Rope() {
  Begin("Rope");
  for (const Shape& shape : Sizes({{2, 11, 3, 42}}, {{1, 512, 32, 128}})) {
    const Tensor cos = random_.Uniform(DType::kF32, {shape[1], shape[3] / 2}, -1, 1);
    const Tensor sin = random_.Uniform(DType::kF32, {shape[1], shape[3] / 2}, -1, 1);
    const Tensor x = Normal(shape);
    comparison_.Run(shape, [&](Backend& backend) {
      Outputs outputs;
      const TensorView all = Add(outputs, "x", Cloned(x));
      backend.Rope({cos, sin, false, all.Slice(2, 1, shape[2])});
      backend.Rope({cos, sin, true, Add(outputs, "inverse", Cloned(x))});
      return outputs;
    });
  }
}

void Cases::Attention() {
  Begin("Attention");
  // B, T, H, K, D; every other one with dropout.
  bool with_dropout = false;
  for (const Shape& size : Sizes({{1, 1, 1, 1, 16}, {2, 37, 2, 2, 16}, {1, 70, 4, 2, 24}},
                                 {{1, 1024, 12, 12, 64}, {1, 512, 8, 2, 128}})) {
    const int64_t batch = size[0], sequence = size[1], heads = size[2], groups = size[3];
    const int64_t width = size[4];
    const Shape q_shape = {batch, sequence, heads, width};
    const Shape k_shape = {batch, sequence, groups, width};
    const Tensor q = Normal(q_shape), k = Normal(k_shape), v = Normal(k_shape);
    const Tensor d_out = Normal(q_shape);
    AttentionOptions options = {.scale = 1 / std::sqrt(static_cast<double>(width))};
    if (with_dropout) {
      options.dropout_probability = 0.1;
      options.dropout_stream = {.seed = 5, .use = RandomUse::kDropout, .stream = 3};
    }
    with_dropout = !with_dropout;
    comparison_.Run(
        size,
        [&](Backend& backend) {
          Outputs outputs;
          const TensorView out = Add(outputs, "out", Tensor(dtype_, q_shape));
          const TensorView log_sum_exp =
              Add(outputs, "log_sum_exp", Tensor(DType::kF32, {batch, heads, sequence}));
          const TensorView d_q = Add(outputs, "d_q", Tensor(dtype_, q_shape));
          const TensorView d_k = Add(outputs, "d_k", Tensor(dtype_, k_shape));
          const TensorView d_v = Add(outputs, "d_v", Tensor(dtype_, k_shape));
          backend.AttentionForward({options, q, k, v, out, log_sum_exp});
          backend.AttentionBackward({options, d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v});
          return outputs;
        },
        /*slack=*/2);
  }
}

void Cases::CrossEntropy() {
  Begin("CrossEntropy");
  for (const Shape& shape : Sizes({{1, 5}, {9, 131}}, {{256, 50304}})) {
    const int64_t rows = shape[0], columns = shape[1], valid = columns - 2;
    const Tensor logits = Normal(shape, 0, 4), targets = random_.Ids({rows}, 0, valid);
    if (rows > 4) targets.view().as<int32_t>()[4] = -1;
    comparison_.Run(shape, [&](Backend& backend) {
      Outputs outputs;
      const TensorView stats = Add(outputs, "stats", Tensor(DType::kF32, {1, rows, 3}));
      const TensorView combined = Add(outputs, "combined", Tensor(DType::kF32, {rows, 3}));
      const TensorView losses = Add(outputs, "losses", Tensor(DType::kF32, {rows}));
      const TensorView d_logits = Add(outputs, "d_logits", Cloned(logits));
      backend.CrossEntropyStats({d_logits, valid, targets, 0, stats.Reshape({rows, 3})});
      backend.CrossEntropyLoss({stats, targets, combined, losses});
      backend.CrossEntropyBackward({combined, targets, valid, 0, 0.125, d_logits});
      return outputs;
    });
  }
}

void Cases::Sums() {
  Begin("Sum, SumOfSquares");
  for (const Shape& shape : Sizes({{1}, {4099}}, {{1 << 20}})) {
    const Tensor x = Normal(shape, 0.5);
    comparison_.Run(shape, [&](Backend& backend) {
      constexpr int64_t kBlock = 1000;
      const int64_t blocks = (shape[0] + kBlock - 1) / kBlock;
      Outputs outputs;
      const TensorView sums = Add(outputs, "sums", Tensor(DType::kF64, {2}));
      const TensorView by_block = Add(outputs, "sums by block", Tensor(DType::kF64, {blocks}));
      sums.as<double>()[0] = backend.Sum({x});
      sums.as<double>()[1] = backend.SumOfSquares({x});
      backend.SumOfSquaresByBlock(
          {x, kBlock, {by_block.as<double>(), static_cast<size_t>(blocks)}});
      return outputs;
    });
  }
}

void Cases::Optimizer() {
  Begin("AdamW");
  for (const Shape& shape : Sizes({{1}, {1003}}, {{1 << 20}})) {
    const Tensor grad = Normal32(shape), m = Normal32(shape), weight = Normal32(shape);
    const Tensor v = random_.Uniform(DType::kF32, shape, 0, 1);
    const AdamWOptions options = {
        .learning_rate = 1e-2, .weight_decay = 0.1, .step = 7, .grad_scale = 0.5};
    comparison_.Run(shape, [&](Backend& backend) {
      Outputs outputs;
      const TensorView master = Add(outputs, "master", Cloned(weight));
      const TensorView first = Add(outputs, "m", Cloned(m)), second = Add(outputs, "v", Cloned(v));
      const TensorView param = Add(outputs, "param", Converted(weight, dtype_));
      backend.AdamW({options, grad, master, first, second, param});
      const int64_t half = shape[0] / 2;
      const auto part = [&](int64_t begin, int64_t end, double decay) {
        const auto cut = [&](const TensorView& x) { return x.Slice(0, begin, end); };
        return AdamWOperands{cut(grad), cut(master), cut(first), cut(second), cut(param), decay};
      };
      const std::vector<AdamWOperands> parts = {part(0, half, 0.1), part(half, shape[0], 0)};
      backend.AdamWAll({options, parts});
      return outputs;
    });
  }
}

}  // namespace

std::vector<OperationResult> CompareOperations(Backend& device, Backend& cpu,
                                               const OperationSizes& sizes) {
  Comparison comparison(device, cpu);
  for (DType dtype : {DType::kF32, DType::kBF16}) Cases(comparison, dtype, sizes).RunAll();
  return comparison.Take();
}

}  // namespace tessera::testing
