#include "compute/kernels/testing/operation_cases.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "compute/random/philox.h"

namespace tessera::testing {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr auto kWhole = CaseOperand::kWhole;
constexpr auto kRows = CaseOperand::kRows;
constexpr auto kSum = CaseOperand::kSum;

class Table {
 public:
  Table(DType dtype, RandomTensors& random) : dtype_(dtype), random_(random) {}

  std::vector<OperationCase> Make() {
    Movement();
    Products();
    Embeddings();
    for (const Shape& shape : {Shape{1, 3}, Shape{3, 16}, Shape{70, 131}, Shape{9, 768}}) {
      Norms(shape);
    }
    Activations();
    Attention();
    Loss();
    Reductions();
    Optimizer();
    return std::move(cases_);
  }

 private:
  Tensor Normal(Shape shape, double mean = 0, double deviation = 1) {
    return random_.Normal(dtype_, std::move(shape), mean, deviation);
  }
  Tensor Normal32(Shape shape, double mean = 0, double deviation = 1) {
    return random_.Normal(kF32, std::move(shape), mean, deviation);
  }
  OperationCase& Case(std::string name, const Shape& shape = {}) {
    cases_.push_back({.name = absl::StrCat(std::move(name), " ", ShapeToString(shape))});
    return cases_.back();
  }
  // A case whose rows are independent.
  OperationCase& ByRow(std::string name, const Shape& shape = {}) {
    OperationCase& made = Case(std::move(name), shape);
    made.by_row = true;
    return made;
  }

  void Movement();
  void Products();
  void Embeddings();
  void Norms(const Shape& shape);
  void Activations();
  void Attention();
  void Loss();
  void Reductions();
  void Optimizer();

