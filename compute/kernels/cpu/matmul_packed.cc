// bf16 products through oneDNN's kernels for AMX.
//
// Only one of oneDNN 2.6's two ways is fast. On two cores of a Granite Rapids, its "brg" kernels
// reach 2.0 to 2.4 TFLOP/s, its general product 0.5 to 1.4. It takes the fast way only if every
// matrix is dense, as no part of a larger matrix is, and then still spends its time on packing b,
// again for every tile. Hence b is packed here, into the layout that the kernels read without a
// copy; and a part of a or c that is not dense goes through scratch. There are two ways to cut c:
//
// - Into columns (ColumnProduct): a thread packs its columns of b into its own cache. For products
//   with weights, which come from memory and are used by a few hundred rows of a.
// - Into rows (RowProduct): b is packed once by all threads. For what remains: gradients of
//   weights, where a is transposed and each row of c, which is fp32 and has short sums, is best
//   written at once; and very long sums, which are cut too.

#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "compute/kernels/cpu/gemm_cache.h"
#include "compute/kernels/cpu/gemm_interface.h"
#include "compute/kernels/cpu/matmul_pack.h"
#include "compute/kernels/cpu/matmul_product.h"
#include "compute/kernels/cpu/thread_pool.h"
#include "compute/kernels/cpu/tree.h"
#include "compute/kernels/cpu/workspace.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

// Scratch is cut at cache lines.
int64_t RoundToLine(int64_t bytes) { return CeilDivide(bytes, 64) * 64; }

// Puts a dense tile where it belongs in c.
void MoveResult(const Product& product, DType dtype, const char* tile, int64_t row, int64_t rows,
                int64_t column, int64_t columns) {
  const int64_t stride = product.c.stride(0);
  MoveTile(dtype, tile, rows, columns, product.accumulate, product.c.dtype(),
           product.c.as<char>() + (row * stride + column) * ElementSize(product.c.dtype()), stride);
}

// Adds a dense tile, which is fp32, to the tree of c's tile. `levels`: where the levels in scratch
// begin, each so many elements after the other.
void AddResult(const Product& product, int64_t term, const char* tile, int64_t row, int64_t rows,
               int64_t column, int64_t columns, float* levels, int64_t level_elements) {
  const int64_t stride = product.c.stride(0);
  const TreeTiles tiles = {
      .result = product.c.as<float>() + row * stride + column,
      .result_stride = stride,
      .scratch = levels,
      .scratch_stride = columns,
      .level_elements = level_elements,
  };
  AddTerm(StepOfTerm(term, product.count()), reinterpret_cast<const float*>(tile), columns, rows,
          columns, tiles);
}

// The columns of c in parts. A thread has packed b's part in its own cache, and uses it for one
// tile of rows after the other.
class ColumnProduct {
 public:
  static bool Suits(const Product& product) {
    const MatrixLayout a = LayoutOf(product.a());
    return !a.transposed && a.leading == product.k() && product.k() <= kMaxDepth;
  }

  ColumnProduct(const Product& product, ThreadPool& pool, Workspace& workspace, GemmCache& gemms)
      : product_(product),
        pool_(pool),
        workspace_(workspace),
        gemms_(gemms),
        m_(product.m()),
        n_(product.n()),
        k_(product.k()),
        group_(PartExtent(m_, kMaxGroupRows, kTileRows)),
        columns_(ChooseColumns(group_, m_, n_, k_)),
        partial_(product.accumulate ? DType::kF32 : product.c.dtype()) {}

