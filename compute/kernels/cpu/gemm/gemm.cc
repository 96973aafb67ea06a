// Columns of b are taken a few thousand at a time, and for them one part of k after the other. For
// each, a block of rows of a is packed, in panels of the height of a register tile, and stays in
// the second-level cache. Then panels of columns, of a tile's width, are multiplied by all of its
// panels of rows. The first block of rows packs each panel of columns right before its use, unless
// it can be used as it lies; its tiles fetch the memory of the next panel meanwhile, so that
// packing costs little even where there are few rows. (For AMX they also pack it, and fetch that of
// the one after it.) Each part of k continues the sums that the part before it left in c, or in
// scratch where c is not fp32.
//
// A sum of several terms takes fewer columns at once, and for them one term after the other, so
// that the tiles of the tree's levels stay in the second-level cache, in scratch, until the last
// term adds them to c. Rows stay packed for all terms and columns if they fit there, too.

#include "compute/kernels/cpu/gemm/gemm.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/checked_math.h"
#include "compute/kernels/cpu/gemm/tree_steps.h"
#include "tensor/bfloat16.h"

namespace tessera {
namespace {

using gemm::kBlock;
using gemm::kMostRows;
using gemm::kSlack;

constexpr int64_t kWordBytes = 4, kLine = 16, kLineBytes = 64;  // a cache's lines: words, bytes
constexpr int64_t kMostColumns = 32;                            // of a tile
constexpr int64_t kTileWords = kMostRows * kMostColumns;
constexpr int64_t kMostPackedColumns = 4096;  // at once: they lie in the last cache
constexpr int64_t kFewRows = 128;             // for which columns would have to be packed again
// Rows so far apart, in bytes, or a multiple of it, compete for the same few places of a cache.
constexpr int64_t kCrowded = 2048;

// Returns the size of near-equal parts of at most `most`; all but the last are multiples of
// `quantum`.
int64_t PartOf(int64_t extent, int64_t most, int64_t quantum) {
  const int64_t parts = CeilDivide(extent, most);
  return RoundUp(CeilDivide(extent, parts), quantum);
}

// Returns the offsets of a matrix's cache lines; then the first one again, `room` times.
std::vector<int64_t> LinesOf(int64_t rows, int64_t bytes, int64_t leading, int64_t room) {
  std::vector<int64_t> lines;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < bytes; i += kLineBytes) lines.push_back(row * leading + i);
  }
  lines.resize(lines.size() + room);
  return lines;
}

int64_t SecondLevelCache() {
  // Where the system does not say, a small one.
  static const int64_t bytes =
      std::clamp<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE), 256 << 10, 2 << 20);
  return bytes;
}

}  // namespace

struct ChainGemm::Call {
  std::span<const GemmOperands> terms;
  void* c;
  const void* bias;
  uint32_t* rows;     // packed
  uint32_t* columns;  // packed
  float* sums;        // [m, columns] if sums are apart
  float* tiles;       // [tiles_, kTileWords]
  float* levels;      // of the tree, level_words_ each, a tile after the other
};

// A part of a term's k for some columns.
struct ChainGemm::Part {
  int64_t column, columns;
  int64_t term, k, depth;
  bool is_first, is_last;  // of the term
  int64_t index;           // of its first panel of columns, among those of all parts
};

// A panel of columns in a part, and the block of row panels that multiply it.
struct ChainGemm::Panel {
  bool exists() const { return column < part.columns; }

  Part part;
  int64_t column;
  int64_t first, end;
};

// Some steps of a part, in which a panel of columns stays in the first-level cache. The sums of its
// tiles lie in scratch until the next stage continues them.
struct ChainGemm::Stage {
  int64_t step, steps;
  bool is_first, is_last;
};

