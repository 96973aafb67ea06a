// c[M,N] = a[M,K] b[K,N], cut into tiles of c. A tile is one oneDNN call over the whole of K on one
// thread: the result of such a call depends on its shape and operands alone, and so does the
// product's.

#include "trainer/kernels/cpu/matmul.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "trainer/kernels/cpu/cpu_backend_impl.h"
#include "trainer/kernels/cpu/gemm.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera {
namespace {

// How much of the processor's peak one tile reaches: every dim has a fixed cost, as if it were so
// many elements longer. Fitted to oneDNN's rates on GPT-2's shapes (Granite Rapids):
// - fp32: twice the rows or columns win 3 to 8 %. Where a is transposed rows cost little, but the
//   transposition is done again for each tile of columns: 768 of them are 7 % faster than 384.
// - A long sum's operands are held by no cache: a tile's rows of a and columns of b then come from
//   memory.
// - bf16 on AMX is fast enough for every cost to show.
double TileEfficiency(TileShape tile, int64_t k, bool a_transposed, DType dtype) {
  constexpr int64_t kLong = 8192;
  double row_cost = a_transposed ? 4 : 12, column_cost = a_transposed ? 48 : 24;
  if (k >= kLong) row_cost = 24, column_cost = 48;
  if (dtype == DType::kBF16) row_cost = 60, column_cost = 120;
  const double rows = static_cast<double>(tile.rows), columns = static_cast<double>(tile.columns);
  return rows / (rows + row_cost) * columns / (columns + column_cost);
}

TileShape ChooseTile(int64_t m, int64_t n, int64_t k, bool a_transposed, DType dtype) {
  TileShape best;
  double best_score = 0;
  for (int64_t rows : {64, 128, 256, 512}) {
    for (int64_t columns : {64, 128, 192, 256, 384, 512, 768}) {
      const TileShape tile = {PartExtent(m, rows, 32), PartExtent(n, columns, 64)};
      const double score = TileEfficiency(tile, k, a_transposed, dtype) * TileBalance(m, n, tile);
      if (score <= best_score) continue;
      best_score = score;
      best = tile;
    }
  }
  return best;
}

}  // namespace

// The stride of a dim of one element says nothing.
MatrixLayout LayoutOf(const TensorView& x) {
  CHECK_EQ(x.rank(), 2);
  if (x.dim(1) == 1 || x.stride(1) == 1) {
    return {x.dim(0) == 1 ? x.dim(1) : std::max(x.stride(0), x.dim(1)), false};
  }
  CHECK(x.dim(0) == 1 || x.stride(0) == 1) << "a matrix needs a dense dim: " << ToString(x.shape());
  return {x.stride(1), true};
}

double TileBalance(int64_t m, int64_t n, TileShape tile) {
  struct ThreadCount {
    int64_t threads;
    double weight;
  };
  constexpr ThreadCount kCounts[] = {{2, 0.75}, {4, 0.15}, {8, 0.06}, {16, 0.04}};
  const int64_t tiles = CeilDivide(m, tile.rows) * CeilDivide(n, tile.columns);
  double balance = 0;
  for (const ThreadCount& count : kCounts) {
    const int64_t rounds = CeilDivide(tiles, count.threads);
    balance += count.weight * static_cast<double>(m * n) /
               static_cast<double>(rounds * count.threads * tile.rows * tile.columns);
  }
  return balance;
}

void CpuBackend::MatMul(TensorView a, TensorView b, TensorView c, bool accumulate,
                        TensorView bias) {
  CHECK(a.rank() == 2 && b.rank() == 2 && c.rank() == 2);
  const int64_t m = c.dim(0), n = c.dim(1), k = a.dim(1);
  CHECK(a.dim(0) == m && b.dim(0) == k && b.dim(1) == n)
      << ToString(a.shape()) << " x " << ToString(b.shape()) << " = " << ToString(c.shape());
  CHECK(a.dtype() == b.dtype() && (c.dtype() == a.dtype() || c.dtype() == DType::kF32));
  CHECK(n == 1 || c.stride(1) == 1) << "c is dense in its columns";
  if (!bias.empty()) {
    CHECK(bias.elements() == n && bias.contiguous() && bias.dtype() == a.dtype());
  }
  if (m == 0 || n == 0) return;
  CHECK_GT(k, 0);
  const Product product = {a, b, c, accumulate, bias};
  if (PackedMatMul(product, pool_, workspace_, gemms_)) return;
  const MatrixLayout a_operand = LayoutOf(a), b_operand = LayoutOf(b);
  const TileShape tile = ChooseTile(m, n, k, a_operand.transposed, a.dtype());
  const int64_t row_tiles = CeilDivide(m, tile.rows), column_tiles = CeilDivide(n, tile.columns);
  // Inner tiles, the last of each row, the last of each column, the corner.
  const Gemm* gemms[2][2] = {};
  for (int last_row = 0; last_row < 2; ++last_row) {
    for (int last_column = 0; last_column < 2; ++last_column) {
      if ((last_row == 0 && row_tiles == 1) || (last_column == 0 && column_tiles == 1)) continue;
      gemms[last_row][last_column] = &gemms_.Get({
          .m = last_row == 1 ? m - (row_tiles - 1) * tile.rows : tile.rows,
          .n = last_column == 1 ? n - (column_tiles - 1) * tile.columns : tile.columns,
          .k = k,
          .lda = a_operand.leading,
          .ldb = b_operand.leading,
          .ldc = m == 1 ? n : c.stride(0),
          .a_transposed = a_operand.transposed,
          .b_transposed = b_operand.transposed,
          .input = a.dtype(),
          .output = c.dtype(),
          .accumulate = accumulate,
          .bias = !bias.empty(),
      });
    }
  }
  const int64_t input_bytes = ElementSize(a.dtype()), output_bytes = ElementSize(c.dtype());
  const int64_t a_step = input_bytes * (a_operand.transposed ? 1 : a_operand.leading);
  const int64_t b_step = input_bytes * (b_operand.transposed ? b_operand.leading : 1);
  const int64_t c_step = output_bytes * (m == 1 ? n : c.stride(0));
  pool_.ParallelFor(row_tiles * column_tiles, [&](int64_t block, int thread) {
    const int64_t row_tile = block % row_tiles, column_tile = block / row_tiles;
    const int64_t row = row_tile * tile.rows, column = column_tile * tile.columns;
    const Gemm& gemm = *gemms[row_tile == row_tiles - 1][column_tile == column_tiles - 1];
    gemm.Run(thread, a.as<char>() + row * a_step, b.as<char>() + column * b_step,
             c.as<char>() + row * c_step + column * output_bytes,
             bias.empty() ? nullptr : bias.as<char>() + column * input_bytes);
  });
}

}  // namespace tessera