  void Run() {
    const int64_t parts = CeilDivide(n_, columns_), groups = CeilDivide(m_, group_);
    const Gemm* gemms[2][2] = {};  // the last rows? the last columns?
    for (int last_rows = 0; last_rows < 2; ++last_rows) {
      for (int last_columns = 0; last_columns < 2; ++last_columns) {
        const int64_t rows = last_rows == 1 ? (m_ - 1) % kTileRows + 1 : kTileRows;
        const int64_t columns = last_columns == 1 ? (n_ - 1) % columns_ + 1 : columns_;
        gemms[last_rows][last_columns] = &TileGemm(std::min(rows, m_), std::min(columns, n_));
      }
    }
    const int64_t packed_bytes = RoundToLine(columns_ * k_ * 2);
    const int64_t tile_bytes = kTileRows * columns_ * ElementSize(partial_);
    const int64_t levels_bytes = (TreeLevels(product_.count()) - 1) * group_ * columns_ * 4;
    const int64_t scratch_bytes = packed_bytes + tile_bytes + levels_bytes;
    workspace_.ReservePerThread(scratch_bytes);
    pool_.ParallelFor(groups * parts, [&](int64_t block, int thread) {
      const int64_t part = block / groups, group = block % groups;
      const int64_t columns = std::min(columns_, n_ - part * columns_);
      char* scratch = workspace_.OfThread<char>(thread, scratch_bytes);
      const Group tiles = {
          .first_row = group * group_,
          .first_column = part * columns_,
          .columns = columns,
          .packed = reinterpret_cast<BFloat16*>(scratch),
          .result = scratch + packed_bytes,
          .levels = reinterpret_cast<float*>(scratch + packed_bytes + tile_bytes),
      };
      for (int64_t term = 0; term < product_.count(); ++term) {
        PackPart(term, tiles);
        const int64_t end = std::min(m_, tiles.first_row + group_);
        for (int64_t row = tiles.first_row; row < end; row += kTileRows) {
          const int64_t rows = std::min(kTileRows, m_ - row);
          RunTile(*gemms[row + rows == m_][part == parts - 1], thread, term, row, rows, tiles);
        }
      }
    });
  }

 private:
  // The work of one thread.
  struct Group {
    int64_t first_row, first_column, columns;
    BFloat16* packed;  // its part of b
    char* result;      // a tile
    float* levels;     // of the tree, [rows of the group, columns] each
  };

  static constexpr int64_t kMaxDepth = 4096;
  static constexpr int64_t kMaxPackedElements = 448 * 1024;  // with a tile of a: a core's cache
  static constexpr int64_t kTileRows = 128;
  static constexpr int64_t kMaxGroupRows = 512;
  // Columns are worth their cost as if there were so many more: a is read again for every part.
  static constexpr double kColumnCost = 32;

  static int64_t ChooseColumns(int64_t group, int64_t m, int64_t n, int64_t k) {
    int64_t best = kPackColumns;
    double best_score = 0;
    for (int64_t most : {64, 128, 192, 256, 384, 512}) {
      if (most > kPackColumns && most * k > kMaxPackedElements) break;
      const int64_t columns = PartExtent(n, most, kPackColumns);
      const double score = static_cast<double>(columns) /
                           (static_cast<double>(columns) + kColumnCost) *
                           TileBalance(m, n, {group, columns});
      if (score <= best_score) continue;
      best_score = score;
      best = columns;
    }
    return best;
  }

  const Gemm& TileGemm(int64_t rows, int64_t columns) {
    return gemms_.Get({
        .m = rows,
        .n = columns,
        .k = k_,
        .lda = k_,
        .ldb = columns,
        .ldc = columns,
        .b_packed = true,
        .input = DType::kBF16,
        .output = partial_,
        .bias = !product_.bias.empty(),
    });
  }

  void PackPart(int64_t term, const Group& tiles) const {
    const TensorView& from = product_.terms[term].b;
    const MatrixLayout b = LayoutOf(from);
    const int64_t step = b.transposed ? b.leading : 1;
    for (int64_t column = 0; column < tiles.columns; column += kPackColumns) {
      PackColumns(from.as<BFloat16>() + (tiles.first_column + column) * step, b.leading,
                  b.transposed, k_, tiles.packed + column * k_);
    }
  }

  void RunTile(const Gemm& gemm, int thread, int64_t term, int64_t row, int64_t rows,
               const Group& tiles) const {
    const int64_t column = tiles.first_column, columns = tiles.columns;
    gemm.Run(thread, product_.terms[term].a.as<BFloat16>() + row * k_, tiles.packed, tiles.result,
             product_.bias.empty() ? nullptr : product_.bias.as<BFloat16>() + column);
    if (product_.count() == 1) {
      return MoveResult(product_, partial_, tiles.result, row, rows, column, columns);
    }
    float* levels = tiles.levels + (row - tiles.first_row) * columns;
    AddResult(product_, term, tiles.result, row, rows, column, columns, levels, group_ * columns);
  }