ChainGemm::ChainGemm(const GemmShape& shape, const gemm::Kernels& kernels)
    : shape_(shape), kernels_(kernels) {
  CHECK(!shape.b_packed && shape.m > 0 && shape.n > 0 && shape.k > 0);
  const bool adds = shape.terms > 1;
  CHECK(!adds || (shape.output == DType::kF32 && !shape.accumulate && !shape.bias));
  // A block of rows takes half of the second-level cache; a panel of columns passes through it.
  const int64_t quantum = std::max<int64_t>(kernels_.block, 8), half = SecondLevelCache() / 2;
  depth_ = std::min(shape.k, PartOf(shape.k, kernels_.most_steps * kernels_.k_per_step, quantum));
  const int64_t steps = Steps(depth_), parts = shape.terms * CeilDivide(shape.k, depth_);
  panel_rows_ = PartOf(shape.m, kernels_.rows, kernels_.height);
  row_panels_ = CeilDivide(shape.m, panel_rows_);
  row_panel_words_ = kernels_.rows * steps + kSlack;
  int64_t most_panels = half / (row_panel_words_ * kWordBytes);
  keeps_rows_ = adds && most_panels / parts * kernels_.rows >= std::min(kFewRows, shape.m);
  if (keeps_rows_) most_panels /= parts;
  panels_of_block_ = PartOf(row_panels_, std::max<int64_t>(1, most_panels), 1);
  keeps_columns_ = !adds && panels_of_block_ < row_panels_;
  takes_columns_ =
      kernels_.takes_columns && !shape.b_transposed && shape.ldb * kWordBytes % kCrowded != 0;
  sums_apart_ = shape.output != DType::kF32 && depth_ < shape.k;
  // A level of a tree takes a quarter of that cache, or half where rows are packed again for the
  // next columns.
  const int64_t most_level = (keeps_rows_ ? half / 2 : half) / kWordBytes;
  const int64_t most_columns = adds ? std::clamp(most_level / (panels_of_block_ * panel_rows_),
                                                 kernels_.columns, kMostPackedColumns)
                                    : kMostPackedColumns;
  columns_ = std::min(shape.n, PartOf(shape.n, most_columns, kernels_.columns));
  row_words_ = RoundUp(panels_of_block_ * row_panel_words_, kLine);
  const int64_t kept = keeps_columns_             ? RoundUp(columns_, kernels_.columns)
                       : kernels_.packs_meanwhile ? 2 * kernels_.columns
                                                  : kernels_.columns;
  column_words_ = RoundUp(kept * steps + kSlack, kLine);
  sums_stride_ = columns_ * kWordBytes % kCrowded == 0 ? columns_ + kLine : columns_;
  sum_words_ = sums_apart_ ? RoundUp(shape.m * sums_stride_, kLine) : 0;
  const int64_t most_steps = kernels_.stage_steps == 0 ? steps : kernels_.stage_steps;
  stage_steps_ = PartOf(steps, most_steps, gemm::kBlock / kernels_.k_per_step);
  tiles_ = stage_steps_ < steps ? panels_of_block_ : 1;
  level_tile_words_ = RoundUp(kernels_.rows * kernels_.columns, kLine);
  level_words_ = panels_of_block_ * CeilDivide(columns_, kernels_.columns) * level_tile_words_;
  all_row_words_ = keeps_rows_ ? parts * row_words_ : row_words_;
  scratch_words_ = all_row_words_ + column_words_ + sum_words_ + tiles_ * kTileWords;
  // A chain that passes from part to part has a place behind the levels.
  if (adds) scratch_words_ += (TreeLevels(shape.terms) + (depth_ < shape.k ? 1 : 0)) * level_words_;

  const int64_t size = ElementSize(shape.input);
  const int64_t lines = shape.b_transposed ? kernels_.columns : depth_;
  const int64_t dense = shape.b_transposed ? depth_ : kernels_.columns;
  no_lines_.resize(steps / gemm::kStepsOfAhead);
  source_lines_ = LinesOf(lines, dense * size, shape.ldb * size, no_lines_.size());
  packed_lines_ = LinesOf(1, kernels_.columns * steps * 4, 0, no_lines_.size());
}

int64_t ChainGemm::Steps(int64_t depth) const {
  return RoundUp(depth, kernels_.block) / kernels_.k_per_step;
}

void ChainGemm::Run(std::span<const GemmOperands> terms, void* c, const void* bias,
                    void* scratch) const {
  DCHECK_EQ(static_cast<int64_t>(terms.size()), shape_.terms);
  const gemm::FlushSubnormals flush(shape_.input == DType::kBF16);
  if (kernels_.begin != nullptr) kernels_.begin();
  Call call = {.terms = terms, .c = c, .bias = bias};
  call.rows = static_cast<uint32_t*>(scratch);
  call.columns = call.rows + all_row_words_;
  call.sums = reinterpret_cast<float*>(call.columns + column_words_);
  call.tiles = call.sums + sum_words_;
  call.levels = call.tiles + tiles_ * kTileWords;
  const int64_t most = keeps_columns_ ? row_panels_ : panels_of_block_;
  for (int64_t first = 0; first < row_panels_; first += most) {
    for (Part part = PartAt(0, 0, 0, 0); part.columns > 0; part = After(part)) {
      RunPart(call, part, first, std::min(first + most, row_panels_));
    }
  }
  if (kernels_.end != nullptr) kernels_.end();
}

