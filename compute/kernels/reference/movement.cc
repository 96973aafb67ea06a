// Movement, sums, matrix products and embeddings.

#include <glog/logging.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/checked_math.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/reference/array.h"
#include "compute/kernels/reference/reference_backend.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera::reference {

// Movement, elementwise sums and reductions.

// x[i] = value
void ReferenceBackend::Run(const ops::Fill& op) {
  for (int64_t offset : ElementOffsets(op.x)) StoreElement(op.x, offset, op.value);
}

// to[i] = from[i]. Equal dtypes keep every bit, the payload of a NaN included.
void ReferenceBackend::Run(const ops::Copy& op) {
  if (op.from.dtype() != op.to.dtype()) return Array(op.from).StoreTo(op.to);
  const int64_t size = ElementSize(op.from.dtype());
  const std::vector<int64_t> sources = ElementOffsets(op.from), targets = ElementOffsets(op.to);
  for (size_t i = 0; i < sources.size(); ++i) {
    std::memmove(op.to.as<char>() + targets[i] * size, op.from.as<char>() + sources[i] * size,
                 size);
  }
}

// out[i] = a[i] + b[i]
void ReferenceBackend::Run(const ops::Add& op) {
  Array sum(op.a);
  const Array addend(op.b);
  for (size_t i = 0; i < sum.values().size(); ++i) sum.values()[i] += addend.values()[i];
  sum.StoreTo(op.out);
}

// x[i] = x[i] * factor
void ReferenceBackend::Run(const ops::Scale& op) {
  Array scaled(op.x);
  for (double& value : scaled.values()) value *= op.factor;
  scaled.StoreTo(op.x);
}

// out[n] (+)= sum_r x[r,n]
void ReferenceBackend::Run(const ops::SumRows& op) {
  const Array rows(op.x);
  Array sums({rows.dim(1)});
  for (int64_t r = 0; r < rows.dim(0); ++r) {
    for (int64_t n = 0; n < rows.dim(1); ++n) sums(n) += rows(r, n);
  }
  sums.StoreTo(op.out, op.accumulate);
}

// sum_i x[i]^2
double ReferenceBackend::Run(const ops::SumOfSquares& op) {
  double sum = 0;
  const Array values(op.x);
  for (double value : values.values()) sum += value * value;
  return sum;
}

// sums[p] = T(0, n) of the sums of x[i]^2 over the blocks of part p
void ReferenceBackend::Run(const ops::SumsOfSquares& op) {
  for (size_t p = 0; p < op.parts.size(); ++p) {
    const int64_t count = op.parts[p].empty() ? 0 : op.parts[p].elements();
    std::vector<double> blocks(CeilDivide(count, op.block));
    if (count > 0) {
      const Array x(op.parts[p]);
      for (int64_t i = 0; i < count; ++i) blocks[i / op.block] += x.values()[i] * x.values()[i];
    }
    for (size_t step = 1; step < blocks.size(); step *= 2) {
      for (size_t i = 0; i + step < blocks.size(); i += 2 * step) blocks[i] += blocks[i + step];
    }
    op.sums[p] = blocks.empty() ? 0 : blocks[0];
  }
}

// sum_i x[i]
double ReferenceBackend::Run(const ops::Sum& op) {
  double sum = 0;
  const Array values(op.x);
  for (double value : values.values()) sum += value;
  if (op.later != nullptr) *op.later = sum;
  return sum;
}

namespace {

Array Multiply(const Array& a, const Array& b) {
  Array product({a.dim(0), b.dim(1)});
  for (int64_t m = 0; m < a.dim(0); ++m) {
    for (int64_t k = 0; k < a.dim(1); ++k) {
      for (int64_t n = 0; n < b.dim(1); ++n) product(m, n) += a(m, k) * b(k, n);
    }
  }
  return product;
}

// T(0, n) of the products, every product and every sum rounded to `dtype`.
Array TreeSum(std::span<const MatMulOperands> products, DType dtype) {
  if (products.size() == 1) {
    Array product = Multiply(Array(products[0].a), Array(products[0].b));
    for (double& value : product.values()) value = RoundTo(dtype, value);
    return product;
  }
  const size_t middle = std::bit_floor(products.size() - 1);
  Array sum = TreeSum(products.first(middle), dtype);
  const Array right = TreeSum(products.subspan(middle), dtype);
  for (size_t i = 0; i < sum.values().size(); ++i) {
    sum.values()[i] = RoundTo(dtype, sum.values()[i] + right.values()[i]);
  }
  return sum;
}

}  // namespace