  const Product& product_;
  ThreadPool& pool_;
  Workspace& workspace_;
  GemmCache& gemms_;
  const int64_t m_, n_, k_;
  const int64_t group_;    // rows that one packing of b serves
  const int64_t columns_;  // of a part
  const DType partial_;    // of a tile in scratch
};

// The rows of c in tiles. A panel of b is packed by all threads and used by all.
class RowProduct {
 public:
  RowProduct(const Product& product, ThreadPool& pool, Workspace& workspace, GemmCache& gemms)
      : product_(product),
        pool_(pool),
        workspace_(workspace),
        gemms_(gemms),
        a_(LayoutOf(product.a())),
        b_(LayoutOf(product.b())),
        m_(product.m()),
        n_(product.n()),
        k_(product.k()),
        rows_(ChooseRows(m_, n_)),
        panel_(PartExtent(n_, kMaxColumns, kPackColumns)),
        depth_(k_ <= kLongSum ? k_ : PartExtent(k_, kLongSumPart, kPackRows)),
        collects_(depth_ < k_ || product.count() > 1),
        direct_(!collects_ && panel_ >= n_ && product.c.stride(0) == n_),
        partial_(collects_ || product.accumulate ? DType::kF32 : product.c.dtype()) {}

  void Run() {
    const int64_t packed_bytes = RoundToLine(depth_ * panel_ * 2);
    const int64_t panels = collects_ ? TreeLevels(product_.count()) : 0;
    char* shared = workspace_.Shared<char>(packed_bytes + panels * m_ * panel_ * 4);
    packed_ = reinterpret_cast<BFloat16*>(shared);
    sums_ = shared + packed_bytes;
    for (int64_t column = 0; column < n_; column += panel_) {
      for (int64_t term = 0; term < product_.count(); ++term) {
        for (int64_t k = 0; k < k_; k += depth_) {
          Pack(product_.terms[term].b, column, k);
          Multiply(term, column, k);
        }
      }
    }
  }

 private:
  static constexpr int64_t kMaxColumns = 4096;
  // Sums longer than kLongSum are cut into parts, so that what is packed stays in the caches: parts
  // of 512 were faster than 256, 1024 and 4096.
  static constexpr int64_t kLongSum = 4096;
  static constexpr int64_t kLongSumPart = 512;
  static constexpr int64_t kPackDepth = 256;  // of what one thread packs at a time

  static int64_t ChooseRows(int64_t m, int64_t n) {
    // A tile has a fixed cost, as if it had so many rows more: measured with 32 to 256 rows.
    constexpr double kRowCost = 22;
    int64_t best = 0;
    double best_score = 0;
    for (int64_t most : {32, 64, 96, 128}) {
      const int64_t rows = PartExtent(m, most, 32);
      const double score = static_cast<double>(rows) / (static_cast<double>(rows) + kRowCost) *
                           TileBalance(m, n, {rows, n});
      if (score <= best_score) continue;
      best_score = score;
      best = rows;
    }
    return best;
  }

  void Pack(const TensorView& b, int64_t first_column, int64_t first_k) {
    const int64_t depth = std::min(depth_, k_ - first_k);
    const int64_t columns = std::min(panel_, n_ - first_column);
    const int64_t pieces = CeilDivide(depth, kPackDepth);
    pool_.ParallelFor(columns / kPackColumns * pieces, [&](int64_t block, int) {
      const int64_t column = block / pieces * kPackColumns, k = block % pieces * kPackDepth;
      const int64_t from_column = first_column + column, from_k = first_k + k;
      const int64_t offset =
          b_.transposed ? from_column * b_.leading + from_k : from_k * b_.leading + from_column;
      PackColumns(b.as<BFloat16>() + offset, b_.leading, b_.transposed,
                  std::min(kPackDepth, depth - k), packed_ + column * depth + k * kPackColumns);
    });
  }