ChainGemm::Part ChainGemm::PartAt(int64_t column, int64_t term, int64_t k, int64_t index) const {
  return {.column = column,
          .columns = std::min(columns_, shape_.n - column),
          .term = term,
          .k = k,
          .depth = std::min(depth_, shape_.k - k),
          .is_first = k == 0,
          .is_last = k + depth_ >= shape_.k,
          .index = index};
}

// After the last part is one without columns.
ChainGemm::Part ChainGemm::After(const Part& part) const {
  const int64_t index = part.index + CeilDivide(part.columns, kernels_.columns);
  if (!part.is_last) return PartAt(part.column, part.term, part.k + depth_, index);
  if (part.term + 1 < shape_.terms) return PartAt(part.column, part.term + 1, 0, index);
  return PartAt(part.column + columns_, 0, 0, index);
}

// Returns the panel that is packed after this one; none behind columns that are kept.
ChainGemm::Panel ChainGemm::After(const Panel& panel) const {
  Panel next = panel;
  next.column += kernels_.columns;
  if (!next.exists() && panel.exists() && !keeps_columns_) {
    next.part = After(panel.part);
    next.column = 0;
  }
  return next;
}

void ChainGemm::RunPart(const Call& call, const Part& part, int64_t first, int64_t last) const {
  for (int64_t row = first; row < last; row += panels_of_block_) {
    Panel columns = {part, 0, row, std::min(row + panels_of_block_, last)};
    if (!keeps_rows_ || part.column == 0) PackRows(call, columns);
    for (; columns.exists(); columns.column += kernels_.columns) {
      RunColumns(call, columns, /*packs=*/row == first);
    }
  }
}

uint32_t* ChainGemm::PackedColumns(const Call& call, const Panel& columns) const {
  const int64_t index = columns.part.index + columns.column / kernels_.columns;
  if (keeps_columns_) return call.columns + columns.column * Steps(columns.part.depth);
  return call.columns +
         (kernels_.packs_meanwhile ? index % 2 * kernels_.columns * Steps(depth_) : 0);
}

uint32_t* ChainGemm::PackedRows(const Call& call, const Panel& columns, int64_t panel) const {
  const Part& part = columns.part;
  const int64_t parts_before = part.term * CeilDivide(shape_.k, depth_) + part.k / depth_;
  return call.rows + (keeps_rows_ ? parts_before * row_words_ : 0) +
         (panel - columns.first) * row_panel_words_;
}

