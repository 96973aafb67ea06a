// cuBLASLt's matrices are column-major, so that a row-major matrix is its own transpose there. c =
// a b is computed as c' = b' a': the first operand is b, of N rows, and the second one a, of M
// columns. "_first" and "_second" name them below.

#include "compute/kernels/cuda/cublaslt_products.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "compute/kernels/cuda/cublaslt_abi.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

int64_t AlignmentOf(int64_t leading_dim, DType dtype) {
  return std::gcd(leading_dim * ElementSize(dtype), kProductAlignmentBytes);
}

MatrixLayout LayoutOf(const TensorView& x) {
  CHECK_EQ(x.rank(), 2) << ShapeToString(x.shape());
  const bool row_major = x.dim(1) <= 1 || x.stride(1) == 1;
  CHECK(row_major || x.dim(0) <= 1 || x.stride(0) == 1)
      << "neither dim is dense: " << ShapeToString(x.shape());
  // The stride of a single row has no meaning, and may be less than its length.
  const int64_t length = x.dim(row_major ? 1 : 0), count = x.dim(row_major ? 0 : 1);
  const int64_t stride = count <= 1 ? length : x.stride(row_major ? 0 : 1);
  const int64_t leading_dim = std::max<int64_t>({stride, length, 1});
  return {row_major, leading_dim, AlignmentOf(leading_dim, x.dtype())};
}

namespace {

using cublaslt_abi::kReductionComputeType;
using cublaslt_abi::kReductionNone;

constexpr int kProposals = 16;

// Operands of an epilogue lie at multiples of this, and no more is promised.
constexpr int64_t kEpilogueAlignmentBytes = kProductAlignmentBytes;

int CudaType(DType dtype) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16) << DTypeName(dtype);
  return dtype == DType::kF32 ? cublaslt_abi::kReal32F : cublaslt_abi::kReal16BF;
}

// What an algorithm is chosen by.
struct ProductKey {
  int64_t m, n, k;
  int64_t leading_first, leading_second, leading_c;
  bool transposes_first, transposes_second;
  bool bias;
  DType operands, result;
  std::optional<GeluUse> gelu;
  int64_t leading_aux = 0;
  enum Sums { kNone, kOfFirst, kOfSecond } sums = kNone;

  auto operator<=>(const ProductKey&) const = default;
};

// Different keys have different names: a table of products has its proposals by these. An operand
// that is stored transposed has a '.
std::string ToString(const ProductKey& key) {
  std::string text = absl::StrCat(
      "product [", key.m, ",", key.k, key.transposes_second ? "]' x [" : "] x [", key.k, ",", key.n,
      key.transposes_first ? "]' of " : "] of ", std::string(DTypeName(key.operands)), " to ",
      std::string(DTypeName(key.result)), key.bias ? " with a bias" : "");
  if (key.gelu.has_value()) {
    absl::StrAppend(&text, *key.gelu == GeluUse::kForward ? " and GELU" : " and GELU's gradient",
                    " of stride ", key.leading_aux);
  }
  if (key.sums != ProductKey::kNone) {
    absl::StrAppend(&text, " with the sums of the ",
                    key.sums == ProductKey::kOfFirst ? "second" : "first", " factor");
  }
  absl::StrAppend(&text, ", strides ", key.leading_second, ", ", key.leading_first, " and ",
                  key.leading_c);
  return text;
}

uint32_t EpilogueOf(const ProductKey& key) {
  if (key.sums == ProductKey::kOfFirst) return cublaslt_abi::kEpilogueBgradA;
  if (key.sums == ProductKey::kOfSecond) return cublaslt_abi::kEpilogueBgradB;
  if (!key.gelu.has_value()) {
    return key.bias ? cublaslt_abi::kEpilogueBias : cublaslt_abi::kEpilogueDefault;
  }
  if (*key.gelu == GeluUse::kBackward) return cublaslt_abi::kEpilogueDGelu;
  return key.bias ? cublaslt_abi::kEpilogueGeluAuxBias : cublaslt_abi::kEpilogueGeluAux;
}

