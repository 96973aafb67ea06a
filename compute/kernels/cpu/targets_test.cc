// Every operation has the same bits on every instruction set with fused multiply-adds. (The others
// are compared with the reference, as all are, by kernel_test.h.) Matrix products are oneDNN's,
// which chooses its instruction set by itself: it is the same one throughout this test, which
// therefore covers only the loops around the products.

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <bitset>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cpu_level.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/testing/kernel_test.h"
#include "compute/kernels/testing/random_tensors.h"
#include "compute/random/philox.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera {
namespace {

using testing::Cloned;
using testing::ExpectBitwiseEqual;

constexpr DType kF32 = DType::kF32;

// The CPU backend, recording the operations that it is asked for. An operation that is added to
// Backend does not compile until it is added here; from then on the test fails until a case calls
// it.
class NotingBackend final : public Backend {
 public:
  enum Operation {
    kFill,
    kCopy,
    kAdd,
    kScale,
    kMatMul,
    kMatMulTree,
    kAddBias,
    kSumRows,
    kEmbeddingForward,
    kEmbeddingBackward,
    kAddPositions,
    kAddPositionsBackward,
    kLayerNormForward,
    kLayerNormBackward,
    kRmsNormForward,
    kRmsNormBackward,
    kAddLayerNormForward,
    kAddRmsNormForward,
    kGeluForward,
    kGeluBackward,
    kSwiGluForward,
    kSwiGluBackward,
    kApplyDropout,
    kRope,
    kAttentionForward,
    kAttentionBackward,
    kCrossEntropyStats,
    kCrossEntropyLoss,
    kCrossEntropyBackward,
    kSumOfSquares,
    kSum,
    kSumOfSquaresByBlock,
    kAdamW,
    kOperations,
  };
  using Noted = std::bitset<kOperations>;

  const Noted& noted() const { return noted_; }