void ChainGemm::RunColumns(const Call& call, const Panel& columns, bool packs) const {
  const Part& part = columns.part;
  const int64_t steps = Steps(part.depth), width = WidthOf(part, columns.column);
  uint32_t* const packed = PackedColumns(call, columns);
  const gemm::Source source = Columns(call, columns);
  const bool as_they_lie = takes_columns_ && source.width == width;
  const bool meanwhile = kernels_.packs_meanwhile && packs;
  const bool is_packed =
      !packs || (meanwhile && (columns.column > 0 || (part.index > 0 && !keeps_columns_)));
  if (!is_packed && !as_they_lie) kernels_.pack_columns(source, part.depth, width, packed);
  const Panel next = After(columns);
  gemm::Packing packing = {};
  if (meanwhile && next.exists()) {
    packing = {.source = Columns(call, next),
               .depth = next.part.depth,
               .stride = WidthOf(next.part, next.column),
               .to = PackedColumns(call, next)};
  }
  // What the next columns need is fetched meanwhile, a part by each tile; where these are packed,
  // what those after them need.
  const Panel fetched = meanwhile ? After(next) : next;
  const bool from_source = packs || takes_columns_;
  const void* ahead = nullptr;
  if (fetched.exists()) {
    ahead = from_source ? Columns(call, fetched).first : PackedColumns(call, fetched);
  }
  const std::vector<int64_t>& lines = from_source ? source_lines_ : packed_lines_;
  const int64_t most_fetched = static_cast<int64_t>(lines.size() - no_lines_.size());
  const int64_t pieces =
      packing.to == nullptr ? 0 : packing.stride * Steps(packing.depth) / gemm::kPieceWords;
  const int64_t all_steps = (columns.end - columns.first) * steps;
  int64_t done = 0;  // steps of tiles
  for (int64_t step = 0; step < steps; step += stage_steps_) {
    const int64_t count = std::min(stage_steps_, steps - step);
    const Stage stage = {step, count, step == 0, step + count == steps};
    for (int64_t panel = columns.first; panel < columns.end; ++panel, done += count) {
      const int64_t line = std::min(done / gemm::kStepsOfAhead, most_fetched);
      const int64_t height = RoundUp(RowsOf(panel), kernels_.height);
      packing.piece = pieces * done / all_steps;
      packing.end = pieces * (done + count) / all_steps;
      gemm::Tile tile = {.steps = count,
                         .a = PackedRows(call, columns, panel) + step * height,
                         .b = as_they_lie
                                  ? static_cast<const uint32_t*>(source.first) + step * shape_.ldb
                                  : packed + step * width,
                         .b_stride = as_they_lie ? shape_.ldb : width,
                         .to = call.tiles + (panel - columns.first) % tiles_ * kTileWords,
                         .ahead = ahead == nullptr ? packed : ahead,
                         .ahead_offsets = ahead == nullptr ? no_lines_.data() : lines.data() + line,
                         .packing = packing};
      if (shape_.terms > 1) {
        MultiplyTerm(call, columns, stage, panel, tile);
      } else {
        MultiplyTile(call, columns, stage, panel, tile);
      }
    }
  }
}

// Where rows lie side by side, packs a few k of all panels, whose memory is one piece, before the
// next few.
void ChainGemm::PackRows(const Call& call, const Panel& columns) const {
  const Part& part = columns.part;
  const int64_t most = shape_.a_transposed ? 2 * gemm::kBlock : part.depth;
  for (int64_t k = 0; k < part.depth; k += most) {
    Part few = part;
    few.k += k;
    for (int64_t panel = columns.first; panel < columns.end; ++panel) {
      const gemm::Source rows = Rows(call, few, panel);
      const int64_t stride = RoundUp(rows.width, kernels_.height);
      kernels_.pack_rows(rows, std::min(most, part.depth - k), stride,
                         PackedRows(call, columns, panel) + Steps(k) * stride);
    }
  }
}

int64_t ChainGemm::WidthOf(const Part& part, int64_t column) const {
  const int64_t half = kernels_.columns / 2;
  return part.columns - column <= half ? half : kernels_.columns;
}

int64_t ChainGemm::RowsOf(int64_t panel) const {
  return std::min(panel_rows_, shape_.m - panel * panel_rows_);
}

gemm::Source ChainGemm::Rows(const Call& call, const Part& part, int64_t panel) const {
  const int64_t row = panel * panel_rows_;
  const int64_t at = shape_.a_transposed ? part.k * shape_.lda + row : row * shape_.lda + part.k;
  return {
      .first = static_cast<const char*>(call.terms[part.term].a) + at * ElementSize(shape_.input),
      .leading = shape_.lda,
      .k_dense = !shape_.a_transposed,
      .width = RowsOf(panel),
      .available = shape_.m - row};
}

gemm::Source ChainGemm::Columns(const Call& call, const Panel& columns) const {
  const Part& part = columns.part;
  const int64_t first = part.column + columns.column;
  const int64_t at =
      shape_.b_transposed ? first * shape_.ldb + part.k : part.k * shape_.ldb + first;
  return {
      .first = static_cast<const char*>(call.terms[part.term].b) + at * ElementSize(shape_.input),
      .leading = shape_.ldb,
      .k_dense = shape_.b_transposed,
      .width = std::min(kernels_.columns, part.columns - columns.column),
      .available = shape_.n - first};
}

gemm::MultiplyFunction ChainGemm::MultiplyOf(const Panel& columns, int64_t panel) const {
  const bool whole = WidthOf(columns.part, columns.column) == kernels_.columns;
  return kernels_.multiply[(RowsOf(panel) - 1) / kernels_.height][whole ? 1 : 0];
}

