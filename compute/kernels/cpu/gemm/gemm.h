#ifndef TESSERA_COMPUTE_KERNELS_CPU_GEMM_GEMM_H_
#define TESSERA_COMPUTE_KERNELS_CPU_GEMM_GEMM_H_

// Matrix products whose bits follow from their operands alone.
//
// THE CONTRACT, version kGemmContract. Every element of c is computed apart from all others, by the
// following operations in this order, whatever the shape of the product, its blocks, the layout of
// its operands, the number of threads and the processor:
//
//   fp32:  s = 0, or c where the product accumulates;
//          for k = 0, 1, 2, ...:  s = fma(a[k], b[k], s).
//
//   bf16:  s as above, in fp32; k in blocks of 32, the last filled up with zeros. For each block:
//          even = odd = 0;
//          for k = 0, 2, ..., 30 of the block:  even = fma(a[k],   b[k],   even)
//                                               odd  = fma(a[k+1], b[k+1], odd);
//          s = s + (even + odd).
//
// Then, with a bias, s = s + bias; and s is c, rounded where c is bf16. All numbers are fp32, and
// each operation is rounded once, to the nearest, ties to even. In fp32 subnormals are numbers like
// all others. In bf16 they are zeros wherever an operation reads or produces one. (NaN is NaN, of
// unspecified payload.)
//
// The order for bf16 is the one that Intel documents for AMX: TDPBF16PS computes one block. The
// instruction is used if the processor has it and, at the program's start, it gives the bits of a
// model (amx-inl.h). VDPBF16PS (AVX-512) computes two multiply-adds of a chain, with the same
// rounding and flushing, from operands whose pairs are packed as (0, 2), (4, 6), ...; every other
// processor, and one whose multiply-adds of fp32 are faster, computes them one by one from widened
// numbers. Without a multiply-add in hardware
// (SSE4), an `exact` product composes it of fp64 operations, which takes many times as long; any
// other product uses a multiplication and an addition, which do not give the bits of the contract.
//
// A sum of products, of `terms` terms in fp32, adds them in the tree T(0, terms) of
// communicator.h's ReduceOp, after each is complete; in these additions subnormals are numbers.
//
// So a product may be cut along m and n, and along k where the cut is a multiple of 32 (fp32:
// anywhere): the sum of the parts, each of which accumulates to the one before in fp32, is the
// product. A row of c does not depend on what the other rows are.
//
// Implementation: packed panels and register tiles, as in BLIS (see gemm.cc); kernels.h has the
// code that is compiled for each instruction set.

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "compute/kernels/cpu/gemm/kernels.h"
#include "layout/dtype.h"

namespace tessera {

// Version of the contract; changes with every change of a bit.
inline constexpr int kGemmContract = 1;

// Everything that determines one product, except its operands: c[m,n] = a[m,k] b[k,n] (+ c) (+
// bias[n]). a, b row-major with a leading dimension, or, transposed, column-major with one. c
// row-major.
struct GemmShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldc = 0;
  bool a_transposed = false;
  bool b_transposed = false;
  int64_t terms = 1;      // ours only; with several, c is fp32, without `accumulate` and `bias`
  bool b_packed = false;  // oneDNN's products only: bf16, in the layout of matmul_pack.h
  DType input = DType::kF32;
  DType output = DType::kF32;  // fp32, or bf16 as the input
  bool accumulate = false;
  bool bias = false;  // in the input's dtype

  auto operator<=>(const GemmShape&) const = default;  // NOLINT(modernize-use-nullptr)
};

// The operands of a term.
struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
};

// A product, or a sum of them, ready to run on any thread. Keeps no operand, so it may run on
// several threads at once.
class ChainGemm {
 public:
  // Computes by the contract if `exact`, else in the processor's fastest order: fp32 by the
  // contract except on processors without multiply-adds, bf16 in one chain. In either order,
  // blocks, layouts and threads change no bit.
  ChainGemm(const GemmShape& shape, bool exact)
      : ChainGemm(shape, gemm::KernelsFor(shape.input, exact)) {}
  ChainGemm(const GemmShape& shape, const gemm::Kernels& kernels);

  // Returns the size of the scratch memory that a call of Run() uses.
  int64_t scratch_bytes() const { return scratch_words_ * static_cast<int64_t>(sizeof(float)); }

  // Computes the product on the calling thread alone. `terms` has the operands of each term of the
  // shape; no element outside them is read or written. `scratch` begins on a cache line.
  void Run(std::span<const GemmOperands> terms, void* c, const void* bias, void* scratch) const;
  void Run(const void* a, const void* b, void* c, const void* bias, void* scratch) const {
    const GemmOperands term = {a, b};
    Run({&term, 1}, c, bias, scratch);
  }

 private:
  struct Call;
  struct Part;
  struct Panel;
  struct Stage;

  Part PartAt(int64_t column, int64_t term, int64_t k, int64_t index) const;
  Part After(const Part& part) const;
  Panel After(const Panel& panel) const;
  void RunPart(const Call& call, const Part& part, int64_t first, int64_t last) const;
  void RunColumns(const Call& call, const Panel& columns, bool packs) const;
  uint32_t* PackedColumns(const Call& call, const Panel& columns) const;
  uint32_t* PackedRows(const Call& call, const Panel& columns, int64_t panel) const;
  int64_t RowsOf(int64_t panel) const;
  gemm::Source Rows(const Call& call, const Part& part, int64_t panel) const;
  gemm::Source Columns(const Call& call, const Panel& columns) const;
  void PackRows(const Call& call, const Panel& columns) const;
  int64_t WidthOf(const Part& part, int64_t column) const;
  gemm::MultiplyFunction MultiplyOf(const Panel& columns, int64_t panel) const;
  void MultiplyTile(const Call& call, const Panel& columns, const Stage& stage, int64_t panel,
                    gemm::Tile& tile) const;
  void MultiplyTerm(const Call& call, const Panel& columns, const Stage& stage, int64_t panel,
                    gemm::Tile& tile) const;
  int64_t Steps(int64_t depth) const;

  const GemmShape shape_;
  const gemm::Kernels& kernels_;
  int64_t depth_ = 0;        // of a part of k
  int64_t stage_steps_ = 0;  // of a part, before the next steps are taken
  int64_t columns_ = 0;      // of b that are packed at once
  int64_t panel_rows_ = 0, row_panels_ = 0;
  int64_t panels_of_block_ = 0;  // of rows that are packed at once
  bool keeps_columns_ = false;   // several blocks of rows use them
  bool keeps_rows_ = false;      // several blocks of columns use them, in all terms
  bool takes_columns_ = false;   // whole panels of b are used as they lie
  bool sums_apart_ = false;      // c is bf16 and k has several parts: sums are kept in scratch
  int64_t sums_stride_ = 0;      // from one row of them to the next
  int64_t tiles_ = 0;            // whose sums pass through scratch
  // Sizes within scratch: a panel of rows, the rows of a part of k, all rows, the columns.
  int64_t row_panel_words_ = 0, row_words_ = 0, all_row_words_ = 0, column_words_ = 0;
  int64_t sum_words_ = 0, level_tile_words_ = 0, level_words_ = 0;
  int64_t scratch_words_ = 0;
  // Cache lines of a panel of b before it is packed and after, relative to its beginning.
  std::vector<int64_t> source_lines_, packed_lines_, no_lines_;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_GEMM_H_
