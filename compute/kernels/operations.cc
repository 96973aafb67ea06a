// What every operation requires of its operands, and the operations that are made of others.

#include "compute/kernels/operations.h"

#include <glog/logging.h>

#include <initializer_list>

#include "compute/kernels/backend.h"
#include "layout/dtype.h"

namespace tessera {
namespace ops {
namespace {

using Views = std::initializer_list<const TensorView*>;

// Returns the extent of the last dim; all other dims are rows.
int64_t ColumnsOf(const TensorView& x) { return x.rank() == 0 ? 1 : x.dim(x.rank() - 1); }
int64_t RowsOf(const TensorView& x) {
  const int64_t columns = ColumnsOf(x);
  return columns > 0 ? x.elements() / columns : x.rank() == 2 ? x.dim(0) : 0;
}

class Checks {
 public:
  Checks(const char* operation, bool strict) : operation_(operation), strict_(strict) {}

  void That(bool condition, const TensorView& x, const char* required) const {
    CHECK(condition) << operation_ << ": " << DTypeName(x.dtype()) << ShapeToString(x.shape())
                     << ", which " << required;
  }
  void SameShape(const TensorView& x, Views others) const {
    for (const TensorView* other : others) {
      That(other->shape() == x.shape(), *other, "has another shape");
    }
  }
  void Count(const TensorView& x, int64_t elements) const {
    That(x.elements() == elements, x, "has another number of elements");
  }
  void SameDType(const TensorView& x, Views others) const {
    for (const TensorView* other : others) {
      That(!strict_ || other->dtype() == x.dtype(), *other, "has another dtype");
    }
  }
  void Contiguous(Views views) const {
    for (const TensorView* x : views) That(!strict_ || x->contiguous(), *x, "is not contiguous");
  }
  // Checks contiguous fp32.
  void Statistic(const TensorView& x, int64_t elements) const {
    Count(x, elements);
    That(!strict_ || x.dtype() == DType::kF32, x, "is not float32");
    Contiguous({&x});
  }
  // Checks one 32-bit id per row.
  void Ids(const TensorView& x, int64_t rows) const {
    Count(x, rows);
    That(x.dtype() == DType::kI32 && x.contiguous(), x, "is not of contiguous ids");
  }
  // Checks a vector with an element for each column of a matrix of the same dtype.
  void Vector(const TensorView& x, const TensorView& matrix) const {
    Count(x, ColumnsOf(matrix));
    SameDType(matrix, {&x});
    Contiguous({&x});
  }
  // Checks that the rows are `units` equal runs.
  void Units(const TensorView& x, int64_t units) const {
    That(units > 0 && (units & (units - 1)) == 0 && RowsOf(x) % units == 0, x,
         "does not consist of that many units");
  }
  // Checks matrices of one size and dtype, dense in their columns.
  void Matrices(const TensorView& x, Views others) const {
    Dense(x);
    SameDType(x, others);
    for (const TensorView* other : others) {
      Dense(*other);
      That(RowsOf(*other) == RowsOf(x) && ColumnsOf(*other) == ColumnsOf(x), *other,
           "has another size");
    }
  }
  // Checks that x is dense in its columns, and contiguous if it has more than two dims.
  void Dense(const TensorView& x) const {
    That(x.rank() >= 1, x, "is no matrix");
    const bool dense = x.rank() == 2 ? x.dim(1) <= 1 || x.stride(1) == 1 : x.contiguous();
    That(!strict_ || dense, x, "is not dense in its last dim");
  }
  // Checks an fp32 matrix.
  void Sums(const TensorView& x) const {
    Dense(x);
    That(!strict_ || x.dtype() == DType::kF32, x, "is not float32");
  }
  void Product(const TensorView& a, const TensorView& b, const TensorView& c,
               const TensorView& bias) const {
    That(a.rank() == 2 && b.rank() == 2 && c.rank() == 2, c, "is no product of matrices");
    That(b.dim(0) == a.dim(1), b, "does not fit the first factor");
    That(c.dim(0) == a.dim(0) && c.dim(1) == b.dim(1), c, "is no result of the factors");
    SameDType(a, {&b});
    That(!strict_ || c.dtype() == a.dtype() || c.dtype() == DType::kF32, c, "has another dtype");
    Dense(c);
    if (bias.empty()) return;
    Count(bias, c.dim(1));
    SameDType(a, {&bias});
    Contiguous({&bias});
  }
  // Checks a norm of the rows of x: which statistics and gradients it has depends on the operation.
  template <typename Op>
  void Norm(const Op& op, const TensorView& x, Views others) const {
    Matrices(x, others);
    Vector(op.weight, x);
    Statistic(op.rstd, RowsOf(x));
    if constexpr (requires { op.mean; }) Statistic(op.mean, RowsOf(x));
    if constexpr (requires { op.bias; }) Vector(op.bias, x);
    if constexpr (requires { op.d_weight; }) Statistic(op.d_weight, ColumnsOf(x));
    if constexpr (requires { op.d_bias; }) Statistic(op.d_bias, ColumnsOf(x));
  }
  // Checks a gate and an up projection side by side, and their one result.
  void GateAndUp(const TensorView& gate_up, const TensorView& out) const {
    Dense(gate_up);
    Dense(out);
    SameDType(out, {&gate_up});
    That(RowsOf(gate_up) == RowsOf(out) && ColumnsOf(gate_up) == 2 * ColumnsOf(out), gate_up,
         "does not have two columns for each of the output");
  }
  enum class Keys { kAsQueries, kEarlierToo };  // whether there may be more keys than queries
  // Checks operands [B,T,heads,D] of attention, dense in D.
  void Heads(const TensorView& q, Views queries, const TensorView& k, Views keys,
             Keys which = Keys::kAsQueries) const {
    That(q.rank() == 4 && k.rank() == 4, q, "is not [B,T,H,D]");
    const bool fits = which == Keys::kAsQueries ? k.dim(1) == q.dim(1) : k.dim(1) >= q.dim(1);
    That(k.dim(0) == q.dim(0) && fits && k.dim(3) == q.dim(3), k, "does not fit the queries");
    That(k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0, k, "has no whole group of query heads each");
    SameShape(q, queries);
    SameShape(k, keys);
    SameDType(q, {&k});
    SameDType(q, queries);
    SameDType(q, keys);
    DenseHeads({&q, &k});
    DenseHeads(queries);
    DenseHeads(keys);
  }