// The chain of a term grows behind the levels that are occupied; what it becomes is added to those
// with which the tree merges it.
void ChainGemm::MultiplyTerm(const Call& call, const Panel& columns, const Stage& stage,
                             int64_t panel, gemm::Tile& tile) const {
  const Part& part = columns.part;
  const TreeStep step = StepOfTerm(part.term, shape_.terms);
  const int64_t width = WidthOf(part, columns.column), rows = RowsOf(panel);
  const int64_t tile_index =
      columns.column / kernels_.columns * panels_of_block_ + panel - columns.first;
  const auto level = [&](int index) {
    return call.levels + index * level_words_ + tile_index * level_tile_words_;
  };
  const bool ends = stage.is_last && part.is_last, merges = step.merges > 0;
  float* const through = tile.to;
  float* const c =
      static_cast<float*>(call.c) + panel * panel_rows_ * shape_.ldc + part.column + columns.column;
  const bool into_c = ends && part.term + 1 == shape_.terms;
  if (into_c) tile.next = c, tile.next_rows = rows, tile.next_stride = shape_.ldc;
  tile.from = !stage.is_first ? through : part.is_first ? nullptr : level(step.occupied);
  tile.to = !stage.is_last || (ends && merges) ? through : level(step.occupied);
  tile.from_stride = tile.to_stride = width;
  MultiplyOf(columns, panel)(tile);
  if (!ends || !merges) return;
  const gemm::FlushSubnormals numbers(/*flush=*/false);
  kernels_.add({.tile = through,
                .last_level = level(step.occupied - 1),
                .level_words = level_words_,
                .levels = step.merges,
                .stride = width,
                .rows = rows,
                .columns = std::min(kernels_.columns, part.columns - columns.column),
                .to = into_c ? c : level(step.level()),
                .to_stride = into_c ? shape_.ldc : width});
}

void ChainGemm::MultiplyTile(const Call& call, const Panel& columns_of, const Stage& stage,
                             int64_t panel, gemm::Tile& tile) const {
  const Part& part = columns_of.part;
  const int64_t column = columns_of.column;
  const int64_t row = panel * panel_rows_, rows = RowsOf(panel);
  const int64_t columns = std::min(kernels_.columns, part.columns - column);
  const int64_t width = WidthOf(part, column);
  const bool fp32 = shape_.output == DType::kF32;
  void* const result = static_cast<char*>(call.c) +
                       (row * shape_.ldc + part.column + column) * ElementSize(shape_.output);
  // Where the chains of this part are left, and those of the one before were.
  float* const sums = sums_apart_ ? call.sums + row * sums_stride_ + column
                      : fp32      ? static_cast<float*>(result)
                                  : nullptr;
  const int64_t stride = sums_apart_ ? sums_stride_ : shape_.ldc;
  const bool from_c = part.is_first && shape_.accumulate;
  const bool continues = !part.is_first || from_c;
  const bool finish = part.is_last && (call.bias != nullptr || !fp32);
  const bool whole = columns == width && rows % kernels_.height == 0 && sums != nullptr;
  if (whole && (stage.is_last || from_c)) {
    tile.next = sums + rows * stride;
    tile.next_rows = rows;
    tile.next_stride = stride;
  }
  // Through memory of a tile's extents where c's are less, or c has another type, and from stage to
  // stage.
  float* const through = tile.to;
  tile.from = sums, tile.from_stride = stride;
  tile.to = sums, tile.to_stride = stride;
  if (!stage.is_first) {
    tile.from = through, tile.from_stride = width;
  } else if (continues && (!whole || (from_c && !fp32))) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        through[i * width + j] =
            from_c && !fp32 ? float(static_cast<const BFloat16*>(result)[i * shape_.ldc + j])
                            : sums[i * stride + j];
      }
    }
    tile.from = through, tile.from_stride = width;
  }
  if (stage.is_first && !continues) tile.from = nullptr;
  if (!stage.is_last || !whole || finish) tile.to = through, tile.to_stride = width;
  MultiplyOf(columns_of, panel)(tile);
  if (!stage.is_last) return;
  if (finish) {
    const char* const added = static_cast<const char*>(call.bias);
    kernels_.finish[fp32 ? 0 : 1](
        through, width, rows, columns,
        added == nullptr ? nullptr : added + (part.column + column) * ElementSize(shape_.input),
        result, shape_.ldc);
  } else if (!whole) {
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(sums + i * stride, through + i * width, columns * sizeof(float));
    }
  }
}

}  // namespace tessera