  Device device() const override { return cpu_->device(); }
  void Fill(TensorView x, double value) override { Call(kFill).Fill(x, value); }
  void Copy(TensorView from, TensorView to) override { Call(kCopy).Copy(from, to); }
  void Add(TensorView a, TensorView b, TensorView out) override { Call(kAdd).Add(a, b, out); }
  void Scale(TensorView x, double factor) override { Call(kScale).Scale(x, factor); }
  void MatMul(TensorView a, TensorView b, TensorView c, bool accumulate, TensorView bias) override {
    Call(kMatMul).MatMul(a, b, c, accumulate, bias);
  }
  void MatMulTree(std::span<const MatMulOperands> products, TensorView c) override {
    Call(kMatMulTree).MatMulTree(products, c);
  }
  void AddBias(TensorView x, TensorView bias, TensorView out) override {
    Call(kAddBias).AddBias(x, bias, out);
  }
  void SumRows(TensorView x, TensorView out, bool accumulate) override {
    Call(kSumRows).SumRows(x, out, accumulate);
  }
  void EmbeddingForward(TensorView table, TensorView ids, int64_t first_id,
                        TensorView out) override {
    Call(kEmbeddingForward).EmbeddingForward(table, ids, first_id, out);
  }
  void EmbeddingBackward(TensorView d_out, TensorView ids, int64_t first_id,
                         TensorView d_table) override {
    Call(kEmbeddingBackward).EmbeddingBackward(d_out, ids, first_id, d_table);
  }
  void AddPositions(TensorView table, int64_t sequence, TensorView x) override {
    Call(kAddPositions).AddPositions(table, sequence, x);
  }
  void AddPositionsBackward(TensorView d_x, int64_t sequence, TensorView d_table,
                            bool accumulate) override {
    Call(kAddPositionsBackward).AddPositionsBackward(d_x, sequence, d_table, accumulate);
  }
  void LayerNormForward(TensorView x, TensorView weight, TensorView bias, double epsilon,
                        TensorView out, TensorView mean, TensorView rstd) override {
    Call(kLayerNormForward).LayerNormForward(x, weight, bias, epsilon, out, mean, rstd);
  }
  void LayerNormBackward(TensorView d_out, TensorView x, TensorView weight, TensorView mean,
                         TensorView rstd, TensorView d_x, bool accumulate_dx, TensorView d_weight,
                         TensorView d_bias, bool accumulate) override {
    Call(kLayerNormBackward)
        .LayerNormBackward(d_out, x, weight, mean, rstd, d_x, accumulate_dx, d_weight, d_bias,
                           accumulate);
  }
  void RmsNormForward(TensorView x, TensorView weight, double epsilon, TensorView out,
                      TensorView rstd) override {
    Call(kRmsNormForward).RmsNormForward(x, weight, epsilon, out, rstd);
  }
  void AddLayerNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                           TensorView bias, double epsilon, TensorView out, TensorView mean,
                           TensorView rstd) override {
    Call(kAddLayerNormForward)
        .AddLayerNormForward(a, b, sum, weight, bias, epsilon, out, mean, rstd);
  }
  void AddRmsNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                         double epsilon, TensorView out, TensorView rstd) override {
    Call(kAddRmsNormForward).AddRmsNormForward(a, b, sum, weight, epsilon, out, rstd);
  }
  void RmsNormBackward(TensorView d_out, TensorView x, TensorView weight, TensorView rstd,
                       TensorView d_x, bool accumulate_dx, TensorView d_weight,
                       bool accumulate) override {
    Call(kRmsNormBackward)
        .RmsNormBackward(d_out, x, weight, rstd, d_x, accumulate_dx, d_weight, accumulate);
  }
  void GeluForward(TensorView x, TensorView out) override {
    Call(kGeluForward).GeluForward(x, out);
  }
  void GeluBackward(TensorView d_out, TensorView x, TensorView d_x) override {
    Call(kGeluBackward).GeluBackward(d_out, x, d_x);
  }
  void SwiGluForward(TensorView gate_up, TensorView out) override {
    Call(kSwiGluForward).SwiGluForward(gate_up, out);
  }
  void SwiGluBackward(TensorView d_out, TensorView gate_up, TensorView d_gate_up) override {
    Call(kSwiGluBackward).SwiGluBackward(d_out, gate_up, d_gate_up);
  }
  void ApplyDropout(const Dropout& dropout, TensorView x) override {
    Call(kApplyDropout).ApplyDropout(dropout, x);
  }
  void Rope(TensorView cos, TensorView sin, bool inverse, TensorView x) override {
    Call(kRope).Rope(cos, sin, inverse, x);
  }
  void AttentionForward(const AttentionOptions& options, TensorView q, TensorView k, TensorView v,
                        TensorView out, TensorView log_sum_exp) override {
    Call(kAttentionForward).AttentionForward(options, q, k, v, out, log_sum_exp);
  }
  void AttentionBackward(const AttentionOptions& options, TensorView d_out, TensorView q,
                         TensorView k, TensorView v, TensorView out, TensorView log_sum_exp,
                         TensorView d_q, TensorView d_k, TensorView d_v) override {
    Call(kAttentionBackward)
        .AttentionBackward(options, d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v);
  }
  void CrossEntropyStats(TensorView logits, int64_t valid, TensorView targets, int64_t first_id,
                         TensorView stats) override {
    Call(kCrossEntropyStats).CrossEntropyStats(logits, valid, targets, first_id, stats);
  }
  void CrossEntropyLoss(TensorView stats, TensorView targets, TensorView combined,
                        TensorView losses) override {
    Call(kCrossEntropyLoss).CrossEntropyLoss(stats, targets, combined, losses);
  }
  void CrossEntropyBackward(TensorView combined, TensorView targets, int64_t valid,
                            int64_t first_id, double grad_scale, TensorView logits) override {
    Call(kCrossEntropyBackward)
        .CrossEntropyBackward(combined, targets, valid, first_id, grad_scale, logits);
  }
  double SumOfSquares(TensorView x) override { return Call(kSumOfSquares).SumOfSquares(x); }
  double Sum(TensorView x) override { return Call(kSum).Sum(x); }
  void SumOfSquaresByBlock(TensorView x, int64_t block, std::span<double> sums) override {
    Call(kSumOfSquaresByBlock).SumOfSquaresByBlock(x, block, sums);
  }
  void AdamW(const AdamWOptions& options, TensorView grad, TensorView master, TensorView m,
             TensorView v, TensorView param) override {
    Call(kAdamW).AdamW(options, grad, master, m, v, param);
  }

 private:
  Backend& Call(Operation operation) {
    noted_.set(operation);
    return *cpu_;
  }

  const std::unique_ptr<Backend> cpu_ = MakeCpuBackend(1);
  Noted noted_;
};

