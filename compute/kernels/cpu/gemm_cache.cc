#include "compute/kernels/cpu/gemm_cache.h"

#include <cstdint>
#include <memory>
#include <string>

#include "base/cpu_level.h"
#include "compute/kernels/cpu/gemm.h"
#include "compute/kernels/cpu/gemm/gemm.h"
#include "compute/kernels/cpu/gemm_libraries.h"
#include "compute/kernels/cpu/workspace.h"
#include "layout/dtype.h"

namespace tessera {
namespace {

bool UsesOpenBlas() { return EffectiveCpuLevel() < CpuLevel::kAvx512; }

class OwnGemm final : public Gemm {
 public:
  OwnGemm(const GemmShape& shape, bool fused, Workspace& scratch)
      : product_(shape, fused), scratch_(scratch) {
    scratch.ReservePerThread(product_.scratch_bytes());
  }

  void Run(int thread, const void* a, const void* b, void* c, const void* bias) const override {
    product_.Run(a, b, c, bias, scratch_.OfThread<char>(thread, product_.scratch_bytes()));
  }

 private:
  const ChainGemm product_;
  Workspace& scratch_;
};

}  // namespace

struct GemmCache::Threads {
  explicit Threads(int count) : scratch(count), widened(count), dnnl(count, scratch) {}

  Workspace scratch;  // for a library's product
  Workspace widened;  // for a product that calls another one
  DnnlGemms dnnl;
};

GemmCache::GemmCache(int threads, bool exact)
    : threads_(std::make_unique<Threads>(threads)),
      exact_(exact),
      has_bf16_(DnnlHasBf16()),
      has_packed_(!exact && has_bf16_ && threads_->dnnl.HasPackedKernels()),
      has_openblas_(UsesOpenBlas()) {}

GemmCache::~GemmCache() = default;

const Gemm& GemmCache::Get(const GemmShape& shape) {
  std::unique_ptr<Gemm>& gemm = gemms_[shape];
  if (gemm == nullptr) gemm = Make(shape);
  return *gemm;
}

std::unique_ptr<Gemm> GemmCache::Make(const GemmShape& shape) {
  if (exact_) return std::make_unique<OwnGemm>(shape, /*fused=*/true, threads_->scratch);
  if (shape.input == DType::kBF16 && !has_bf16_) {
    return MakeWidenedGemm(
        shape, [this](const GemmShape& wide) -> const Gemm& { return Get(wide); },
        threads_->widened);
  }
  if (shape.input == DType::kF32 && has_openblas_) {
    return MakeOpenBlasGemm(shape, EffectiveCpuLevel(), threads_->scratch);
  }
  return threads_->dnnl.Make(shape);
}

std::string GemmLibrary() {
  return UsesOpenBlas() ? OpenBlasDescription(EffectiveCpuLevel()) : DnnlDescription();
}

}  // namespace tessera

// ThreadSanitizer calls this where a program is built with it. oneDNN is not built with it and
// keeps created products in a process-wide cache whose locks ThreadSanitizer cannot see: backends
// on several threads would be reported to race when they create equal products and when they first
// use that cache.
extern "C" const char* __tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions() {
  return "race:tessera::GemmCache::Get\nrace:tessera::GemmCache::GemmCache\n";
}
