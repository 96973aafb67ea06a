#include "tests/device/check/operations.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/operation_cases.h"
#include "compute/kernels/testing/random_tensors.h"
#include "compute/random/philox.h"
#include "tensor/tensor.h"

namespace tessera::testing {
namespace {

// What every output may differ by; fp64 as much as fp32.
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

// Shapes of GPT-2 124M and Llama-3 8B, for which devices divide their work otherwise than for those
// of OperationCases().
class TypicalCases {
 public:
  TypicalCases(DType dtype, RandomTensors& random) : dtype_(dtype), random_(random) {}

  std::vector<OperationCase> Make() {
    Products({1024, 768, 2304});
    Products({1024, 3072, 768});
    Products({768, 1024, 3072});
    GeluProducts({1024, 768, 3072});
    GeluProducts({512, 1600, 6400});
    Rows({1024, 3072});
    Norms({1024, 768});
    Norms({256, 4096});
    Attention({1, 1024, 12, 12, 64}, 0);
    Attention({1, 512, 8, 2, 128}, 0);
    Attention({1, 512, 8, 2, 128}, 0.1);
    Loss({256, 50304});
    Optimizer({1 << 20});
    return std::move(cases_);
  }

 private:
  Tensor Normal(Shape shape, double mean = 0, double deviation = 1) {
    return random_.Normal(dtype_, std::move(shape), mean, deviation);
  }
  Tensor Normal32(Shape shape) { return random_.Normal(DType::kF32, std::move(shape)); }
  OperationCase& Case(const char* name, const Shape& shape) {
    cases_.push_back({.name = absl::StrCat(name, " ", ShapeToString(shape))});
    return cases_.back();
  }

  void Products(const Shape& size) {
    const int64_t m = size[0], k = size[1], n = size[2];
    Case("MatMul", size)
        .In("a", Normal({m, k}))
        .In("b", Normal({k, n}))
        .In("a'", Normal({k, m}))
        .In("b'", Normal({n, k}))
        .In("bias", Normal({n}))
        .Out("a b", Normal({m, n}))
        .Out("a b' + bias", Normal({m, n}))
        .Out("c + a' b", Normal32({m, n}))
        .Out("sums + b", Normal32({n}))
        .Out("a' b", Normal32({m, n}))
        .Out("sums of a'", Normal32({m}))
        .Out("tree", Normal32({m, n}))
        .run = [](Backend& backend, const CaseViews& x, int64_t) {
      backend.MatMul({x["a"], x["b"], x["a b"], false});
      backend.MatMul({x["a"], x["b'"].Transpose(0, 1), x["a b' + bias"], false, x["bias"]});
      const TensorView transposed_a = x["a'"].Transpose(0, 1);
      backend.MatMulSums(
          {transposed_a, x["b"], x["c + a' b"], x["sums + b"], /*sums_b=*/true, true});
      backend.MatMulSums(
          {transposed_a, x["b"], x["a' b"], x["sums of a'"], /*sums_b=*/false, false});
      const std::vector<MatMulOperands> products = {{x["a"], x["b"]}, {x["a"], x["b"]}};
      backend.MatMulTree({products, x["tree"]});
    };
  }

  void GeluProducts(const Shape& size) {
    const int64_t m = size[0], k = size[1], n = size[2];
    Case("MatMulGelu", size)
        .In("a", Normal({m, k}))
        .In("b", Normal({k, n}, 0, 0.1))
        .In("b'", Normal({n, k}, 0, 0.1))
        .In("bias", Normal({n}))
        .In("given", Normal({m, n}))
        .Out("pre", Normal({m, n}), CaseOperand::kMatrix, 2)
        .Out("act", Normal({m, n}), CaseOperand::kMatrix, 2)
        .Out("d_pre", Normal({m, n}), CaseOperand::kMatrix, 2)
        .run = [](Backend& backend, const CaseViews& x, int64_t) {
      backend.MatMulGelu({x["a"], x["b"], x["bias"], x["pre"], x["act"]});
      backend.MatMulGeluBackward({x["a"], x["b'"].Transpose(0, 1), x["given"], x["d_pre"]});
    };
  }