// Operands of operations, by name. Operations write to copies of them.
using Operands = std::map<std::string, Tensor>;

// One or two operations that read and write operands.
struct Case {
  std::string_view name;
  Operands operands;
  std::function<void(Backend&, const Operands&)> run;
};

class TargetsTest : public ::testing::TestWithParam<DType> {
 protected:
  static DType dtype() { return GetParam(); }

  Tensor Normal(Shape shape, double mean = 0, double deviation = 1) {
    return random_.Normal(dtype(), std::move(shape), mean, deviation);
  }
  Tensor Normal32(Shape shape, double mean = 0, double deviation = 1) {
    return random_.Normal(kF32, std::move(shape), mean, deviation);
  }

  void Add(std::string_view name, std::vector<std::pair<std::string, Tensor>>&& operands,
           std::function<void(Backend&, const Operands&)> run) {
    cases_.push_back({name, {}, std::move(run)});
    for (auto& [key, tensor] : operands) cases_.back().operands.emplace(key, std::move(tensor));
  }

  void AddMovement();
  void AddProducts();
  void AddNorms();
  void AddActivations();
  void AddAttention();
  void AddLoss();
  void AddReductions();

  testing::RandomTensors random_{20261122};
  std::vector<Case> cases_;
};

// A vector of pairs of move-only elements, which an initializer list cannot hold.
template <typename... Rest>
void Collect(std::vector<std::pair<std::string, Tensor>>& into, std::string name, Tensor tensor,
             Rest... rest) {
  into.emplace_back(std::move(name), std::move(tensor));
  if constexpr (sizeof...(rest) > 0) Collect(into, std::move(rest)...);
}
template <typename... NamesAndTensors>
std::vector<std::pair<std::string, Tensor>> Of(NamesAndTensors... all) {
  std::vector<std::pair<std::string, Tensor>> operands;
  Collect(operands, std::move(all)...);
  return operands;
}

