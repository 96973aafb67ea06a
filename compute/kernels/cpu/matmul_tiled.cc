// Matrix products, c[M,N] = a[M,K] b[K,N], cut into tiles of c that threads compute. A tile is one
// call over the whole of K on one thread. The result of such a call depends on its shape and
// operands alone, and so does the product's.

#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/gemm_cache.h"
#include "compute/kernels/cpu/gemm_interface.h"
#include "compute/kernels/cpu/matmul_product.h"
#include "compute/kernels/cpu/thread_pool.h"
#include "compute/kernels/cpu/tree.h"
#include "compute/kernels/cpu/workspace.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

// The cost of a tile besides its multiplications, as a number of additional rows and columns.
struct TileCost {
  double rows = 0, columns = 0;
};

// - Ours: a tile's rows and columns are packed for it alone.
// - oneDNN's were fitted to its rates on GPT-2's shapes (Granite Rapids). In fp32 twice the rows or
//   columns win 3 to 8 %. Where a is transposed rows cost little, but the transposition is done
//   again for each tile of columns: 768 of them are 7 % faster than 384. A long sum's operands are
//   held by no cache: a tile's rows of a and columns of b then come from memory. bf16 on AMX is
//   fast enough for every cost to show.
TileCost TileCostOf(int64_t k, bool a_transposed, DType dtype, const GemmCache& gemms) {
  constexpr int64_t kLong = 8192;
  if (!gemms.uses_dnnl(dtype)) return {15, 15};
  if (dtype == DType::kBF16) return {60, 120};
  if (k >= kLong) return {24, 48};
  return a_transposed ? TileCost{4, 48} : TileCost{12, 24};
}

// Chooses tiles for this number of threads; 0 if they must not depend on it.
TileShape ChooseTile(int64_t m, int64_t n, TileCost cost, int threads) {
  TileShape best;
  double best_score = 0;
  for (int64_t most_rows : {64, 128, 256, 512}) {
    for (int64_t most_columns : {64, 128, 192, 256, 384, 512, 768, 1152, 1536}) {
      if (threads == 0 && most_columns > 768) continue;
      const TileShape tile = {PartExtent(m, most_rows, 32), PartExtent(n, most_columns, 64)};
      const double rows = static_cast<double>(tile.rows);
      const double columns = static_cast<double>(tile.columns);
      const double score = rows / (rows + cost.rows) * columns / (columns + cost.columns) *
                           TileBalance(m, n, tile, threads);
      if (score <= best_score) continue;
      best_score = score;
      best = tile;
    }
  }
  return best;
}

// c in tiles, each the sum of its terms' tiles. Our own products add the terms themselves. A term
// of oneDNN's is multiplied where its step of the tree puts it, or, where it is added to what lies
// there, in scratch memory that stays in the cache.
class TiledProduct {
 public:
  TiledProduct(const Product& product, ThreadPool& pool, Workspace& workspace, GemmCache& gemms)
      : product_(product),
        pool_(pool),
        workspace_(workspace),
        a_(LayoutOf(product.a())),
        b_(LayoutOf(product.b())),
        m_(product.m()),
        n_(product.n()),
        uses_dnnl_(gemms.uses_dnnl(product.a().dtype())),
        tile_(ChooseTile(m_, n_, TileCostOf(product.k(), a_.transposed, product.a().dtype(), gemms),
                         uses_dnnl_ ? 0 : pool.threads())),
        row_tiles_(CeilDivide(m_, tile_.rows)),
        column_tiles_(CeilDivide(n_, tile_.columns)),
        c_stride_(m_ == 1 ? n_ : product.c.stride(0)),
        scratch_stride_(column_tiles_ == 1 && c_stride_ == n_ ? n_ : tile_.columns + kApart) {
    for (int last_row = 0; last_row < 2; ++last_row) {
      for (int last_column = 0; last_column < 2; ++last_column) {
        if ((last_row == 0 && row_tiles_ == 1) || (last_column == 0 && column_tiles_ == 1)) {
          continue;
        }
        GemmShape shape = TileShapeOf(last_row == 1, last_column == 1);
        gemms_[last_row][last_column] = &gemms.Get(shape);
        if (!adds_tiles()) continue;
        shape.ldc = scratch_stride_;
        scratch_gemms_[last_row][last_column] = &gemms.Get(shape);
      }
    }
  }