 private:
  void DenseHeads(Views views) const {
    for (const TensorView* x : views) {
      That(!strict_ || x->dim(3) <= 1 || x->stride(3) == 1, *x, "is not dense in its last dim");
    }
  }

  const char* const operation_;
  const bool strict_;
};

bool SameLayout(const TensorView& x, const TensorView& y) {
  return x.dtype() == y.dtype() && x.shape() == y.shape() && x.strides() == y.strides();
}

}  // namespace

void Check(const Fill& /*op*/, bool /*strict*/) {}

void Check(const Copy& op, bool strict) {
  const Checks check("Copy", strict);
  check.SameShape(op.from, {&op.to});
  check.That((op.from.dtype() == DType::kI32) == (op.to.dtype() == DType::kI32), op.to,
             "cannot be converted to");
}

void Check(const Add& op, bool strict) {
  const Checks check("Add", strict);
  check.SameShape(op.a, {&op.b, &op.out});
  check.Contiguous({&op.a, &op.b, &op.out});
}

void Check(const Scale& op, bool strict) { Checks("Scale", strict).Contiguous({&op.x}); }

void Check(const MatMul& op, bool strict) {
  Checks("MatMul", strict).Product(op.a, op.b, op.c, op.bias);
}

void Check(const MatMulTree& op, bool strict) {
  const Checks check("MatMulTree", strict);
  check.That(!op.products.empty(), op.c, "is a sum of nothing");
  check.Sums(op.c);
  for (const MatMulOperands& product : op.products) {
    check.Product(product.a, product.b, op.c, {});
    check.That(!strict || (SameLayout(product.a, op.products[0].a) &&
                           SameLayout(product.b, op.products[0].b)),
               product.a, "has another layout than the first product, or its factor has");
  }
}

void Check(const MatMulGelu& op, bool strict) {
  const Checks check("MatMulGelu", strict);
  check.Product(op.a, op.b, op.pre, op.bias);
  check.SameShape(op.pre, {&op.act});
  check.SameDType(op.pre, {&op.act});
  check.Contiguous({&op.pre, &op.act});
}

void Check(const MatMulGeluBackward& op, bool strict) {
  const Checks check("MatMulGeluBackward", strict);
  check.Product(op.a, op.b, op.d_pre, {});
  check.SameShape(op.pre, {&op.d_pre});
  check.SameDType(op.pre, {&op.d_pre});
  check.Contiguous({&op.pre, &op.d_pre});
  if (!op.d_bias.empty()) check.Statistic(op.d_bias, op.d_pre.dim(1));
}

void Check(const MatMulSums& op, bool strict) {
  const Checks check("MatMulSums", strict);
  check.Product(op.a, op.b, op.c, {});
  check.Sums(op.c);
  check.Dense(op.sums_b ? op.b : op.a.Transpose(0, 1));
  check.Statistic(op.sums, op.c.dim(op.sums_b ? 1 : 0));
}

void Check(const AddBias& op, bool strict) {
  const Checks check("AddBias", strict);
  check.SameShape(op.x, {&op.out});
  check.Sums(op.x);
  check.Dense(op.out);
  if (!op.bias.empty()) check.Vector(op.bias, op.out);
}

void Check(const SumRows& op, bool strict) {
  const Checks check("SumRows", strict);
  check.Dense(op.x);
  check.Statistic(op.out, ColumnsOf(op.x));
}

void Check(const EmbeddingForward& op, bool strict) {
  const Checks check("EmbeddingForward", strict);
  check.Dense(op.table);
  check.Dense(op.out);
  check.SameDType(op.table, {&op.out});
  check.That(ColumnsOf(op.out) == ColumnsOf(op.table), op.out, "has other columns than the table");
  check.Ids(op.ids, RowsOf(op.out));
}

void Check(const EmbeddingBackward& op, bool strict) {
  const Checks check("EmbeddingBackward", strict);
  check.Dense(op.d_out);
  check.Sums(op.d_table);
  check.That(ColumnsOf(op.d_out) == ColumnsOf(op.d_table), op.d_out,
             "has other columns than the table");
  check.Ids(op.ids, RowsOf(op.d_out));
  check.Units(op.d_out, op.units);
}

void Check(const AddPositions& op, bool strict) {
  const Checks check("AddPositions", strict);
  check.Dense(op.table);
  check.Dense(op.x);
  check.SameDType(op.table, {&op.x});
  check.That(ColumnsOf(op.table) == ColumnsOf(op.x) && RowsOf(op.table) >= op.sequence, op.table,
             "does not have every position");
}

void Check(const AddPositionsBackward& op, bool strict) {
  const Checks check("AddPositionsBackward", strict);
  check.Dense(op.d_x);
  check.Sums(op.d_table);
  check.That(ColumnsOf(op.d_table) == ColumnsOf(op.d_x) && RowsOf(op.d_table) >= op.sequence,
             op.d_table, "does not have every position");
  check.That(op.sequence > 0 && RowsOf(op.d_x) % op.sequence == 0, op.d_x,
             "is not of whole sequences");
  check.Units(op.d_x, op.units);
}

void Check(const LayerNormForward& op, bool strict) {
  Checks("LayerNormForward", strict).Norm(op, op.x, {&op.out});
}

void Check(const LayerNormBackward& op, bool strict) {
  Checks("LayerNormBackward", strict).Norm(op, op.x, {&op.d_out, &op.d_x});
}

void Check(const RmsNormForward& op, bool strict) {
  Checks("RmsNormForward", strict).Norm(op, op.x, {&op.out});
}

void Check(const RmsNormBackward& op, bool strict) {
  Checks("RmsNormBackward", strict).Norm(op, op.x, {&op.d_out, &op.d_x});
}

void Check(const AddLayerNormForward& op, bool strict) {
  const Checks check("AddLayerNormForward", strict);
  check.Norm(op, op.sum, {&op.a, &op.b, &op.out});
  check.SameShape(op.sum, {&op.a, &op.b});
}

void Check(const AddRmsNormForward& op, bool strict) {
  const Checks check("AddRmsNormForward", strict);
  check.Norm(op, op.sum, {&op.a, &op.b, &op.out});
  check.SameShape(op.sum, {&op.a, &op.b});
}

void Check(const GeluForward& op, bool strict) {
  const Checks check("GeluForward", strict);
  check.SameShape(op.x, {&op.out});
  check.Matrices(op.x, {&op.out});
}

void Check(const GeluBackward& op, bool strict) {
  const Checks check("GeluBackward", strict);
  check.SameShape(op.x, {&op.d_out, &op.d_x});
  check.Matrices(op.x, {&op.d_out, &op.d_x});
}

void Check(const SwiGluForward& op, bool strict) {
  Checks("SwiGluForward", strict).GateAndUp(op.gate_up, op.out);
}

void Check(const SwiGluBackward& op, bool strict) {
  const Checks check("SwiGluBackward", strict);
  check.Matrices(op.gate_up, {&op.d_gate_up});
  check.GateAndUp(op.gate_up, op.d_out);
}

void Check(const ApplyDropout& op, bool strict) {
  const Checks check("ApplyDropout", strict);
  if (op.dropout.probability == 0) return;
  check.Dense(op.x);
  check.That(op.dropout.rows_per_sample >= 1 && op.dropout.row_offset >= 0 &&
                 op.dropout.column_offset + ColumnsOf(op.x) <= op.dropout.global_columns,
             op.x, "lies outside the logical tensor");
}

void Check(const Rope& op, bool strict) {
  const Checks check("Rope", strict);
  check.That(op.x.rank() == 4 && op.x.dim(3) % 2 == 0, op.x, "has no pairs in heads");
  check.That(!strict || op.x.stride(3) == 1, op.x, "is not dense in its last dim");
  for (const TensorView* angles : {&op.cos, &op.sin}) {
    check.Sums(*angles);
    check.That(ColumnsOf(*angles) == op.x.dim(3) / 2 && RowsOf(*angles) >= op.x.dim(1), *angles,
               "does not have an angle for every pair and position");
  }
}

void Check(const AttentionForward& op, bool strict) {
  const Checks check("AttentionForward", strict);
  check.Heads(op.q, {&op.out}, op.k, {&op.v}, Checks::Keys::kEarlierToo);
  check.That(op.options.dropout_probability == 0 || op.k.dim(1) == op.q.dim(1), op.k,
             "has no dropout for earlier tokens");
  check.Statistic(op.log_sum_exp, op.q.dim(0) * op.q.dim(1) * op.q.dim(2));
  CHECK_GT(op.options.scale, 0);
}

void Check(const AttentionBackward& op, bool strict) {
  const Checks check("AttentionBackward", strict);
  check.Heads(op.q, {&op.out, &op.d_out, &op.d_q}, op.k, {&op.v, &op.d_k, &op.d_v});
  check.Statistic(op.log_sum_exp, op.q.dim(0) * op.q.dim(1) * op.q.dim(2));
}

void Check(const CrossEntropyStats& op, bool strict) {
  const Checks check("CrossEntropyStats", strict);
  check.Dense(op.logits);
  check.That(op.valid >= 0 && op.valid <= ColumnsOf(op.logits), op.logits, "has fewer columns");
  check.Ids(op.targets, RowsOf(op.logits));
  check.Statistic(op.stats, 3 * RowsOf(op.logits));
}

void Check(const CrossEntropyLoss& op, bool strict) {
  const Checks check("CrossEntropyLoss", strict);
  check.That(op.stats.rank() == 3 && op.stats.dim(0) >= 1 && op.stats.dim(2) == 3, op.stats,
             "is not [S,R,3]");
  const int64_t rows = op.stats.dim(1);
  check.Statistic(op.stats, op.stats.elements());
  check.Statistic(op.combined, 3 * rows);
  check.Statistic(op.losses, rows);
  check.Ids(op.targets, rows);
}

void Check(const CrossEntropyBackward& op, bool strict) {
  const Checks check("CrossEntropyBackward", strict);
  check.Dense(op.logits);
  check.That(op.valid >= 0 && op.valid <= ColumnsOf(op.logits), op.logits, "has fewer columns");
  check.Ids(op.targets, RowsOf(op.logits));
  check.Statistic(op.combined, 3 * RowsOf(op.logits));
}

void Check(const CrossEntropyGradient& op, bool strict) {
  Check(CrossEntropyStats{op.logits, op.valid, op.targets, 0, op.stats}, strict);
  Check(CrossEntropyLoss{op.stats, op.targets, op.combined, op.losses}, strict);
}

void Check(const SumOfSquares& op, bool strict) {
  Checks("SumOfSquares", strict).Contiguous({&op.x});
}

void Check(const Sum& op, bool strict) { Checks("Sum", strict).Contiguous({&op.x}); }

void Check(const SumsOfSquares& op, bool strict) {
  const Checks check("SumsOfSquares", strict);
  CHECK_GE(op.block, 1);
  CHECK_EQ(op.parts.size(), op.sums.size());
  for (const TensorView& part : op.parts) {
    if (part.empty()) continue;
    check.Contiguous({&part});
    check.SameDType(op.parts[0], {&part});
  }
}

void Check(const AdamW& op, bool strict) {
  const Checks check("AdamW", strict);
  const int64_t count = op.param.elements();
  check.That(!strict || !op.master.empty() || op.param.dtype() == DType::kF32, op.param,
             "needs master weights, because it is rounded");
  if (!op.master.empty()) check.Statistic(op.master, count);
  for (const TensorView* x : {&op.grad, &op.m, &op.v}) check.Statistic(*x, count);
  check.Contiguous({&op.param});
}

void Check(const AdamWAll& op, bool strict) {
  for (const AdamWOperands& part : op.parts) {
    Check(AdamW{op.options, part.grad, part.master, part.m, part.v, part.param}, strict);
    Checks("AdamWAll", strict).SameDType(op.parts[0].param, {&part.param});
  }
}

}  // namespace ops

void Backend::Run(const ops::MatMulGelu& op) {
  MatMul({op.a, op.b, op.pre, /*accumulate=*/false, op.bias});
  GeluForward({op.pre, op.act});
}

void Backend::Run(const ops::CrossEntropyGradient& op) {
  CrossEntropyStats({op.logits, op.valid, op.targets, 0, op.stats.Reshape({op.stats.dim(1), 3})});
  CrossEntropyLoss({op.stats, op.targets, op.combined, op.losses});
  CrossEntropyBackward({op.combined, op.targets, op.valid, 0, op.grad_scale, op.logits});
}

bool Backend::Run(const ops::MatMulGeluBackward& op) {
  MatMul({op.a, op.b, op.d_pre, /*accumulate=*/false});
  GeluBackward({op.d_pre, op.pre, op.d_pre});
  return false;
}

void Backend::Run(const ops::MatMulSums& op) {
  MatMul({op.a, op.b, op.c, op.accumulate});
  SumRows({op.sums_b ? op.b : op.a.Transpose(0, 1), op.sums, op.accumulate});
}

void Backend::Run(const ops::AddLayerNormForward& op) {
  Add({op.a, op.b, op.sum});
  LayerNormForward({op.sum, op.weight, op.bias, op.epsilon, op.out, op.mean, op.rstd});
}

void Backend::Run(const ops::AddRmsNormForward& op) {
  Add({op.a, op.b, op.sum});
  RmsNormForward({op.sum, op.weight, op.epsilon, op.out, op.rstd});
}

void Backend::Run(const ops::AdamWAll& op) {
  for (const AdamWOperands& part : op.parts) {
    AdamWOptions own = op.options;
    own.weight_decay = part.weight_decay;
    AdamW({own, part.grad, part.master, part.m, part.v, part.param});
  }
}

}  // namespace tessera