void TargetsTest::AddMovement() {
  Add("Fill", Of("x", Normal({5, 33})),
      [](Backend& backend, const Operands& o) { backend.Fill(o.at("x"), 0.3); });
  Add("Copy", Of("x", Normal({7, 131}), "same", Normal({7, 131}), "wide", Normal32({7, 131})),
      [](Backend& backend, const Operands& o) {
        backend.Copy(o.at("x"), o.at("same"));
        backend.Copy(o.at("x"), o.at("wide"));
        backend.Scale(o.at("wide"), 1.1);
        backend.Copy(o.at("wide"), o.at("x"));
      });
  Add("Add", Of("a", Normal({1001}), "b", Normal32({1001}), "out", Normal({1001})),
      [](Backend& backend, const Operands& o) { backend.Add(o.at("a"), o.at("b"), o.at("out")); });
  Add("Scale", Of("x", Normal({1001})),
      [](Backend& backend, const Operands& o) { backend.Scale(o.at("x"), 0.3); });
  Add("Embedding",
      Of("table", Normal({11, 77}), "ids", random_.Ids({29}, 0, 20), "out", Normal({29, 77}),
         "d_table", Normal32({11, 77})),
      [](Backend& backend, const Operands& o) {
        backend.EmbeddingForward(o.at("table"), o.at("ids"), 4, o.at("out"));
        backend.EmbeddingBackward(o.at("out"), o.at("ids"), 4, o.at("d_table"));
      });
  Add("Positions",
      Of("table", Normal({5, 77}), "x", Normal({15, 77}), "d_table", Normal32({5, 77}), "d_table2",
         Normal32({5, 77})),
      [](Backend& backend, const Operands& o) {
        backend.AddPositions(o.at("table"), 5, o.at("x"));
        backend.AddPositionsBackward(o.at("x"), 5, o.at("d_table"), true);
        backend.AddPositionsBackward(o.at("x"), 5, o.at("d_table2"), false);
      });
  Add("Rope", Of("cos", Normal32({5, 10}), "sin", Normal32({5, 10}), "x", Normal({2, 5, 3, 20})),
      [](Backend& backend, const Operands& o) {
        backend.Rope(o.at("cos"), o.at("sin"), false, o.at("x"));
        backend.Rope(o.at("cos"), o.at("sin"), true, o.at("x"));
      });
}

void TargetsTest::AddProducts() {
  // Sizes for which packed bf16 products are used, where the processor has them.
  Add("MatMul",
      Of("a", Normal({64, 96}), "b", Normal({96, 128}), "bias", Normal({128}), "c",
         Normal({64, 128}), "sum", Normal32({64, 128})),
      [](Backend& backend, const Operands& o) {
        backend.MatMul(o.at("a"), o.at("b"), o.at("c"), false, o.at("bias"));
        backend.MatMul(o.at("a"), o.at("b"), o.at("sum"), true, {});
      });
  Add("MatMulOfTransposed",
      Of("a", Normal({96, 64}), "b", Normal({128, 96}), "sum", Normal32({64, 128})),
      [](Backend& backend, const Operands& o) {
        backend.MatMul(o.at("a").view().Transpose(0, 1), o.at("b").view().Transpose(0, 1),
                       o.at("sum"), true, {});
      });
  Add("MatMulTree", Of("a", Normal({64, 96}), "b", Normal({96, 128}), "c", Normal32({64, 128})),
      [](Backend& backend, const Operands& o) {
        const std::vector<MatMulOperands> terms(7, {o.at("a"), o.at("b")});
        backend.MatMulTree(terms, o.at("c"));
      });
  Add("AddBias", Of("x", Normal32({9, 131}), "bias", Normal({131}), "out", Normal({9, 131})),
      [](Backend& backend, const Operands& o) {
        backend.AddBias(o.at("x"), o.at("bias"), o.at("out"));
      });
  Add("SumRows", Of("x", Normal({203, 131}), "sum", Normal32({131})),
      [](Backend& backend, const Operands& o) { backend.SumRows(o.at("x"), o.at("sum"), true); });
}