  void Rows(const Shape& shape) {
    Case("Rows", shape)
        .In("x", Normal(shape))
        .In("d_out", Normal(shape))
        .In("gate_up", Normal({shape[0], 2 * shape[1]}))
        .In("table", Normal({8192, shape[1]}))
        .In("ids", random_.Ids({shape[0]}, 0, 8192))
        .Out("sums", Normal32({shape[1]}))
        .Out("GELU's d_x", Normal(shape))
        .Out("SwiGLU", Normal(shape))
        .Out("embedded", Normal(shape))
        .Out("d_table", Normal32({8192, shape[1]}))
        .Out("dropped", Normal(shape))
        .run = [](Backend& backend, const CaseViews& x, int64_t) {
      backend.SumRows({x["x"], x["sums"], true});
      backend.GeluBackward({x["d_out"], x["x"], x["GELU's d_x"]});
      backend.SwiGluForward({x["gate_up"], x["SwiGLU"]});
      backend.EmbeddingForward({x["table"], x["ids"], 0, x["embedded"]});
      backend.EmbeddingBackward({x["d_out"], x["ids"], 0, x["d_table"]});
      backend.ApplyDropout({{.probability = 0.3,
                             .stream = {.seed = 3, .use = RandomUse::kDropout, .stream = 17},
                             .global_columns = x["x"].dim(1)},
                            x["dropped"]});
    };
  }

  void Norms(const Shape& shape) {
    Case("Norms", shape)
        .In("x", Normal(shape, 0.5, 2))
        .In("d_out", Normal(shape))
        .In("weight", Normal({shape[1]}, 1, 0.3))
        .In("bias", Normal({shape[1]}))
        .Out("LayerNorm", Normal(shape))
        .Out("mean", Normal32({shape[0]}))
        .Out("rstd", Normal32({shape[0]}))
        .Out("LayerNorm's d_x", Normal(shape), CaseOperand::kMatrix, 2)
        .Out("d_weight", Normal32({shape[1]}), CaseOperand::kSum, 2)
        .Out("d_bias", Normal32({shape[1]}), CaseOperand::kSum, 2)
        .Out("RMSNorm", Normal(shape))
        .Out("RMSNorm's rstd", Normal32({shape[0]}))
        .run = [](Backend& backend, const CaseViews& x, int64_t) {
      backend.LayerNormForward(
          {x["x"], x["weight"], x["bias"], 1e-5, x["LayerNorm"], x["mean"], x["rstd"]});
      backend.LayerNormBackward({x["d_out"], x["x"], x["weight"], x["mean"], x["rstd"],
                                 x["LayerNorm's d_x"], true, x["d_weight"], x["d_bias"], false});
      backend.RmsNormForward({x["x"], x["weight"], 1e-5, x["RMSNorm"], x["RMSNorm's rstd"]});
    };
  }

  // B, T, H, K, D.
  void Attention(const Shape& size, double dropout) {
    const Shape q = {size[0], size[1], size[2], size[4]}, k = {size[0], size[1], size[3], size[4]};
    const AttentionOptions options = {
        .scale = 1 / std::sqrt(static_cast<double>(size[4])),
        .dropout_probability = dropout,
        .dropout_stream = {.seed = 5, .use = RandomUse::kDropout, .stream = 3}};
    const Tensor angles = random_.Uniform(DType::kF32, {size[1], size[4] / 2}, -1, 1);
    Case("Attention", size)
        .In("q", Normal(q))
        .In("k", Normal(k))
        .In("v", Normal(k))
        .In("d_out", Normal(q))
        .In("angles", Cloned(angles))
        .Out("turned", Normal(q))
        .Out("out", Normal(q), CaseOperand::kMatrix, 2)
        .Out("log_sum_exp", Normal32({size[0], size[2], size[1]}), CaseOperand::kMatrix, 2)
        .Out("d_q", Normal(q), CaseOperand::kMatrix, 2)
        .Out("d_k", Normal(k), CaseOperand::kMatrix, 2)
        .Out("d_v", Normal(k), CaseOperand::kMatrix, 2)
        .run = [options](Backend& backend, const CaseViews& x, int64_t) {
      backend.Rope({x["angles"], x["angles"], false, x["turned"]});
      backend.AttentionForward({options, x["q"], x["k"], x["v"], x["out"], x["log_sum_exp"]});
      backend.AttentionBackward({options, x["d_out"], x["q"], x["k"], x["v"], x["out"],
                                 x["log_sum_exp"], x["d_q"], x["d_k"], x["d_v"]});
    };
  }