ProductKey KeyOf(const TensorView& a, const TensorView& b, const TensorView& c, bool bias) {
  const MatrixLayout first = LayoutOf(b), second = LayoutOf(a), result = LayoutOf(c);
  return {.m = c.dim(0),
          .n = c.dim(1),
          .k = a.dim(1),
          .leading_first = first.leading_dim,
          .leading_second = second.leading_dim,
          .leading_c = result.leading_dim,
          .transposes_first = !first.row_major,
          .transposes_second = !second.row_major,
          .bias = bias,
          .operands = a.dtype(),
          .result = c.dtype(),
          .gelu = std::nullopt};
}

// Descriptors and the algorithm of one kind of product.
struct ProductPlan {
  explicit ProductPlan(CublasLtApi& api_of_plan) : api(api_of_plan) {}
  ~ProductPlan() {
    if (desc != nullptr) api.MatmulDescDestroy(desc);
    for (CublasLtApi::MatrixLayout layout : {first, second, c}) {
      if (layout != nullptr) api.MatrixLayoutDestroy(layout);
    }
    if (preference != nullptr) api.MatmulPreferenceDestroy(preference);
  }
  ProductPlan(const ProductPlan&) = delete;
  ProductPlan& operator=(const ProductPlan&) = delete;

  CublasLtApi& api;
  CublasLtApi::MatmulDesc desc = nullptr;
  CublasLtApi::MatrixLayout first = nullptr, second = nullptr, c = nullptr;
  CublasLtApi::Preference preference = nullptr;  // needed until the algorithm is chosen
  CublasLtApi::Algo algo = {};
  int proposal = 0;  // the number of the algorithm
};

class CublasLtProducts final : public Products {
 public:
  CublasLtProducts(std::shared_ptr<CublasLtApi> api, CublasLtApi::Handle handle, Stream& compute,
                   DeviceBuffer workspace, const CublasLtOptions& options)
      : api_(std::move(api)),
        handle_(handle),
        compute_(compute),
        workspace_(std::move(workspace)),
        options_(options) {}
  ~CublasLtProducts() override {
    plans_.clear();
    api_->Destroy(handle_);
  }

  bool MatMul(const TensorView& a, const TensorView& b, const TensorView& c, bool accumulate,
              const TensorView& bias) override;
  bool MatMulGelu(GeluUse use, const TensorView& a, const TensorView& b, const TensorView& bias,
                  const TensorView& aux, const TensorView& c) override;
  bool MatMulSums(const TensorView& a, const TensorView& b, const TensorView& c, bool accumulate,
                  bool sums_b, const TensorView& sums) override;