  const DType dtype_;
  RandomTensors& random_;
  std::vector<OperationCase> cases_;
};

void Table::Movement() {
  ByRow("Fill, Copy, Add, Scale", {7, 1001})
      .In("a", Normal({7, 1001}), kRows)
      .In("b", Normal({7, 1001}), kRows)
      .Out("filled", Normal({7, 1001}), kRows)
      .Out("copied", Normal({7, 1001}), kRows)
      .Out("widened", Normal32({7, 1001}), kRows)
      .Out("sum", Normal({7, 1001}), kRows)
      .Out("mixed sum in place", Normal32({7, 1001}), kRows)
      .Out("scaled", Normal({7, 1001}), kRows)
      .run = [](Backend& backend, const CaseViews& x, int64_t) {
    backend.Fill({x["filled"], -1});
    backend.Fill({x["filled"].Slice(1, 3, 9), 0.375});
    backend.Copy({x["a"], x["copied"]});
    backend.Copy({x["a"], x["widened"]});
    backend.Add({x["a"], x["b"], x["sum"]});
    backend.Add({x["mixed sum in place"], x["b"], x["mixed sum in place"]});
    backend.Scale({x["scaled"], -0.3});
  };
  for (const Shape& shape : {Shape{1, 1}, Shape{37, 131}, Shape{3, 20000}}) {
    ByRow("AddBias", shape)
        .In("x", Normal32(shape))
        .In("bias", Normal({shape[1]}), kWhole)
        .Out("out", Normal(shape))
        .Out("without bias", Normal(shape))
        .Out("in place", Normal32(shape))
        .run = [](Backend& backend, const CaseViews& x, int64_t) {
      backend.AddBias({x["x"], x["bias"], x["out"]});
      backend.AddBias({x["x"], {}, x["without bias"]});
      backend.AddBias({x["in place"], {}, x["in place"]});
    };
  }
  for (const Shape& shape : {Shape{1, 1}, Shape{5, 77}, Shape{300, 131}}) {
    Case("SumRows", shape)
        .In("x", Normal({shape[0], shape[1] + 4}))
        .Out("sum", Normal32({shape[1]}), kSum)
        .Out("accumulated", Normal32({shape[1]}), kSum)
        .run = [](Backend& backend, const CaseViews& x, int64_t) {
      const TensorView part = x["x"].Slice(1, 3, x["x"].dim(1) - 1);
      backend.SumRows({part, x["sum"], false});
      backend.SumRows({part, x["accumulated"], true});
    };
  }
}

void Table::Products() {
  // The last has sizes for which packed bf16 products are used, where the processor has them.
  for (const Shape& size :
       {Shape{3, 8, 5}, Shape{17, 40, 24}, Shape{9, 13, 7}, Shape{64, 128, 96}}) {
    const int64_t m = size[0], n = size[1], k = size[2];
    OperationCase& made = Case("MatMul", size);
    made.In("a", Normal({m, k})).In("a'", Normal({k, m}));
    made.In("b", Normal({k, n})).In("b'", Normal({n, k})).In("bias", Normal({n}), kWhole);
    made.In("given pre", Normal({m, n}, 0, 2));
    for (const char* name : {"a b + bias", "pre", "act", "pre without bias", "act without bias"}) {
      made.Out(name, Normal({m, n}), kSum, 3);
    }
    made.Out("d_pre", Normal({m, n}), kSum, 3);
    made.Out("c + a' b'", Normal32({m, n}), kSum).Out("tree", Normal32({m, n}), kSum);
    made.Out("c + a' b", Normal32({m, n}), kSum).Out("a' b", Normal32({m, n}), kSum);
    made.Out("sums + b", Normal32({n}), kSum).Out("sums of a'", Normal32({m}), kSum);
    made.run = [](Backend& backend, const CaseViews& x, int64_t) {
      const TensorView transposed_a = x["a'"].Transpose(0, 1),
                       transposed_b = x["b'"].Transpose(0, 1);
      backend.MatMul({x["a"], x["b"], x["a b + bias"], false, x["bias"]});
      backend.MatMul({transposed_a, transposed_b, x["c + a' b'"], true});
      backend.MatMulSums(
          {transposed_a, x["b"], x["c + a' b"], x["sums + b"], /*sums_b=*/true, true});
      backend.MatMulSums(
          {transposed_a, x["b"], x["a' b"], x["sums of a'"], /*sums_b=*/false, false});
      const std::vector<MatMulOperands> terms(7, {x["a"], x["b"]});
      backend.MatMulTree({terms, x["tree"]});
      backend.MatMulGelu({x["a"], x["b"], x["bias"], x["pre"], x["act"]});
      backend.MatMulGelu({x["a"], transposed_b, {}, x["pre without bias"], x["act without bias"]});
      backend.MatMulGeluBackward({x["a"], x["b"], x["given pre"], x["d_pre"]});
    };
    OperationCase& summed = Case("MatMulGeluBackward with a bias", size);
    summed.compared = OperationCase::kInF32;
    summed.In("a", Normal({m, k}))
        .In("b", Normal({k, n}))
        .In("pre", Normal({m, n}, 0, 2))
        .Out("d_pre", Normal({m, n}), kSum, 3)
        .Out("d_bias", Normal32({n}), kSum, 3)
        .Out("accumulated d_bias", Normal32({n}), kSum, 3)
        .run = [](Backend& backend, const CaseViews& x, int64_t) {
      for (const char* name : {"d_bias", "accumulated d_bias"}) {
        const bool adds = name != std::string_view("d_bias");
        if (!backend.MatMulGeluBackward({x["a"], x["b"], x["pre"], x["d_pre"], x[name], adds})) {
          backend.SumRows({x["d_pre"], x[name], adds});
        }
      }
    };
  }
}

void Table::Embeddings() {
  // Some ids belong to another shard.
  ByRow("Embedding", {130, 77})
      .In("table", Normal({11, 77}), kWhole)
      .In("ids", random_.Ids({130}, 0, 20), kRows)
      .In("d_out", Normal({130, 77}))
      .Out("out", Normal({130, 77}))
      .Out("d_table", Normal32({11, 77}), kSum)
      .run = [](Backend& backend, const CaseViews& x, int64_t) {
    backend.EmbeddingForward({x["table"], x["ids"], 4, x["out"]});
    backend.EmbeddingBackward({x["d_out"], x["ids"], 4, x["d_table"]});
  };
  // A row is a sequence.
  ByRow("Positions", {9, 5, 60})
      .In("table", Normal({8, 60}), kWhole)
      .In("cos", random_.Uniform(kF32, {5, 10}, -1, 1), kWhole)
      .In("sin", random_.Uniform(kF32, {5, 10}, -1, 1), kWhole)
      .In("d_x", Normal({9, 5, 60}), kRows)
      .Out("x", Normal({9, 5, 60}), kRows)
      .Out("d_table", Normal32({8, 60}), kSum)
      .Out("accumulated", Normal32({8, 60}), kSum)
      .Out("rotated", Normal({9, 5, 3, 20}), kRows)
      .Out("rotated back", Normal({9, 5, 3, 20}), kRows)
      .run = [](Backend& backend, const CaseViews& x, int64_t) {
    const Shape tokens = {x["x"].dim(0) * 5, 60};
    backend.AddPositions({x["table"], 5, x["x"].Reshape(tokens)});
    backend.AddPositionsBackward({x["d_x"].Reshape(tokens), 5, x["d_table"], false});
    backend.AddPositionsBackward({x["d_x"].Reshape(tokens), 5, x["accumulated"], true});
    backend.Rope({x["cos"], x["sin"], false, x["rotated"].Slice(2, 1, 3)});
    backend.Rope({x["cos"], x["sin"], true, x["rotated back"]});
  };
}

void Table::Norms(const Shape& shape) {
  const Shape rows = {shape[0]}, columns = {shape[1]};
  ByRow("LayerNorm", shape)
      .In("x", Normal(shape, 0.5, 2))
      .In("weight", Normal(columns, 1, 0.3), kWhole)
      .In("bias", Normal(columns), kWhole)
      .In("d_out", Normal(shape))
      .Out("out", Normal(shape))
      .Out("mean", Normal32(rows), kRows)
      .Out("rstd", Normal32(rows), kRows)
      .Out("d_x", Normal(shape), CaseOperand::kMatrix, 2)
      .Out("residual d_x", Normal(shape), CaseOperand::kMatrix, 2)
      .Out("d_weight", Normal32(columns), kSum, 2)
      .Out("d_bias", Normal32(columns), kSum)
      .Out("accumulated d_weight", Normal32(columns), kSum, 2)
      .Out("accumulated d_bias", Normal32(columns), kSum)
      .run = [](Backend& backend, const CaseViews& x, int64_t) {
    backend.LayerNormForward(
        {x["x"], x["weight"], x["bias"], 1e-5, x["out"], x["mean"], x["rstd"]});
    backend.LayerNormBackward({x["d_out"], x["x"], x["weight"], x["mean"], x["rstd"], x["d_x"],
                               false, x["d_weight"], x["d_bias"], false});
    backend.LayerNormBackward({x["d_out"], x["x"], x["weight"], x["mean"], x["rstd"],
                               x["residual d_x"], true, x["accumulated d_weight"],
                               x["accumulated d_bias"], true});
  };
  ByRow("RmsNorm", shape)
      .In("x", Normal(shape, 0.5, 2))
      .In("weight", Normal(columns, 1, 0.3), kWhole)
      .In("d_out", Normal(shape))
      .Out("out", Normal(shape))
      .Out("rstd", Normal32(rows), kRows)
      .Out("d_x", Normal(shape), CaseOperand::kMatrix, 2)
      .Out("residual d_x", Normal(shape), CaseOperand::kMatrix, 2)
      .Out("d_weight", Normal32(columns), kSum, 2)
      .Out("accumulated d_weight", Normal32(columns), kSum, 2)
      .run = [](Backend& backend, const CaseViews& x, int64_t) {
    backend.RmsNormForward({x["x"], x["weight"], 1e-5, x["out"], x["rstd"]});
    backend.RmsNormBackward(
        {x["d_out"], x["x"], x["weight"], x["rstd"], x["d_x"], false, x["d_weight"], false});
    backend.RmsNormBackward({x["d_out"], x["x"], x["weight"], x["rstd"], x["residual d_x"], true,
                             x["accumulated d_weight"], true});
  };
  // In place: the sum is the second operand, or the first.
  OperationCase& fused = ByRow("sum and norm", shape);
  fused.compared = OperationCase::kInF32;
  fused.In("a", Normal(shape, 0.5, 2))
      .In("b", Normal(shape))
      .In("weight", Normal(columns, 1, 0.3), kWhole)
      .In("bias", Normal(columns), kWhole)
      .Out("sum", Normal(shape))
      .Out("LayerNorm", Normal(shape))
      .Out("mean", Normal32(rows), kRows)
      .Out("rstd", Normal32(rows), kRows)
      .Out("second sum", Normal(shape, 0.5, 2))
      .Out("RMSNorm", Normal(shape))
      .Out("second rstd", Normal32(rows), kRows)
      .run = [](Backend& backend, const CaseViews& x, int64_t) {
    backend.AddLayerNormForward({x["a"], x["sum"], x["sum"], x["weight"], x["bias"], 1e-5,
                                 x["LayerNorm"], x["mean"], x["rstd"]});
    backend.AddRmsNormForward({x["second sum"], x["b"], x["second sum"], x["weight"], 1e-5,
                               x["RMSNorm"], x["second rstd"]});
  };
}

void Table::Activations() {
  // Deviations: the smallest numbers, too.
  for (const auto& [shape, deviation] :
       {std::pair<Shape, double>{{5, 133}, 3}, {{3, 17001}, 3}, {{7, 1001}, 1e-38}}) {
    const Shape wide = {shape[0], 2 * shape[1]};
    ByRow(absl::StrCat("GELU, SwiGLU of ", deviation), shape)
        .In("x", Normal(shape, 0, deviation))
        .In("gate_up", Normal(wide, 0, deviation))
        .In("d_out", Normal(shape))
        .Out("GELU", Normal(shape))
        .Out("d_x", Normal(shape))
        .Out("d_x in place", Normal(shape))
        .Out("SwiGLU", Normal(shape))
        .Out("d_gate_up", Normal(wide))
        .run = [](Backend& backend, const CaseViews& x, int64_t) {
      backend.GeluForward({x["x"], x["GELU"]});
      backend.GeluBackward({x["d_out"], x["x"], x["d_x"]});
      backend.GeluBackward({x["d_x in place"], x["x"], x["d_x in place"]});
      backend.SwiGluForward({x["gate_up"], x["SwiGLU"]});
      backend.SwiGluBackward({x["d_out"], x["gate_up"], x["d_gate_up"]});
    };
    // The reference squares numbers below the smallest normal one without rounding.
    if (deviation < 1e-30) cases_.back().compared = OperationCase::kNever;
  }
  // A shard of a tensor; and columns whose blocks of random numbers lie around 2^32, where sixteen
  // lanes straddle the carry into the high word.
  const int64_t carry = int64_t{1} << 34;
  for (const auto& [columns, global_columns, column_offset] :
       {std::array<int64_t, 3>{2051, 5000, 1237}, {300, carry + 1000, carry - 37}}) {
    const Dropout dropout = {
        .probability = 0.3,
        .stream = {.seed = 3, .use = RandomUse::kDropout, .stream = 0x123456789abcdef},
        .first_sample = 5,
        .rows_per_sample = 7,
        .row_offset = 3,
        .global_columns = global_columns,
        .column_offset = column_offset};
    ByRow("Dropout", {21, columns}).Out("x", Normal({21, columns}, 3, 0.5)).run =
        [dropout](Backend& backend, const CaseViews& x, int64_t first_row) {
          Dropout own = dropout;
          own.row_offset += first_row;
          backend.ApplyDropout({own, x["x"]});
        };
  }
}

// q, k and v are views into one fused buffer, as in the models.
void Table::Attention() {
  struct Sizes {
    int64_t batch, sequence, heads, kv_heads, head_size;
    double dropout;
  };
  for (const Sizes& s : std::vector<Sizes>{{1, 1, 1, 1, 1, 0},
                                           {2, 5, 3, 3, 7, 0},
                                           {2, 64, 2, 2, 64, 0},
                                           {1, 130, 2, 1, 16, 0},
                                           {1, 257, 2, 2, 20, 0},
                                           {2, 37, 8, 2, 16, 0},
                                           {1, 130, 1, 1, 128, 0},
                                           {4, 33, 4, 2, 16, 0.25},
                                           {1, 300, 2, 1, 8, 0.5}}) {
    const Shape q = {s.batch, s.sequence, s.heads, s.head_size};
    const Shape fused = {s.batch, s.sequence, s.heads + 2 * s.kv_heads, s.head_size};
    ByRow("Attention", {s.batch, s.sequence, s.heads, s.kv_heads, s.head_size})
        .In("qkv", Normal(fused), kRows)
        .In("d_out", Normal(q), kRows)
        .Out("out", Normal(q), kRows, 2)
        .Out("log_sum_exp", Normal32({s.batch, s.heads, s.sequence}), kRows, 4)
        .Out("d_qkv", Normal(fused), kRows, 4)
        .run = [s](Backend& backend, const CaseViews& x, int64_t first_sample) {
      const AttentionOptions options = {
          .scale = 1 / std::sqrt(static_cast<double>(s.head_size)),
          .dropout_probability = s.dropout,
          .dropout_stream = {.seed = 5, .use = RandomUse::kDropout, .stream = 77},
          .first_sample = 9 + first_sample,
          .first_head = 3};
      const auto part = [&](const char* name, int i) {
        const int64_t cuts[] = {0, s.heads, s.heads + s.kv_heads, s.heads + 2 * s.kv_heads};
        return x[name].Slice(2, cuts[i], cuts[i + 1]);
      };
      backend.AttentionForward(
          {options, part("qkv", 0), part("qkv", 1), part("qkv", 2), x["out"], x["log_sum_exp"]});
      backend.AttentionBackward({options, x["d_out"], part("qkv", 0), part("qkv", 1),
                                 part("qkv", 2), x["out"], x["log_sum_exp"], part("d_qkv", 0),
                                 part("d_qkv", 1), part("d_qkv", 2)});
    };
  }
}

// Three shards of the vocabulary, whose last has padding columns; some targets are ignored.
void Table::Loss() {
  constexpr int64_t kRowCount = 9, kColumns = 75, kShards = 3;
  for (const DType width : {dtype_, kF32}) {
    OperationCase& made = Case("CrossEntropy of shards", {kShards, kRowCount, kColumns});
    made.In("targets", random_.Ids({kRowCount}, -20, 201), kRows);
    made.Out("stats", Normal32({kShards, kRowCount, 3}), kSum);
    made.Out("combined", Normal32({kRowCount, 3}), kSum);
    made.Out("losses", Normal32({kRowCount}), kSum);
    for (const char* shard : {"0", "1", "2"}) {
      made.Out(shard, random_.Normal(width, {kRowCount, kColumns}, 0, 4), kSum);
    }
    made.run = [](Backend& backend, const CaseViews& x, int64_t) {
      const char* const shards[] = {"0", "1", "2"};
      const int64_t valid[] = {75, 75, 51};
      for (int64_t s = 0; s < kShards; ++s) {
        backend.CrossEntropyStats({x[shards[s]], valid[s], x["targets"], s * kColumns,
                                   x["stats"].Slice(0, s, s + 1).Reshape({kRowCount, 3})});
      }
      backend.CrossEntropyLoss({x["stats"], x["targets"], x["combined"], x["losses"]});
      for (int64_t s = 0; s < kShards; ++s) {
        backend.CrossEntropyBackward(
            {x["combined"], x["targets"], valid[s], s * kColumns, 0.125, x[shards[s]]});
      }
    };
  }
  // Long rows and large logits.
  for (const auto& [shape, deviation] :
       {std::pair<Shape, double>{{23, 4500}, 4}, {{3, 20011}, 300}}) {
    const int64_t valid = shape[1] - 97;
    ByRow("CrossEntropy", shape)
        .In("targets", random_.Ids({shape[0]}, -1000, shape[1]), kRows)
        .Out("stats", Normal32({shape[0], 3}), kRows)
        .Out("combined", Normal32({shape[0], 3}), kRows)
        .Out("losses", Normal32({shape[0]}), kRows)
        .Out("logits", Normal(shape, 0, deviation))
        .run = [valid](Backend& backend, const CaseViews& x, int64_t) {
      const int64_t rows = x["targets"].dim(0);
      backend.CrossEntropyStats({x["logits"], valid, x["targets"], 0, x["stats"]});
      backend.CrossEntropyLoss(
          {x["stats"].Reshape({1, rows, 3}), x["targets"], x["combined"], x["losses"]});
      backend.CrossEntropyBackward({x["combined"], x["targets"], valid, 0, 1, x["logits"]});
    };
    ByRow("CrossEntropyGradient", shape)
        .In("targets", random_.Ids({shape[0]}, -1000, shape[1]), kRows)
        .Out("stats", Normal32({shape[0], 3}), kRows)
        .Out("combined", Normal32({shape[0], 3}), kRows)
        .Out("losses", Normal32({shape[0]}), kRows)
        .Out("logits", Normal(shape, 0, deviation))
        .run = [valid](Backend& backend, const CaseViews& x, int64_t) {
      const int64_t rows = x["targets"].dim(0);
      backend.CrossEntropyGradient({x["logits"], valid, x["targets"], 1,
                                    x["stats"].Reshape({1, rows, 3}), x["combined"], x["losses"]});
    };
  }
}

// Sums are tensors here, which are written by the host.
void Table::Reductions() {
  for (const int64_t count : {1, 31, 65536, 65537, 200003}) {
    // The whole, nothing, an odd part, and a single block.
    const int64_t block = 257;
    Case("Sum, SumOfSquares", {count})
        .In("x", Normal({count}, 0.25))
        .Out("sums", Tensor(DType::kF64, {2}), kSum, 100)
        .Out("of parts", Tensor(DType::kF64, {4}), kSum, 100)
        .run = [=](Backend& backend, const CaseViews& x, int64_t) {
      x["sums"].as<double>()[0] = backend.Sum({x["x"]});
      x["sums"].as<double>()[1] = backend.SumOfSquares({x["x"]});
      const TensorView parts[] = {x["x"], TensorView(), x["x"].Slice(0, count / 3, count),
                                  x["x"].Slice(0, 0, std::min(count, block))};
      backend.SumsOfSquares({parts, block, {x["of parts"].as<double>(), 4}});
    };
  }
}

// Every split of a range, as ZeRO splits the optimizer's work. Squares of the smaller gradients are
// subnormal at times.
void Table::Optimizer() {
  for (const auto& [size, step] : {std::pair<double, int64_t>{1, 1}, {1, 10}, {1e-19, 12345}}) {
    const AdamWOptions options = {
        .learning_rate = 1e-2, .weight_decay = 0.1, .step = step, .grad_scale = 0.5};
    const Shape count = {20011};
    ByRow(absl::StrCat("AdamW, step ", step), count)
        .In("grad", Normal32(count, 0, size), kRows)
        .Out("master", Normal32(count), kRows)
        .Out("m", Normal32(count, 0, size), kRows)
        .Out("v", random_.Uniform(kF32, count, 0, 0.1 * size * size), kRows)
        .Out("param", Normal(count), kRows)
        .run = [options](Backend& backend, const CaseViews& x, int64_t) {
      backend.AdamW({options, x["grad"], x["master"], x["m"], x["v"], x["param"]});
    };
    if (size < 1) cases_.back().compared = OperationCase::kNever;
  }
  // Runs of many lengths, with weight decay or without, are updated in one call.
  const Shape count = {11160};
  Case("AdamWAll", count)
      .In("grad", Normal32(count))
      .Out("master", Normal32(count), kSum)
      .Out("m", Normal32(count), kSum)
      .Out("v", random_.Uniform(kF32, count, 0, 1), kSum)
      .Out("param", Normal(count), kSum)
      .run = [](Backend& backend, const CaseViews& x, int64_t) {
    std::vector<AdamWOperands> parts;
    for (int64_t i = 0, begin = 0; i < 61; ++i) {
      const int64_t end = i == 60 ? x["grad"].dim(0) : begin + i % 7 * 37;
      const auto part = [&](const char* name) { return x[name].Slice(0, begin, end); };
      parts.push_back({part("grad"), part("master"), part("m"), part("v"), part("param"),
                       i % 2 == 0 ? 0.1 : 0});
      begin = end;
    }
    backend.AdamWAll({{.learning_rate = 1e-2, .step = 3, .grad_scale = 0.5}, parts});
  };
}

}  // namespace

const TensorView& CaseViews::operator[](std::string_view name) const {
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (operands_[i].name == name) return views_[i];
  }
  LOG(FATAL) << "the case has no operand " << name;
}

std::vector<Tensor> RunCase(const OperationCase& one, Backend& backend) {
  std::vector<Tensor> memory;
  for (const CaseOperand& operand : one.operands) memory.push_back(Cloned(operand.value));
  const std::vector<TensorView> views(memory.begin(), memory.end());
  one.run(backend, CaseViews(one.operands, views), /*first_row=*/0);
  return memory;
}

std::vector<OperationCase> OperationCases(DType dtype, RandomTensors& random) {
  return Table(dtype, random).Make();
}

}  // namespace tessera::testing
