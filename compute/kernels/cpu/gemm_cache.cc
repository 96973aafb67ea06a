#include "compute/kernels/cpu/gemm_cache.h"

#include <span>

#include "absl/strings/str_cat.h"
#include "base/cpu_level.h"
#include "compute/kernels/cpu/dnnl_gemm.h"
#include "compute/kernels/cpu/gemm/gemm.h"
#include "compute/kernels/cpu/workspace.h"

namespace tessera {
namespace {

bool UsesDnnl() { return EffectiveCpuLevel() == CpuLevel::kAvx512; }

class OwnGemm final : public Gemm {
 public:
  OwnGemm(const GemmShape& shape, bool exact, Workspace& scratch)
      : product_(shape, exact), scratch_(scratch) {
    scratch.ReservePerThread(product_.scratch_bytes());
  }

  void Run(int thread, std::span<const GemmOperands> terms, void* c,
           const void* bias) const override {
    product_.Run(terms, c, bias, scratch_.OfThread<char>(thread, product_.scratch_bytes()));
  }

 private:
  const ChainGemm product_;
  Workspace& scratch_;
};

}  // namespace

struct GemmCache::Threads {
  explicit Threads(int count) : scratch(count), dnnl(count, scratch) {}

  Workspace scratch;
  DnnlGemms dnnl;
};

GemmCache::GemmCache(int threads, GemmKind kind)
    : threads_(std::make_unique<Threads>(threads)),
      exact_(kind == GemmKind::kExact),
      dnnl_fp32_(kind == GemmKind::kFast && UsesDnnl()),
      dnnl_bf16_(kind == GemmKind::kFast && DnnlHasBf16()),
      has_packed_(dnnl_bf16_ && threads_->dnnl.HasPackedKernels()) {}

GemmCache::~GemmCache() = default;

const Gemm& GemmCache::Get(const GemmShape& shape) {
  std::unique_ptr<Gemm>& gemm = gemms_[shape];
  if (gemm == nullptr && uses_dnnl(shape.input)) gemm = threads_->dnnl.Make(shape);
  if (gemm == nullptr) gemm = std::make_unique<OwnGemm>(shape, exact_, threads_->scratch);
  return *gemm;
}

std::string GemmLibrary() {
  return UsesDnnl() ? DnnlDescription() : absl::StrCat("own ", kGemmContract);
}

}  // namespace tessera