// c[m,n] = sum_k a[m,k] b[k,n] (+ bias[n]) (+ c[m,n])
void ReferenceBackend::Run(const ops::MatMul& op) {
  const Array left(op.a), right(op.b), addend(op.bias);
  Array product = Multiply(left, right);
  for (int64_t m = 0; m < left.dim(0); ++m) {
    for (int64_t n = 0; !addend.empty() && n < right.dim(1); ++n) product(m, n) += addend(n);
  }
  product.StoreTo(op.c, op.accumulate);
}

// c[m,n] = T(0, n) of sum_k a_i[m,k] b_i[k,n]
void ReferenceBackend::Run(const ops::MatMulTree& op) {
  TreeSum(op.products, op.c.dtype()).StoreTo(op.c);
}

// out[r,c] = x[r,c] + bias[c]
void ReferenceBackend::Run(const ops::AddBias& op) {
  Array sum(op.x);
  const Array addend(op.bias);
  for (int64_t r = 0; r < sum.dim(0); ++r) {
    for (int64_t c = 0; !addend.empty() && c < sum.dim(1); ++c) sum(r, c) += addend(c);
  }
  sum.StoreTo(op.out);
}

// out[r,:] = table[ids[r] - first_id, :], or zeros where this shard has no such row
void ReferenceBackend::Run(const ops::EmbeddingForward& op) {
  const std::vector<int64_t> rows = LoadIds(op.ids);
  Array gathered({static_cast<int64_t>(rows.size()), op.table.dim(1)});
  for (size_t r = 0; r < rows.size(); ++r) {
    const int64_t local = rows[r] - op.first_id;
    if (local < 0 || local >= op.table.dim(0)) continue;
    const Array row(op.table.Slice(0, local, local + 1));
    for (int64_t c = 0; c < op.table.dim(1); ++c) gathered(r, c) = row(0, c);
  }
  gathered.StoreTo(op.out);
}

// d_table[v,:] += sum of d_out[r,:] over the rows r with ids[r] - first_id == v
void ReferenceBackend::Run(const ops::EmbeddingBackward& op) {
  const std::vector<int64_t> rows = LoadIds(op.ids);
  const Array gradient(op.d_out);
  Array sums(op.d_table.shape());
  for (size_t r = 0; r < rows.size(); ++r) {
    const int64_t local = rows[r] - op.first_id;
    if (local < 0 || local >= op.d_table.dim(0)) continue;
    for (int64_t c = 0; c < gradient.dim(1); ++c) sums(local, c) += gradient(r, c);
  }
  sums.AddTo(op.d_table);
}

// x[r,c] += table[r % sequence, c]
void ReferenceBackend::Run(const ops::AddPositions& op) {
  const Array positions(op.table);
  Array sum(op.x);
  for (int64_t r = 0; r < sum.dim(0); ++r) {
    for (int64_t c = 0; c < sum.dim(1); ++c) sum(r, c) += positions(r % op.sequence, c);
  }
  sum.StoreTo(op.x);
}

// d_table[t,c] (+)= sum of d_x[r,c] over the rows r with r % sequence == t. Rows of the table past
// the sequence get a gradient of zero.
void ReferenceBackend::Run(const ops::AddPositionsBackward& op) {
  const Array gradient(op.d_x);
  Array sums(op.d_table.shape());
  for (int64_t r = 0; r < gradient.dim(0); ++r) {
    for (int64_t c = 0; c < gradient.dim(1); ++c) sums(r % op.sequence, c) += gradient(r, c);
  }
  sums.StoreTo(op.d_table, op.accumulate);
}

}  // namespace tessera::reference

namespace tessera {

std::unique_ptr<Backend> MakeReferenceBackend() {
  return std::make_unique<reference::ReferenceBackend>();
}

}  // namespace tessera