void TargetsTest::AddNorms() {
  const Shape matrix = {37, 131}, row = {131}, column = {37};
  Add("LayerNorm",
      Of("x", Normal(matrix, 1, 2), "weight", Normal(row), "bias", Normal(row), "out",
         Normal(matrix), "mean", Normal32(column), "rstd", Normal32(column), "d_out",
         Normal(matrix), "d_x", Normal(matrix), "d_weight", Normal32(row), "d_bias", Normal32(row)),
      [](Backend& backend, const Operands& o) {
        backend.LayerNormForward(o.at("x"), o.at("weight"), o.at("bias"), 1e-5, o.at("out"),
                                 o.at("mean"), o.at("rstd"));
        for (bool accumulate : {false, true}) {
          backend.LayerNormBackward(o.at("d_out"), o.at("x"), o.at("weight"), o.at("mean"),
                                    o.at("rstd"), o.at("d_x"), accumulate, o.at("d_weight"),
                                    o.at("d_bias"), accumulate);
        }
      });
  Add("AddNorms",
      Of("a", Normal(matrix, 1, 2), "b", Normal(matrix), "weight", Normal(row), "bias", Normal(row),
         "sum", Normal(matrix), "out", Normal(matrix), "out2", Normal(matrix), "mean",
         Normal32(column), "rstd", Normal32(column), "rstd2", Normal32(column)),
      [](Backend& backend, const Operands& o) {
        backend.AddLayerNormForward(o.at("a"), o.at("b"), o.at("sum"), o.at("weight"), o.at("bias"),
                                    1e-5, o.at("out"), o.at("mean"), o.at("rstd"));
        backend.AddRmsNormForward(o.at("a"), o.at("b"), o.at("sum"), o.at("weight"), 1e-5,
                                  o.at("out2"), o.at("rstd2"));
      });
  Add("RmsNorm",
      Of("x", Normal(matrix, 1, 2), "weight", Normal(row), "out", Normal(matrix), "rstd",
         Normal32(column), "d_out", Normal(matrix), "d_x", Normal(matrix), "d_weight",
         Normal32(row)),
      [](Backend& backend, const Operands& o) {
        backend.RmsNormForward(o.at("x"), o.at("weight"), 1e-5, o.at("out"), o.at("rstd"));
        for (bool accumulate : {false, true}) {
          backend.RmsNormBackward(o.at("d_out"), o.at("x"), o.at("weight"), o.at("rstd"),
                                  o.at("d_x"), accumulate, o.at("d_weight"), accumulate);
        }
      });
}

void TargetsTest::AddActivations() {
  const Shape narrow = {7, 1001}, wide = {7, 2002};
  // The second from the smallest to the largest numbers.
  for (double size : {3.0, 1e-38}) {
    Add("Gelu",
        Of("x", Normal(narrow, 0, size), "out", Normal(narrow), "d_out", Normal(narrow), "d_x",
           Normal(narrow)),
        [](Backend& backend, const Operands& o) {
          backend.GeluForward(o.at("x"), o.at("out"));
          backend.GeluBackward(o.at("d_out"), o.at("x"), o.at("d_x"));
        });
    Add("SwiGlu",
        Of("x", Normal(wide, 0, size), "out", Normal(narrow), "d_out", Normal(narrow), "d_x",
           Normal(wide)),
        [](Backend& backend, const Operands& o) {
          backend.SwiGluForward(o.at("x"), o.at("out"));
          backend.SwiGluBackward(o.at("d_out"), o.at("x"), o.at("d_x"));
        });
  }
  Add("Dropout", Of("x", Normal({21, 203})), [](Backend& backend, const Operands& o) {
    const Dropout dropout = {.probability = 0.3,
                             .stream = {.seed = 3, .use = RandomUse::kDropout, .stream = 12},
                             .first_sample = 5,
                             .rows_per_sample = 7,
                             .global_columns = 203};
    backend.ApplyDropout(dropout, o.at("x"));
  });
}

void TargetsTest::AddAttention() {
  for (double dropout : {0.0, 0.2}) {
    const Shape q = {2, 150, 4, 24}, kv = {2, 150, 2, 24};
    Add("Attention",
        Of("q", Normal(q, 0, 2), "k", Normal(kv, 0, 2), "v", Normal(kv), "out", Normal(q), "sums",
           Normal32({2, 4, 150}), "d_out", Normal(q), "d_q", Normal(q), "d_k", Normal(kv), "d_v",
           Normal(kv)),
        [dropout](Backend& backend, const Operands& o) {
          const AttentionOptions options = {
              .scale = 0.25,
              .dropout_probability = dropout,
              .dropout_stream = {.seed = 5, .use = RandomUse::kDropout, .stream = 77}};
          backend.AttentionForward(options, o.at("q"), o.at("k"), o.at("v"), o.at("out"),
                                   o.at("sums"));
          backend.AttentionBackward(options, o.at("d_out"), o.at("q"), o.at("k"), o.at("v"),
                                    o.at("out"), o.at("sums"), o.at("d_q"), o.at("d_k"),
                                    o.at("d_v"));
        });
  }
}