  void Run() {
    const int64_t tile_elements = adds_tiles() ? tile_.rows * scratch_stride_ : 0;
    const int64_t scratch_elements = tile_elements * TreeLevels(product_.count());
    workspace_.ReservePerThread(scratch_elements * static_cast<int64_t>(sizeof(float)));
    pool_.ParallelFor(row_tiles_ * column_tiles_, [&](int64_t block, int thread) {
      const int64_t row_tile = block % row_tiles_, column_tile = block / row_tiles_;
      if (!adds_tiles()) {
        return Multiply(gemms_, thread, product_.terms, row_tile, column_tile,
                        CTile(row_tile, column_tile));
      }
      float* scratch = workspace_.OfThread<float>(thread, scratch_elements);
      SumTile(thread, row_tile, column_tile, scratch, tile_elements);
    });
  }

 private:
  // The products of the four kinds of tiles: [in the last row of tiles?][in the last column?].
  using TileGemms = const Gemm* [2][2];

  // Where c's tiles are not dense, scratch is not either: oneDNN sums dense products in another
  // order than others, among which the distance of rows makes no difference.
  static constexpr int64_t kApart = 16;

  bool adds_tiles() const { return uses_dnnl_ && product_.count() > 1; }

  GemmShape TileShapeOf(bool last_row, bool last_column) const {
    return {
        .m = last_row ? m_ - (row_tiles_ - 1) * tile_.rows : tile_.rows,
        .n = last_column ? n_ - (column_tiles_ - 1) * tile_.columns : tile_.columns,
        .k = product_.k(),
        .lda = a_.leading,
        .ldb = b_.leading,
        .ldc = c_stride_,
        .a_transposed = a_.transposed,
        .b_transposed = b_.transposed,
        .terms = uses_dnnl_ ? 1 : product_.count(),
        .input = product_.a().dtype(),
        .output = product_.c.dtype(),
        .accumulate = product_.accumulate,
        .bias = !product_.bias.empty(),
    };
  }

  char* CTile(int64_t row_tile, int64_t column_tile) const {
    return product_.c.as<char>() +
           (row_tile * tile_.rows * c_stride_ + column_tile * tile_.columns) *
               ElementSize(product_.c.dtype());
  }

  void Multiply(const TileGemms& gemms, int thread, std::span<const MatMulOperands> terms,
                int64_t row_tile, int64_t column_tile, void* to) const {
    const int64_t size = ElementSize(product_.a().dtype());
    const int64_t row = row_tile * tile_.rows, column = column_tile * tile_.columns;
    const Gemm& gemm = *gemms[row_tile == row_tiles_ - 1][column_tile == column_tiles_ - 1];
    std::vector<GemmOperands> operands;
    for (const MatMulOperands& term : terms) {
      operands.push_back({term.a.as<char>() + row * (a_.transposed ? 1 : a_.leading) * size,
                          term.b.as<char>() + column * (b_.transposed ? b_.leading : 1) * size});
    }
    gemm.Run(thread, operands, to,
             product_.bias.empty() ? nullptr : product_.bias.as<char>() + column * size);
  }

  void SumTile(int thread, int64_t row_tile, int64_t column_tile, float* scratch,
               int64_t tile_elements) const {
    const TreeTiles tiles = {
        .result = reinterpret_cast<float*>(CTile(row_tile, column_tile)),
        .result_stride = c_stride_,
        .scratch = scratch + tile_elements,
        .scratch_stride = scratch_stride_,
        .level_elements = tile_elements,
    };
    const int64_t rows = std::min(tile_.rows, m_ - row_tile * tile_.rows);
    const int64_t columns = std::min(tile_.columns, n_ - column_tile * tile_.columns);
    for (int64_t term = 0; term < product_.count(); ++term) {
      const TreeStep step = StepOfTerm(term, product_.count());
      const std::span<const MatMulOperands> operands = product_.terms.subspan(term, 1);
      if (step.merges == 0) {
        Multiply(step.level() == 0 ? gemms_ : scratch_gemms_, thread, operands, row_tile,
                 column_tile, tiles.level(step.level()));
        continue;
      }
      Multiply(scratch_gemms_, thread, operands, row_tile, column_tile, scratch);
      AddTerm(step, scratch, scratch_stride_, rows, columns, tiles);
    }
  }

  const Product& product_;
  ThreadPool& pool_;
  Workspace& workspace_;
  const MatrixLayout a_, b_;
  const int64_t m_, n_;
  const bool uses_dnnl_;
  const TileShape tile_;
  const int64_t row_tiles_, column_tiles_;
  const int64_t c_stride_, scratch_stride_;
  TileGemms gemms_ = {};          // into c
  TileGemms scratch_gemms_ = {};  // into scratch
};

}  // namespace

void TiledMatMul(const Product& product, ThreadPool& pool, Workspace& workspace, GemmCache& gemms) {
  TiledProduct(product, pool, workspace, gemms).Run();
}

}  // namespace tessera