  void Loss(const Shape& shape) {
    const int64_t rows = shape[0], valid = shape[1] - 2;
    for (const bool at_once : {false, true}) {
      Case(at_once ? "CrossEntropyGradient" : "CrossEntropy", shape)
          .In("targets", random_.Ids({rows}, 0, valid))
          .Out("logits", Normal(shape, 0, 4))
          .Out("stats", Normal32({1, rows, 3}))
          .Out("combined", Normal32({rows, 3}))
          .Out("losses", Normal32({rows}))
          .run = [=](Backend& backend, const CaseViews& x, int64_t) {
        const TensorView &logits = x["logits"], &targets = x["targets"], &stats = x["stats"];
        const TensorView &combined = x["combined"], &losses = x["losses"];
        if (at_once) {
          backend.CrossEntropyGradient({logits, valid, targets, 0.125, stats, combined, losses});
          return;
        }
        backend.CrossEntropyStats({logits, valid, targets, 0, stats.Reshape({rows, 3})});
        backend.CrossEntropyLoss({stats, targets, combined, losses});
        backend.CrossEntropyBackward({combined, targets, valid, 0, 0.125, logits});
      };
    }
  }

  void Optimizer(const Shape& count) {
    Case("AdamW", count)
        .In("grad", Normal32(count))
        .Out("master", Normal32(count))
        .Out("m", Normal32(count))
        .Out("v", random_.Uniform(DType::kF32, count, 0, 1))
        .Out("param", Normal(count))
        .Out("sums", Tensor(DType::kF64, {1}))
        .run = [](Backend& backend, const CaseViews& x, int64_t) {
      const AdamWOptions options = {
          .learning_rate = 1e-2, .weight_decay = 0.1, .step = 7, .grad_scale = 0.5};
      backend.AdamW({options, x["grad"], x["master"], x["m"], x["v"], x["param"]});
      x["sums"].as<double>()[0] = backend.SumOfSquares({x["grad"]});
    };
  }

  const DType dtype_;
  RandomTensors& random_;
  std::vector<OperationCase> cases_;
};

// A case is in the group of its name without the shape: "MatMul [17,33]" in "MatMul".
OperationResult& GroupOf(const std::string& name, DType dtype,
                         std::vector<OperationResult>& results) {
  const std::string group = name.substr(0, name.find(" ["));
  for (OperationResult& result : results) {
    if (result.name == group && result.dtype == dtype) return result;
  }
  return results.emplace_back(OperationResult{.name = group, .dtype = dtype});
}

}  // namespace

std::vector<OperationResult> CompareOperations(Backend& device, Backend& cpu,
                                               const OperationSizes& sizes) {
  std::vector<OperationResult> results;
  RandomTensors random(20261122);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<OperationCase> cases;
    if (sizes.odd) cases = OperationCases(dtype, random);
    if (sizes.typical) {
      for (OperationCase& one : TypicalCases(dtype, random).Make()) cases.push_back(std::move(one));
    }
    for (const OperationCase& one : cases) {
      if (one.compared == OperationCase::kNever) continue;
      if (one.compared == OperationCase::kInF32 && dtype == DType::kBF16) continue;
      if (!sizes.only.empty() && one.name != sizes.only &&
          !one.name.starts_with(sizes.only + " [")) {
        continue;
      }
      OperationResult& result = GroupOf(one.name, dtype, results);
      const std::vector<Tensor> expected = RunCase(one, cpu), actual = RunCase(one, device);
      const absl::Status status = device.Synchronize();
      if (!status.ok() && result.error.empty()) result.error = status.ToString();
      for (size_t i = 0; i < expected.size(); ++i) {
        const CaseOperand& operand = one.operands[i];
        if (operand.slack == 0) continue;
        ++result.tensors;
        const double error = ErrorOf(actual[i], expected[i], operand.slack);
        if (error <= result.worst) continue;
        result.worst = error;
        result.worst_tensor = absl::StrCat(operand.name, " of ", one.name);
      }
    }
  }
  return results;
}

}  // namespace tessera::testing
