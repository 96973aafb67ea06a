// c[M,N] = a[M,K] b[K,N] around the innermost loops of OpenBLAS, whose matrices are column-major:
// they see c^T[N,M], and take b's columns before a's rows.
//
// For every part of K, all rows of a are packed; then each block of columns of b in turn is packed
// and multiplied by all rows. Rows are packed in panels of a few, of which one fits into the
// first-level cache, and the block of columns fits into the second-level cache.

#include <glog/logging.h>
#include <x86_64-linux-gnu/openblas-pthread/openblas_config.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/cpu_level.h"
#include "compute/kernels/cpu/gemm.h"
#include "compute/kernels/cpu/gemm_libraries.h"
#include "compute/kernels/cpu/workspace.h"
#include "layout/dtype.h"

// The primitives of OpenBLAS's own products. Extents are of the packed matrices: k elements of each
// of that many rows or columns.
extern "C" {
// c += alpha * the product of `columns` packed columns and `rows` packed rows.
using OpenBlasKernel = int(int64_t columns, int64_t rows, int64_t k, float alpha,
                           const float* packed_columns, const float* packed_rows, float* c,
                           int64_t ldc);
using OpenBlasPack = int(int64_t k, int64_t extent, const float* from, int64_t leading,
                         float* packed);
OpenBlasKernel sgemm_kernel_HASWELL, sgemm_kernel_NEHALEM;
OpenBlasPack sgemm_incopy_HASWELL, sgemm_itcopy_HASWELL, sgemm_oncopy_HASWELL, sgemm_otcopy_HASWELL;
OpenBlasPack sgemm_incopy_NEHALEM, sgemm_itcopy_NEHALEM, sgemm_oncopy_NEHALEM, sgemm_otcopy_NEHALEM;
}

namespace tessera {
namespace {

static_assert(sizeof(BLASLONG) == sizeof(int64_t));

// Lengths of the parts of K, so that the operands of one kernel step (12 rows, 8 columns) stay in
// 32 KiB of first-level cache, and of columns, for 512 KiB of second-level cache.
constexpr int64_t kMaxDepth = 320;
constexpr int64_t kMaxColumns = 256;

struct Kernels {
  const char* name;
  OpenBlasKernel* multiply;
  // Pack functions for columns of b and rows of a: for matrices in which the elements of one column
  // or row are contiguous ("dense"), and for those in which neighbours are.
  OpenBlasPack* pack_dense_columns;
  OpenBlasPack* pack_columns;
  OpenBlasPack* pack_dense_rows;
  OpenBlasPack* pack_rows;
};

const Kernels& KernelsOf(CpuLevel level) {
  static constexpr Kernels kHaswell = {"Haswell",
                                       sgemm_kernel_HASWELL,
                                       sgemm_incopy_HASWELL,
                                       sgemm_itcopy_HASWELL,
                                       sgemm_oncopy_HASWELL,
                                       sgemm_otcopy_HASWELL};
  static constexpr Kernels kNehalem = {"Nehalem",
                                       sgemm_kernel_NEHALEM,
                                       sgemm_incopy_NEHALEM,
                                       sgemm_itcopy_NEHALEM,
                                       sgemm_oncopy_NEHALEM,
                                       sgemm_otcopy_NEHALEM};
  return level >= CpuLevel::kAvx2 ? kHaswell : kNehalem;
}

// Near-equal parts of at most `most`, each but the last a multiple of `quantum`.
int64_t PartOf(int64_t extent, int64_t most, int64_t quantum) {
  const int64_t parts = (extent + most - 1) / most;
  return ((extent + parts - 1) / parts + quantum - 1) / quantum * quantum;
}

class OpenBlasGemm final : public Gemm {
 public:
  OpenBlasGemm(const GemmShape& shape, const Kernels& kernels, Workspace& scratch)
      : shape_(shape),
        kernels_(kernels),
        depth_(std::min(shape.k, PartOf(shape.k, kMaxDepth, 8))),
        columns_(std::min(shape.n, PartOf(shape.n, kMaxColumns, 8))),
        scratch_(scratch) {
    CHECK(shape.input == DType::kF32 && shape.output == DType::kF32);
    scratch.ReservePerThread(scratch_elements() * static_cast<int64_t>(sizeof(float)));
  }

  void Run(int thread, const void* a, const void* b, void* c, const void* bias) const override {
    float* const packed_columns = scratch_.OfThread<float>(thread, scratch_elements());
    float* const packed_rows = packed_columns + PackedColumnsElements();
    const GemmShape& s = shape_;
    for (int64_t k = 0; k < s.k; k += depth_) {
      const int64_t depth = std::min(depth_, s.k - k);
      PackRows(static_cast<const float*>(a), k, depth, packed_rows);
      for (int64_t column = 0; column < s.n; column += columns_) {
        const int64_t columns = std::min(columns_, s.n - column);
        float* const sums = static_cast<float*>(c) + column;
        if (k == 0) Start(static_cast<const float*>(bias), column, columns, sums);
        PackColumns(static_cast<const float*>(b), k, depth, column, columns, packed_columns);
        kernels_.multiply(columns, s.m, depth, 1.0f, packed_columns, packed_rows, sums, s.ldc);
      }
    }
  }

 private:
  // Initialises c, to which the kernels add.
  void Start(const float* bias, int64_t column, int64_t columns, float* sums) const {
    for (int64_t row = 0; row < shape_.m; ++row, sums += shape_.ldc) {
      if (bias == nullptr) {
        if (!shape_.accumulate) std::memset(sums, 0, columns * sizeof(float));
      } else if (shape_.accumulate) {
        for (int64_t i = 0; i < columns; ++i) sums[i] += bias[column + i];
      } else {
        std::memcpy(sums, bias + column, columns * sizeof(float));
      }
    }
  }

  void PackRows(const float* a, int64_t k, int64_t depth, float* packed) const {
    if (shape_.a_transposed) {
      kernels_.pack_rows(depth, shape_.m, a + k * shape_.lda, shape_.lda, packed);
    } else {
      kernels_.pack_dense_rows(depth, shape_.m, a + k, shape_.lda, packed);
    }
  }

  void PackColumns(const float* b, int64_t k, int64_t depth, int64_t column, int64_t columns,
                   float* packed) const {
    if (shape_.b_transposed) {
      kernels_.pack_dense_columns(depth, columns, b + column * shape_.ldb + k, shape_.ldb, packed);
    } else {
      kernels_.pack_columns(depth, columns, b + k * shape_.ldb + column, shape_.ldb, packed);
    }
  }

  // Kernels read packed panels at aligned addresses, and may load a few elements past their end.
  static constexpr int64_t kLine = 16, kSlack = 64;
  int64_t PackedColumnsElements() const {
    return (columns_ * depth_ + kSlack + kLine - 1) / kLine * kLine;
  }
  int64_t scratch_elements() const { return PackedColumnsElements() + shape_.m * depth_ + kSlack; }

  const GemmShape shape_;
  const Kernels& kernels_;
  const int64_t depth_, columns_;  // packed at once
  Workspace& scratch_;
};

}  // namespace

std::unique_ptr<Gemm> MakeOpenBlasGemm(const GemmShape& shape, CpuLevel level, Workspace& scratch) {
  return std::make_unique<OpenBlasGemm>(shape, KernelsOf(level), scratch);
}

std::string OpenBlasDescription(CpuLevel level) {
  return absl::StrCat(absl::StripAsciiWhitespace(OPENBLAS_VERSION), " ", KernelsOf(level).name);
}

}  // namespace tessera
