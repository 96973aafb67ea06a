#ifndef TESSERA_TRAINER_KERNELS_CPU_GEMM_H_
#define TESSERA_TRAINER_KERNELS_CPU_GEMM_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "trainer/kernels/cpu/workspace.h"
#include "trainer/tensor/dtype.h"

namespace tessera {

// Everything that one canonical product depends on but its operands: c[m,n] = a[m,k] b[k,n] (+
// bias[n]) (+ c). a, b row-major with a leading dimension, or, transposed, column-major with one. c
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
  bool b_packed = false;  // bf16, as matmul_pack.h says
  DType input = DType::kF32;
  DType output = DType::kF32;
  bool accumulate = false;
  bool bias = false;  // of the input's dtype

  auto operator<=>(const GemmShape&) const = default;
};

// One oneDNN matmul, ready to run on any thread of the pool.
class Gemm {
 public:
  virtual ~Gemm() = default;
  // On the calling thread alone. `thread`: its index in the pool.
  virtual void Run(int thread, const void* a, const void* b, void* c,
                   const void* bias = nullptr) const = 0;
};

// Makes each product once. Get() belongs to the calling thread, outside of loops; what it returns
// lives as long as the cache.
class GemmCache {
 public:
  explicit GemmCache(int threads);
  ~GemmCache();

  const Gemm& Get(const GemmShape& shape);

  // Whether oneDNN has kernels for this processor that want b packed.
  bool has_packed() const { return has_packed_; }

 private:
  struct Threads;

  std::unique_ptr<Threads> threads_;
  const bool has_packed_;
  std::map<GemmShape, std::unique_ptr<Gemm>> gemms_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_KERNELS_CPU_GEMM_H_
