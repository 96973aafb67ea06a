// Columns of b are taken a few thousand at a time, and for them one part of k after the other. For
// each, a block of rows of a is packed, in panels of the height of a register tile, and stays in
// the second-level cache. Then panels of columns, of a tile's width, are multiplied by all of its
// panels of rows. The first block of rows packs each panel of columns right before its use, unless
// it can be used as it lies; its tiles fetch the memory of the next panel meanwhile, so that
// packing costs little even where there are few rows. (For AMX they also pack it, and fetch that of
// the one after it.) Each part of k continues the sums that the part before it left in c, or in
// scratch where c is not fp32.

#include "compute/kernels/cpu/gemm/gemm.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/checked_math.h"
#include "compute/kernels/cpu/gemm/kernels.h"
#include "layout/dtype.h"
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
  const void* a;
  const void* b;
  void* c;
  const void* bias;
  uint32_t* rows;     // packed
  uint32_t* columns;  // packed
  float* sums;        // [m, columns] if sums are apart
  float* tiles;       // [tiles_, kTileWords]
};

// A part of k for some columns.
struct ChainGemm::Part {
  int64_t column, columns;
  int64_t k, depth;
  bool is_first, is_last;
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
  // A block of rows takes half of the second-level cache; a panel of columns passes through it.
  const int64_t quantum = std::max<int64_t>(kernels_.block, 8);
  depth_ = std::min(shape.k, PartOf(shape.k, kernels_.most_steps * kernels_.k_per_step, quantum));
  const int64_t steps = Steps(depth_);
  panel_rows_ = PartOf(shape.m, kernels_.rows, kernels_.height);
  row_panels_ = (shape.m + panel_rows_ - 1) / panel_rows_;
  row_panel_words_ = kernels_.rows * steps + kSlack;
  const int64_t most_panels =
      std::max<int64_t>(1, SecondLevelCache() / 2 / (row_panel_words_ * kWordBytes));
  panels_of_block_ = PartOf(row_panels_, most_panels, 1);
  keeps_columns_ = panels_of_block_ < row_panels_;
  takes_columns_ =
      kernels_.takes_columns && !shape.b_transposed && shape.ldb * kWordBytes % kCrowded != 0;
  sums_apart_ = shape.output != DType::kF32 && depth_ < shape.k;
  columns_ = std::min(shape.n, PartOf(shape.n, kMostPackedColumns, kernels_.columns));
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
  scratch_words_ = row_words_ + column_words_ + sum_words_ + tiles_ * kTileWords;

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

void ChainGemm::Run(const void* a, const void* b, void* c, const void* bias, void* scratch) const {
  const gemm::FlushSubnormals flush(shape_.input == DType::kBF16);
  if (kernels_.begin != nullptr) kernels_.begin();
  Call call = {.a = a, .b = b, .c = c, .bias = bias};
  call.rows = static_cast<uint32_t*>(scratch);
  call.columns = call.rows + row_words_;
  call.sums = reinterpret_cast<float*>(call.columns + column_words_);
  call.tiles = call.sums + sum_words_;
  for (int64_t column = 0; column < shape_.n; column += columns_) {
    for (int64_t k = 0; k < shape_.k; k += depth_) {
      RunPart(call, {.column = column,
                     .columns = std::min(columns_, shape_.n - column),
                     .k = k,
                     .depth = std::min(depth_, shape_.k - k),
                     .is_first = k == 0,
                     .is_last = k + depth_ >= shape_.k});
    }
  }
  if (kernels_.end != nullptr) kernels_.end();
}

void ChainGemm::RunPart(const Call& call, const Part& part) const {
  for (int64_t first = 0; first < row_panels_; first += panels_of_block_) {
    const int64_t end = std::min(first + panels_of_block_, row_panels_);
    PackRows(call, part, first, end);
    for (int64_t column = 0; column < part.columns; column += kernels_.columns) {
      RunColumns(call, part, first, end, column);
    }
  }
}

uint32_t* ChainGemm::Packed(const Call& call, const Part& part, int64_t column) const {
  const int64_t kept = keeps_columns_ ? column : column % (2 * kernels_.columns);
  return call.columns + (keeps_columns_ || kernels_.packs_meanwhile ? kept * Steps(part.depth) : 0);
}

void ChainGemm::RunColumns(const Call& call, const Part& part, int64_t first, int64_t end,
                           int64_t column) const {
  const int64_t steps = Steps(part.depth), width = WidthOf(part, column);
  uint32_t* const packed = Packed(call, part, column);
  const gemm::Source source = Columns(call, part, column);
  const bool as_they_lie = takes_columns_ && source.width == width;
  const bool meanwhile = kernels_.packs_meanwhile && first == 0;
  if (first == 0 && !as_they_lie && (column == 0 || !meanwhile)) {
    kernels_.pack_columns(source, part.depth, width, packed);
  }
  const int64_t next = column + kernels_.columns;
  gemm::Packing packing = {};
  if (meanwhile && next < part.columns) {
    packing = {.source = Columns(call, part, next),
               .depth = part.depth,
               .stride = WidthOf(part, next),
               .to = Packed(call, part, next)};
  }
  // What the next columns need is fetched meanwhile, a part by each tile; where these are packed,
  // what those after them need.
  const int64_t fetched = meanwhile ? next + kernels_.columns : next;
  const bool from_source = first == 0 || takes_columns_;
  const void* ahead = nullptr;
  if (fetched < part.columns) {
    ahead = from_source ? Columns(call, part, fetched).first : Packed(call, part, fetched);
  }
  const std::vector<int64_t>& lines = from_source ? source_lines_ : packed_lines_;
  const int64_t most_fetched = static_cast<int64_t>(lines.size() - no_lines_.size());
  const int64_t pieces = packing.to == nullptr ? 0 : packing.stride * steps / gemm::kPieceWords;
  const int64_t all_steps = (end - first) * steps;
  int64_t done = 0;  // steps of tiles
  for (int64_t step = 0; step < steps; step += stage_steps_) {
    const int64_t count = std::min(stage_steps_, steps - step);
    const Stage stage = {step, count, step == 0, step + count == steps};
    for (int64_t panel = first; panel < end; ++panel, done += count) {
      const int64_t line = std::min(done / gemm::kStepsOfAhead, most_fetched);
      const int64_t height = RoundUp(RowsOf(panel), kernels_.height);
      packing.piece = pieces * done / all_steps;
      packing.end = pieces * (done + count) / all_steps;
      gemm::Tile tile = {
          .steps = count,
          .a = call.rows + (panel - first) * row_panel_words_ + step * height,
          .b = as_they_lie ? static_cast<const uint32_t*>(source.first) : packed + step * width,
          .b_stride = as_they_lie ? shape_.ldb : width,
          .to = call.tiles + (panel - first) % tiles_ * kTileWords,
          .ahead = ahead == nullptr ? packed : ahead,
          .ahead_offsets = ahead == nullptr ? no_lines_.data() : lines.data() + line,
          .packing = packing};
      MultiplyTile(call, part, stage, panel, column, tile);
    }
  }
}

// Where rows lie side by side, packs a few k of all panels, whose memory is one piece, before the
// next few.
void ChainGemm::PackRows(const Call& call, const Part& part, int64_t first, int64_t end) const {
  const int64_t most = shape_.a_transposed ? 2 * gemm::kBlock : part.depth;
  for (int64_t k = 0; k < part.depth; k += most) {
    Part few = part;
    few.k += k;
    for (int64_t panel = first; panel < end; ++panel) {
      const gemm::Source rows = Rows(call, few, panel);
      const int64_t stride = RoundUp(rows.width, kernels_.height);
      kernels_.pack_rows(rows, std::min(most, part.depth - k), stride,
                         call.rows + (panel - first) * row_panel_words_ + Steps(k) * stride);
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
  return {.first = static_cast<const char*>(call.a) + at * ElementSize(shape_.input),
          .leading = shape_.lda,
          .k_dense = !shape_.a_transposed,
          .width = RowsOf(panel),
          .available = shape_.m - row};
}

gemm::Source ChainGemm::Columns(const Call& call, const Part& part, int64_t column) const {
  const int64_t first = part.column + column;
  const int64_t at =
      shape_.b_transposed ? first * shape_.ldb + part.k : part.k * shape_.ldb + first;
  return {.first = static_cast<const char*>(call.b) + at * ElementSize(shape_.input),
          .leading = shape_.ldb,
          .k_dense = shape_.b_transposed,
          .width = std::min(kernels_.columns, part.columns - column),
          .available = shape_.n - first};
}

void ChainGemm::MultiplyTile(const Call& call, const Part& part, const Stage& stage, int64_t panel,
                             int64_t column, gemm::Tile& tile) const {
  const int64_t row = panel * panel_rows_, rows = RowsOf(panel);
  const int64_t columns = std::min(kernels_.columns, part.columns - column);
  const int64_t width = WidthOf(part, column);
  const gemm::MultiplyFunction multiply =
      kernels_.multiply[(rows - 1) / kernels_.height][width == kernels_.columns ? 1 : 0];
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
  multiply(tile);
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