  void Multiply(int64_t term, int64_t column, int64_t k) {
    const int64_t depth = std::min(depth_, k_ - k), columns = std::min(panel_, n_ - column);
    const int64_t tiles = CeilDivide(m_, rows_), last_rows = m_ - (tiles - 1) * rows_;
    const Gemm& gemm = TileGemm(rows_, columns, k, depth);
    const Gemm& last_gemm = TileGemm(last_rows, columns, k, depth);
    const bool dense_a = !a_.transposed && a_.leading == depth;
    const int64_t a_bytes = dense_a ? 0 : RoundToLine(rows_ * depth * 2);
    const int64_t c_bytes = direct_ || collects_ ? 0 : rows_ * columns * ElementSize(partial_);
    const int64_t c_stride = product_.c.stride(0), c_size = ElementSize(product_.c.dtype());
    const void* bias =
        product_.bias.empty() || k > 0 ? nullptr : product_.bias.as<BFloat16>() + column;
    workspace_.ReservePerThread(a_bytes + c_bytes);
    pool_.ParallelFor(tiles, [&](int64_t tile, int thread) {
      const int64_t row = tile * rows_, rows = std::min(rows_, m_ - row);
      char* scratch = workspace_.OfThread<char>(thread, a_bytes + c_bytes);
      char* c = product_.c.as<char>() + (row * c_stride + column) * c_size;
      char* result = direct_ ? c : collects_ ? sums_ + row * columns * 4 : scratch + a_bytes;
      const BFloat16* a = DenseRows(product_.terms[term].a, row, rows, k, depth,
                                    reinterpret_cast<BFloat16*>(scratch));
      (rows == rows_ ? gemm : last_gemm).Run(thread, a, packed_, result, bias);
      if (direct_ || k + depth < k_) return;
      if (product_.count() == 1) {
        return MoveResult(product_, partial_, result, row, rows, column, columns);
      }
      float* levels = reinterpret_cast<float*>(sums_) + m_ * panel_ + row * columns;
      AddResult(product_, term, result, row, rows, column, columns, levels, m_ * panel_);
    });
  }

  const Gemm& TileGemm(int64_t rows, int64_t columns, int64_t k, int64_t depth) {
    return gemms_.Get({
        .m = rows,
        .n = columns,
        .k = depth,
        .lda = depth,
        .ldb = columns,
        .ldc = columns,
        .b_packed = true,
        .input = DType::kBF16,
        .output = direct_ ? product_.c.dtype() : partial_,
        .accumulate = k > 0 || (direct_ && product_.accumulate),
        .bias = !product_.bias.empty() && k == 0,
    });
  }

  const BFloat16* DenseRows(const TensorView& from, int64_t row, int64_t rows, int64_t k,
                            int64_t depth, BFloat16* scratch) const {
    const BFloat16* a = from.as<BFloat16>();
    if (a_.transposed) {
      TransposeRows(a + k * a_.leading + row, a_.leading, rows, depth, scratch);
      return scratch;
    }
    a += row * a_.leading + k;
    if (a_.leading == depth) return a;
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(scratch + i * depth, a + i * a_.leading, depth * sizeof(BFloat16));
    }
    return scratch;
  }

  const Product& product_;
  ThreadPool& pool_;
  Workspace& workspace_;
  GemmCache& gemms_;
  const MatrixLayout a_, b_;
  const int64_t m_, n_, k_;
  const int64_t rows_, panel_, depth_;  // of a tile, of a panel, of a part of k
  const bool collects_;                 // sums of parts of k or of terms, in shared memory
  const bool direct_;                   // tiles are written where they belong
  const DType partial_;                 // of a tile that is not
  BFloat16* packed_ = nullptr;
  char* sums_ = nullptr;  // c's panel in fp32, then the tree's levels from 1
};

}  // namespace

bool PackedMatMul(const Product& product, ThreadPool& pool, Workspace& workspace,
                  GemmCache& gemms) {
  if (product.a().dtype() != DType::kBF16 || !gemms.has_packed()) return false;
  // What packing and transposing move at a time; with fewer rows packing would not pay.
  if (product.m() < 32 || product.n() % kPackColumns != 0 || product.k() % kPackRows != 0) {
    return false;
  }
  if (LayoutOf(product.a()).transposed && product.m() % 16 != 0) return false;
  if (ColumnProduct::Suits(product)) {
    ColumnProduct(product, pool, workspace, gemms).Run();
  } else {
    RowProduct(product, pool, workspace, gemms).Run();
  }
  return true;
}

}  // namespace tessera