void TargetsTest::AddLoss() {
  const int64_t rows = 23, shards = 3, vocabulary = 4500, valid = 4403;
  Add("CrossEntropy",
      Of("logits", Normal({rows, vocabulary}, 0, 4), "targets", random_.Ids({rows}, -1000, 6000),
         "stats", Normal32({shards, rows, 3}, 1, 0.1), "combined", Normal32({rows, 3}), "losses",
         Normal32({rows})),
      [](Backend& backend, const Operands& o) {
        const TensorView stats = o.at("stats").view().Slice(0, 1, 2).Reshape({rows, 3});
        backend.CrossEntropyStats(o.at("logits"), valid, o.at("targets"), 1000, stats);
        backend.CrossEntropyLoss(o.at("stats"), o.at("targets"), o.at("combined"), o.at("losses"));
        backend.CrossEntropyBackward(o.at("combined"), o.at("targets"), valid, 1000, 1e-3,
                                     o.at("logits"));
      });
}

void TargetsTest::AddReductions() {
  Add("Sums", Of("x", Normal({200003}), "sums", Tensor(DType::kF64, {1000})),
      [](Backend& backend, const Operands& o) {
        double* const sums = o.at("sums").view().as<double>();
        sums[0] = backend.Sum(o.at("x"));
        sums[1] = backend.SumOfSquares(o.at("x"));
        backend.SumOfSquaresByBlock(o.at("x"), 257, {sums + 2, (200003 + 256) / 257});
      });
  for (int64_t step : {1, 3, 12345}) {
    Add("AdamW",
        Of("grad", Normal32({20011}, 0, 1e-3), "master", Normal32({20011}), "m",
           Normal32({20011}, 0, 1e-3), "v", random_.Uniform(kF32, {20011}, 0, 1e-6), "param",
           Normal({20011})),
        [step](Backend& backend, const Operands& o) {
          const AdamWOptions options = {
              .learning_rate = 1e-3, .weight_decay = 0.1, .step = step, .grad_scale = 0.7};
          backend.AdamW(options, o.at("grad"), o.at("master"), o.at("m"), o.at("v"), o.at("param"));
        });
  }
}

TEST_P(TargetsTest, EveryOperationHasTheSameBits) {
  AddMovement();
  AddProducts();
  AddNorms();
  AddActivations();
  AddAttention();
  AddLoss();
  AddReductions();
  ApplyCpuLevelLimit();
  std::vector<int64_t> targets;
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target <= HWY_AVX2) targets.push_back(target);
  }
  if (targets.empty()) GTEST_SKIP() << "there are no fused multiply-adds (needs: avx2)";
  NotingBackend backend;
  for (const Case& one : cases_) {
    SCOPED_TRACE(one.name);
    Operands expected;
    for (int64_t target : targets) {
      hwy::SetSupportedTargetsForTest(target);
      Operands operands;
      for (const auto& [name, tensor] : one.operands) operands.emplace(name, Cloned(tensor));
      one.run(backend, operands);
      if (target == targets.front()) {
        expected = std::move(operands);
        continue;
      }
      for (const auto& [name, tensor] : operands) {
        ExpectBitwiseEqual(tensor, expected.at(name), name + " on " + hwy::TargetName(target));
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  for (int i = 0; i < NotingBackend::kOperations; ++i) {
    EXPECT_TRUE(backend.noted()[i]) << "operation " << i << " of the list is in no case";
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, TargetsTest, ::testing::Values(DType::kF32, DType::kBF16),
                         DTypeParamName);

}  // namespace
}  // namespace tessera