 private:
  struct Operands {
    TensorView a, b, c;
    TensorView bias, aux;  // where the key has them; sums are in the place of a bias
  };
  // Queues a product, and keeps its error. Measures it if it is to be measured.
  void Queue(const ProductKey& key, const Operands& x, bool accumulate);
  absl::Status TryQueue(const ProductKey& key, const Operands& x, bool accumulate);
  absl::StatusOr<ProductPlan*> PlanFor(const ProductKey& key);
  // Returns whether there is a plan, and no other error: one is kept, as that of a product.
  bool HasPlan(const ProductKey& key);
  absl::Status Describe(const ProductKey& key, ProductPlan* plan);
  absl::Status SetPreference(const ProductKey& key, ProductPlan* plan);
  absl::Status ChooseAlgorithm(const ProductKey& key, ProductPlan* plan);
  std::optional<int> MeasuredProposal(const ProductKey& key) const;
  absl::StatusOr<bool> HasFixedOrder(const CublasLtApi::Algo& algo);
  absl::Status ToStatus(CublasLtApi::Status status, const char* what) const;
  template <typename T>
  absl::Status SetDesc(ProductPlan* plan, int attribute, T value) {
    return ToStatus(api_->MatmulDescSetAttribute(plan->desc, attribute, &value, sizeof(value)),
                    "cublasLtMatmulDescSetAttribute");
  }
  template <typename T>
  absl::Status SetPreference(ProductPlan* plan, int attribute, T value) {
    return ToStatus(
        api_->MatmulPreferenceSetAttribute(plan->preference, attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
  }

  const std::shared_ptr<CublasLtApi> api_;
  const CublasLtApi::Handle handle_;
  Stream& compute_;
  const DeviceBuffer workspace_;
  const CublasLtOptions options_;
  std::map<ProductKey, std::unique_ptr<ProductPlan>> plans_;
  std::set<ProductKey> without_plan_;  // the searches that found nothing are not repeated
  bool warned_ = false;
};

absl::Status CublasLtProducts::ToStatus(CublasLtApi::Status status, const char* what) const {
  if (status == CublasLtApi::kSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", api_->GetStatusString(status));
  return status == CublasLtApi::kNotSupported ? absl::UnimplementedError(text)
                                              : absl::InternalError(text);
}

bool CublasLtProducts::MatMul(const TensorView& a, const TensorView& b, const TensorView& c,
                              bool accumulate, const TensorView& bias) {
  const bool adds_bias = !bias.empty() && HasPlan(KeyOf(a, b, c, /*bias=*/true));
  Queue(KeyOf(a, b, c, adds_bias), {a, b, c, bias, {}}, accumulate);
  return adds_bias || bias.empty();
}

bool CublasLtProducts::MatMulGelu(GeluUse use, const TensorView& a, const TensorView& b,
                                  const TensorView& bias, const TensorView& aux,
                                  const TensorView& c) {
  const ProductChoices& choices = options_.choices;
  if (!(use == GeluUse::kForward ? choices.gelu : choices.gelu_gradient)) return false;
  ProductKey key = KeyOf(a, b, c, !bias.empty());
  key.gelu = use;
  key.leading_aux = LayoutOf(aux).leading_dim;
  if (!HasPlan(key)) return false;
  Queue(key, {a, b, c, bias, aux}, /*accumulate=*/false);
  return true;
}

bool CublasLtProducts::MatMulSums(const TensorView& a, const TensorView& b, const TensorView& c,
                                  bool accumulate, bool sums_b, const TensorView& sums) {
  if (!options_.choices.sums || api_->GetVersion() < cublaslt_abi::kMinBgradVersion) return false;
  ProductKey key = KeyOf(a, b, c, /*bias=*/false);
  key.sums = sums_b ? ProductKey::kOfFirst : ProductKey::kOfSecond;
  if (!HasPlan(key)) return false;
  Queue(key, {a, b, c, sums, {}}, accumulate);
  return true;
}

void CublasLtProducts::Queue(const ProductKey& key, const Operands& x, bool accumulate) {
  DeviceContext& context = compute_.context();
  const ProductTimer& timer = options_.choices.timer;
  if (!timer.add) return context.KeepError(ToString(key), TryQueue(key, x, accumulate));
  const auto now = [&] { return timer.now ? timer.now() : absl::ToDoubleSeconds(SteadyNow()); };
  const std::string name = ToString(key);
  const absl::StatusOr<ProductPlan*> plan = PlanFor(key);
  if (!plan.ok()) return context.KeepError(name, plan.status());
  context.KeepError("the work before a product", compute_.Drain());
  const double start = now();
  context.KeepError(name, TryQueue(key, x, accumulate));
  context.KeepError(name, compute_.Drain());
  timer.add(name, (*plan)->proposal, now() - start);
}

absl::Status CublasLtProducts::TryQueue(const ProductKey& key, const Operands& x, bool accumulate) {
  TESSERA_ASSIGN_OR_RETURN(ProductPlan* const plan, PlanFor(key));
  if (key.gelu.has_value()) {
    TESSERA_RETURN_IF_ERROR(
        SetDesc<const void*>(plan, cublaslt_abi::kDescAuxPointer, x.aux.data()));
  }
  if (key.bias || key.sums != ProductKey::kNone) {
    TESSERA_RETURN_IF_ERROR(
        SetDesc<const void*>(plan, cublaslt_abi::kDescBiasPointer, x.bias.data()));
  }
  const float alpha = 1, beta = accumulate ? 1 : 0;
  return ToStatus(
      api_->Matmul(handle_, plan->desc, &alpha, x.b.data(), plan->first, x.a.data(), plan->second,
                   &beta, x.c.data(), plan->c, x.c.data(), plan->c, &plan->algo, workspace_.data(),
                   static_cast<size_t>(workspace_.bytes()), compute_.handle()),
      "cublasLtMatmul");
}

// The library has no algorithm for some products with an epilogue.
bool CublasLtProducts::HasPlan(const ProductKey& key) {
  if (without_plan_.contains(key)) return false;
  const absl::Status status = PlanFor(key).status();
  if (absl::IsUnimplemented(status)) {
    without_plan_.insert(key);
  } else {
    compute_.context().KeepError(ToString(key), status);
  }
  return status.ok();
}

absl::StatusOr<ProductPlan*> CublasLtProducts::PlanFor(const ProductKey& key) {
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
  auto plan = std::make_unique<ProductPlan>(*api_);
  TESSERA_RETURN_IF_ERROR(Describe(key, plan.get()));
  TESSERA_RETURN_IF_ERROR(SetPreference(key, plan.get()));
  TESSERA_RETURN_IF_ERROR(ChooseAlgorithm(key, plan.get()));
  return (plans_[key] = std::move(plan)).get();
}

absl::Status CublasLtProducts::Describe(const ProductKey& key, ProductPlan* plan) {
  TESSERA_RETURN_IF_ERROR(ToStatus(
      api_->MatmulDescCreate(&plan->desc, cublaslt_abi::kCompute32F, cublaslt_abi::kReal32F),
      "cublasLtMatmulDescCreate"));
  const auto operation = [](bool transposes) {
    return transposes ? cublaslt_abi::kOperationT : cublaslt_abi::kOperationN;
  };
  TESSERA_RETURN_IF_ERROR(
      SetDesc<int32_t>(plan, cublaslt_abi::kDescTransA, operation(key.transposes_first)));
  TESSERA_RETURN_IF_ERROR(
      SetDesc<int32_t>(plan, cublaslt_abi::kDescTransB, operation(key.transposes_second)));
  TESSERA_RETURN_IF_ERROR(SetDesc<uint32_t>(plan, cublaslt_abi::kDescEpilogue, EpilogueOf(key)));
  // The search depends on the address's alignment: it gets one of the least that is promised.
  const void* const aligned = static_cast<const char*>(workspace_.data()) + kEpilogueAlignmentBytes;
  if (key.sums != ProductKey::kNone) {
    TESSERA_RETURN_IF_ERROR(SetDesc<const void*>(plan, cublaslt_abi::kDescBiasPointer, aligned));
  }
  if (key.gelu.has_value()) {
    TESSERA_RETURN_IF_ERROR(SetDesc<const void*>(plan, cublaslt_abi::kDescAuxPointer, aligned));
    TESSERA_RETURN_IF_ERROR(SetDesc<int64_t>(plan, cublaslt_abi::kDescAuxLd, key.leading_aux));
  }
  // A transposed operand is stored with its dims exchanged.
  const auto create = [&](CublasLtApi::MatrixLayout* layout, DType dtype, bool transposes,
                          int64_t rows, int64_t columns, int64_t leading_dim) {
    return ToStatus(api_->MatrixLayoutCreate(
                        layout, CudaType(dtype), static_cast<uint64_t>(transposes ? columns : rows),
                        static_cast<uint64_t>(transposes ? rows : columns), leading_dim),
                    "cublasLtMatrixLayoutCreate");
  };
  TESSERA_RETURN_IF_ERROR(
      create(&plan->first, key.operands, key.transposes_first, key.n, key.k, key.leading_first));
  TESSERA_RETURN_IF_ERROR(
      create(&plan->second, key.operands, key.transposes_second, key.k, key.m, key.leading_second));
  return create(&plan->c, key.result, false, key.n, key.m, key.leading_c);
}

// Alignments follow from the strides, which addresses are multiples of: see Products.
absl::Status CublasLtProducts::SetPreference(const ProductKey& key, ProductPlan* plan) {
  TESSERA_RETURN_IF_ERROR(
      ToStatus(api_->MatmulPreferenceCreate(&plan->preference), "cublasLtMatmulPreferenceCreate"));
  TESSERA_RETURN_IF_ERROR(SetPreference<uint64_t>(plan, cublaslt_abi::kPrefMaxWorkspaceBytes,
                                                  static_cast<uint64_t>(workspace_.bytes())));
  TESSERA_RETURN_IF_ERROR(
      SetPreference<uint32_t>(plan, cublaslt_abi::kPrefReductionSchemeMask, kReductionComputeType));
  const auto alignment = [](int64_t leading_dim, DType dtype) {
    return static_cast<uint32_t>(AlignmentOf(leading_dim, dtype));
  };
  const std::pair<int, uint32_t> alignments[] = {
      {cublaslt_abi::kPrefMinAlignmentABytes, alignment(key.leading_first, key.operands)},
      {cublaslt_abi::kPrefMinAlignmentBBytes, alignment(key.leading_second, key.operands)},
      {cublaslt_abi::kPrefMinAlignmentCBytes, alignment(key.leading_c, key.result)},
      {cublaslt_abi::kPrefMinAlignmentDBytes, alignment(key.leading_c, key.result)}};
  for (const auto& [attribute, bytes] : alignments) {
    TESSERA_RETURN_IF_ERROR(SetPreference<uint32_t>(plan, attribute, bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> CublasLtProducts::HasFixedOrder(const CublasLtApi::Algo& algo) {
  uint32_t scheme = 0;
  size_t written = 0;
  TESSERA_RETURN_IF_ERROR(
      ToStatus(api_->MatmulAlgoConfigGetAttribute(&algo, cublaslt_abi::kAlgoReductionScheme,
                                                  &scheme, sizeof(scheme), &written),
               "cublasLtMatmulAlgoConfigGetAttribute"));
  return scheme == kReductionNone || scheme == kReductionComputeType;
}

absl::Status CublasLtProducts::ChooseAlgorithm(const ProductKey& key, ProductPlan* plan) {
  std::array<CublasLtApi::HeuristicResult, kProposals> proposals = {};
  int count = 0;
  TESSERA_RETURN_IF_ERROR(ToStatus(
      api_->MatmulAlgoGetHeuristic(handle_, plan->desc, plan->first, plan->second, plan->c, plan->c,
                                   plan->preference, kProposals, proposals.data(), &count),
      "cublasLtMatmulAlgoGetHeuristic"));
  const std::optional<int> measured = MeasuredProposal(key);
  const auto wanted = static_cast<size_t>(measured.value_or(options_.choices.proposal));
  std::vector<CublasLtApi::Algo> usable;
  for (int i = 0; i < count && usable.size() <= wanted; ++i) {
    const CublasLtApi::HeuristicResult& proposal = proposals[static_cast<size_t>(i)];
    if (proposal.state != CublasLtApi::kSuccess) continue;
    if (proposal.workspace_bytes > static_cast<size_t>(workspace_.bytes())) continue;
    TESSERA_ASSIGN_OR_RETURN(const bool fixed, HasFixedOrder(proposal.algo));
    if (fixed) usable.push_back(proposal.algo);
  }
  if (usable.empty()) {
    return absl::UnimplementedError("cuBLASLt has no algorithm with a fixed order of additions");
  }
  const bool missing = wanted >= usable.size();
  const size_t chosen = !missing ? wanted : measured.has_value() ? 0 : usable.size() - 1;
  plan->algo = usable[chosen];
  plan->proposal = static_cast<int>(chosen);
  LOG_IF(WARNING, missing && measured.has_value() && !std::exchange(warned_, true))
      << "the table of products names proposal " << wanted << " for the " << ToString(key)
      << ", of which there are " << usable.size() << ": the first is taken, as in all such cases";
  return absl::OkStatus();
}

std::optional<int> CublasLtProducts::MeasuredProposal(const ProductKey& key) const {
  const ProductProposals* const measured = options_.choices.measured.get();
  if (measured == nullptr) return std::nullopt;
  const auto found = measured->find(ToString(key));
  return found == measured->end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Products>> MakeCublasLtProducts(std::shared_ptr<CublasLtApi> api,
                                                               Stream& compute,
                                                               const CublasLtOptions& options) {
  CublasLtApi::Handle handle = nullptr;
  const CublasLtApi::Status status = api->Create(&handle);
  if (status != CublasLtApi::kSuccess) {
    return absl::InternalError(absl::StrCat("cublasLtCreate: ", api->GetStatusString(status)));
  }
  absl::StatusOr<DeviceBuffer> workspace =
      DeviceBuffer::Allocate(compute, options.workspace_bytes, "cuBLASLt's workspace");
  if (!workspace.ok()) {
    api->Destroy(handle);
    return workspace.status();
  }
  return std::make_unique<CublasLtProducts>(std::move(api), handle, compute, *std::move(workspace),
                                            options);
}

}  // namespace tessera::cuda
